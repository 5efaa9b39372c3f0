"""Count how often the answer is true, for the programs of tests/corpus, whose truth is known.

Each program runs by default (`PYTRACER=1`), in a process of its own, and again with what helps; the
search for holders gets 30 s for its 0.3, so that a busy machine gives the same counts. An answer is
that of `pytracer show`; tests/corpus/answers.py says when one is true. For comparison, two rules
such as other tools have look at the memory after each step, or at 60 moments of a program without
steps, in the last two thirds of the same recordings: that it grew in more than a tenth of the
steps, and by 1 % in all ("growth"), and that a line through it rises by 1 % in all and explains 0.8
of its variance ("trend"). torch's _memory_viz and mosaic show blocks and stacks, and pt-snap-cli's
`leak_detection` lists each block that was not freed, of any program: there is no verdict to count.

    python bench/truth.py
    tests/devices/simulate cuda PYTHON bench/truth.py --device cuda [--only NAME...]
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, environment, in_turn
from rich import print

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "helpers"), str(TESTS / "devices")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import simulated  # noqa: E402
from corpus.answers import PROPERTIES, look, nameless_part, stated  # noqa: E402
from corpus.truth import PROGRAMS, Program, programs  # noqa: E402

from pytracer.analysis.device_data import device_data  # noqa: E402
from pytracer.reading import load  # noqa: E402

MOMENTS, LEAST_GROWTH = 60, 1.01


def growth_rules(path: Path) -> dict[str, bool]:
    """Return whether each rule calls the recorded program leaking."""
    data = device_data(load(path), 0)
    usage = data.history.usage.allocated_bytes
    ends = [event - 1 for _, event in data.boundaries if event > 0]
    if len(ends) < 3:
        ends = np.linspace(0, len(usage) - 1, MOMENTS).astype(int).tolist()
    ends = ends[len(ends) // 3 :]  # without what is loaded at the beginning
    memory = usage[ends].astype(float) if len(usage) else np.zeros(2)
    has_grown = memory[-1] > memory[0] * LEAST_GROWTH
    moments = np.arange(len(memory))
    slope, first = np.polyfit(moments, memory, 1)
    spread = np.var(memory)
    explained = 1 - np.var(memory - slope * moments - first) / spread if spread else 0.0
    rises = slope * len(memory) > max(memory[0], 1) * (LEAST_GROWTH - 1)
    return {
        "growth": bool(has_grown and np.mean(np.diff(memory) > 0) > 0.1),
        "trend": bool(rises and explained >= 0.8),
    }


def measured(program: Program, device: str) -> dict[str, Any]:
    """Return what pytracer and the rules say of a program, and which of its answers are true."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        found = look(program, device, Path(folder), PATIENT="1")
        helped = program.helped or {}
        fixed = look(program, device, Path(other), PATIENT="1", **helped) if helped else found
        true = {
            name: PROPERTIES[name][1](program, fixed if name == "remedy" else found)
            for name in stated(program, device)
        }
        row = {"name": program.name, "kinds": program.kinds, "found": found.kind, "true": true}
        return {**row, "nameless": nameless_part(found), "rules": growth_rules(found.path)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda", "npu"), default="cpu")
    parser.add_argument("--only", nargs="+", help="these programs; no results are written")
    parser.add_argument(
        "--json", type=Path, help="the result file (bench/results/truth_DEVICE.json)"
    )
    options = parser.parse_args()
    if options.device != "cpu" and not simulated.active():
        parser.error("the programs need simulated devices, whose memory they choose")
    here = [p.name for p in programs().values() if options.device in p.devices]
    rows = in_turn(options.only or here, lambda name: measured(PROGRAMS[name], options.device))
    figures = [row for (row,) in rows.values()]
    for row in figures:
        if not all(row["true"].values()):
            wrong = ", ".join(name for name, is_true in row["true"].items() if not is_true)
            print(f"{row['name']}: found {row['found']!r} for {row['kinds'][0]!r}; wrong: {wrong}")
    for name in PROPERTIES:
        true = [row["true"][name] for row in figures if name in row["true"]]
        print(f"{name}: {sum(true)} of {len(true)}")
    if not options.only:
        path = options.json or RESULTS / f"truth_{options.device}.json"
        content = {"environment": environment(), "figures": figures}
        path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
