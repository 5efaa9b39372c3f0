"""Run the attacks on pytracer, each in a separate process, and write their results.

    python tests/reliability                     # minutes; all attacks, into results/minutes.json
    python tests/reliability --soak              # an hour, into results/soak.json
    python tests/reliability full_disks --seed 7 --seconds 30 --json /tmp/found.json

An attack on CUDA needs an environment with a CUDA build of torch (`--cuda-python`) and runs on
simulated devices. A run of some attacks replaces these in the file and keeps the others. The exit
status is 1 if an attack failed. results/README.md is made from the files by page.py.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from runs import CUDA_PYTHON, RESULTS, facts, names, run_here, run_in_process

SOAK_SECONDS = 3600.0
SHOWN_FAILURES = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tests/reliability",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"one or more of: {', '.join(names())}"
    )
    parser.add_argument(
        "--soak", action="store_true", help="an hour for all attacks, in place of minutes"
    )
    parser.add_argument(
        "--seconds", type=float, help="budget of each attack, in place of its SECONDS"
    )
    parser.add_argument("--seed", type=int, help="seed of all random numbers (default: random)")
    parser.add_argument("--json", type=Path, help="result file (default: in tests/reliability)")
    parser.add_argument(
        "--cuda-python",
        type=Path,
        default=CUDA_PYTHON,
        help="a Python with a CUDA build of torch (%(default)s)",
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in names()]
    if unknown:
        parser.error(f"no attack {', '.join(unknown)}; the attacks are: {', '.join(names())}")
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    if options.here:
        run_here(options.names[0], options.seconds, seed, options.json)
        return
    file = options.json or RESULTS / ("soak.json" if options.soak else "minutes.json")
    found = json.loads(file.read_text()) if file.exists() else {}
    budgets = {name: facts(name).seconds for name in names()}
    factor = SOAK_SECONDS / sum(budgets.values()) if options.soak else 1
    failed = []
    for name in options.names or names():
        seconds = options.seconds or budgets[name] * factor
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            entry = run_in_process(name, seconds, seed, Path(folder), options.cuda_python)
        if isinstance(entry, str):
            print(f"{name}: skipped: {entry}", flush=True)
            continue
        found[name] = entry
        found = {name: found[name] for name in names() if name in found}
        file.write_text(json.dumps(found, indent=2) + "\n")
        failures = entry["failures"]
        verdict = f"FAILED {entry['failed']:,} times" if failures else "nothing failed"
        if not failures and entry["tried"] == 0:
            verdict = "NOTHING TRIED"
        took = f"{entry['took_seconds']:.0f} s, seed {seed}"
        print(f"{name}: {entry['tried']:,} {entry['unit']}, {took}: {verdict}", flush=True)
        for line in failures[:SHOWN_FAILURES]:
            print(f"    {line}")
        for line in entry["skipped"]:
            print(f"    skipped: {line}")
        if failures:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
