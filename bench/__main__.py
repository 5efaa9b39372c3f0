"""Run all benchmarks of a device, one after the other, or only the named ones.

    python bench
    tests/devices/simulate cuda PYTHON bench --device cuda
    python bench --device cuda --quick per_event per_step

`python bench/NAME.py --help` says what a benchmark measures, and lists its own options. When a
benchmark fails, the others still run; the failed ones are named at the end, and the exit status
is 1. Results overwrite those in bench/results. With `--quick`, each benchmark runs one round, and
its results are not kept.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from harness import positive
from rich.console import Console

CPU, ACCELERATORS = ("cpu",), ("cuda", "npu")
ALL = CPU + ACCELERATORS


class Bench(NamedTuple):
    devices: tuple[str, ...]
    has_rounds: bool = True
    simulated: dict[str, str] | None = None
    """The settings of simulated devices that the benchmark needs (csrc/devices/README.md)."""


BENCHES = {
    "per_event": Bench(ALL),
    "per_step": Bench(ALL),
    "threads": Bench(ALL, simulated={"SIMULATED_DEVICES": "8"}),
    "dump": Bench(ALL),
    "growth": Bench(ALL),
    "startup": Bench(ALL),
    "reading": Bench(CPU),
    "view": Bench(CPU),
    "recommend": Bench(ACCELERATORS),
    "dry_run": Bench(CPU, has_rounds=False),
    "truth": Bench(ALL, has_rounds=False),
}


def has_cuda() -> bool:
    import torch  # imported here because it takes a second, which `--help` does not need

    return torch.cuda.is_available()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"one or more of: {', '.join(BENCHES)}"
    )
    parser.add_argument(
        "--device", choices=ALL, default="cpu", help="the device whose allocator is measured"
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--rounds", type=positive, help="processes for each configuration")
    amount.add_argument("--quick", action="store_true", help="one round; results are not kept")
    options = parser.parse_args()
    for name in options.names:
        if name not in BENCHES:
            parser.error(f"no benchmark {name}")
        if options.device not in BENCHES[name].devices:
            parser.error(f"{name} runs only on {' and '.join(BENCHES[name].devices)}")
    names = options.names or [
        name for name, bench in BENCHES.items() if options.device in bench.devices
    ]
    if options.device == "cuda" and not has_cuda():
        parser.error("there is no CUDA device; tests/devices/simulate provides simulated ones")
    if options.device == "npu" and importlib.util.find_spec("torch_npu") is None:
        parser.error("torch_npu is not installed")
    rounds = 1 if options.quick else options.rounds
    failed = []
    for name in names:
        Console().rule(f"[bold]{name}, {options.device}")
        bench = BENCHES[name]
        command = [sys.executable, str(Path(__file__).with_name(f"{name}.py"))]
        command += ["--device", options.device]
        if rounds is not None and bench.has_rounds:
            command += ["--rounds", str(rounds)]
        if options.quick:
            command += ["--json", os.devnull]
        environment = {**(bench.simulated or {}), **os.environ}
        if subprocess.run(command, env=environment).returncode != 0:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
