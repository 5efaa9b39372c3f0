"""Does the answer say that host memory grows which no tensor takes?"""

from itertools import pairwise
from pathlib import Path

import pytest
from processes import installed, run
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis import explain
from pytracer.analysis.answer import Answer
from pytracer.analysis.answer_words import answer_of
from pytracer.reading import load
from pytracer.tracing.host_memory import MOST_SAMPLES, HostMemory

MIB = 2**20
STEPS = 40
PROGRAM = f"""
from collections import deque
import sys, torch

def main(kept):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range({STEPS}):
        kept.append({{}})
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()

main({{}})
"""


@pytest.mark.parametrize(
    ("block", "kept", "verdict"),
    [
        ("bytearray(6 << 20)", "[]", "HOST MEMORY GROWS: "),
        ("bytearray(6 << 20)", "deque(maxlen=15)", "NO PROBLEM FOUND"),
        ("torch.zeros(6 << 18)", "[]", "LEAK: 6 MiB a step"),
    ],
)
def test_the_default_answer(tmp_path: Path, block: str, kept: str, verdict: str) -> None:
    # WHEN a training keeps objects of each step, a bounded number of them, or tensors
    run(PROGRAM.format(block, kept), cwd=tmp_path, env=installed(tmp_path, PYTRACER="1"))
    (path,) = tmp_path.glob("outputs/profile/exit/*.pickle")
    (found,) = explain(load(path))
    answer = answer_of(found)
    # THEN the answer says what grows
    assert answer.verdict.startswith(verdict)
    # AND by how much a step
    assert (found.host is not None) == verdict.startswith("HOST")
    if found.host is not None:
        assert found.host.bytes_per_step == pytest.approx(6 * MIB, rel=0.1)
        assert found.host.is_cpu_recorded
        (host,) = answer.texts("host")
        assert host.endswith("not tensors, but Python objects, numpy or libraries")


def on_accelerator(sizes: list[int]) -> Answer:
    program = Program()
    program.alloc(MIB, ("train.py", "main", 3))
    samples = [[step, size] for step, size in enumerate(sizes, 1)]
    program.metadata = file_metadata(host_memory=samples)
    return answer_of(explain(program.snapshot())[0])


def test_without_the_cpu_tensors_may_be_what_grows() -> None:
    answer = on_accelerator([step * 24 * MIB for step in range(1, 41)])
    assert answer.verdict == "HOST MEMORY GROWS: 24 MiB a step"
    assert answer.texts("host")[0].endswith(" in step 40: not on the recorded devices")
    assert answer.texts("do")[0] == "export PYTRACER_DEVICE=cuda,cpu"


@pytest.mark.parametrize(
    "sizes",
    [
        [min(step, 20) * 24 * MIB for step in range(1, 41)],  # a cache that fills
        [step % 7 * 240 * MIB for step in range(1, 41)],  # goes up and down
        [2000 * MIB + step * MIB // 4 for step in range(1, 1001)],  # less than pytracer's own
        [step * 24 * MIB for step in range(1, 11)],  # too few steps
        [step * 24 * MIB for step in range(40, 0, -1)],
        [200 * MIB] * 30 + [2000 * MIB] * 10,  # once, as for a checkpoint
    ],
)
def test_other_memory_is_not_said_to_grow(sizes: list[int]) -> None:
    assert on_accelerator(sizes).verdict == "NO PROBLEM FOUND"


def test_samples_are_bounded_and_begin_anew() -> None:
    memory = HostMemory()
    for step in range(1, 100_000):
        memory.note(step)
    # THEN those of all steps are there, at even distances
    steps = [step for step, _ in memory.samples]
    assert MOST_SAMPLES // 4 < len(steps) < MOST_SAMPLES
    assert {after - before for before, after in pairwise(steps)} == {256}
    assert steps[-1] > 99_000
    # AND WHEN a program begins its steps again, THEN only the new ones count
    memory.note(1)
    assert [step for step, _ in memory.samples] == [1]
