"""Check that recording an allocation and its free in the core takes no more instructions."""

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import processes
import pytest
import tools

PROGRAM = Path(processes.__file__).with_name("instructions.py")

# The counted instructions of a pair (with g++ 12), and the number of frames of each recorded stack.
# `pytest -rP` prints the current counts.
CASES = {
    "without stacks": (330, []),
    "one stack, 5 frames": (557, [5]),
    "one stack, 40 frames": (1066, [40]),
    "two paths, 25 frames": (2111, [25, 25]),
    "two paths, 84 frames, 64 kept": (5227, [64, 64]),
    "accelerator, 5 frames": (617, [5, 5]),
    "accelerator, 40 frames": (1140, [40, 40]),
    "forward stacks, 5 frames": (715, [5, 5]),
    "forward stacks, 7 frames, a new node": (1166, [7, 7]),
    "forward stacks, 12 frames, in a node": (1203, [12, 12]),
    "new stacks, 20 frames": (1400, [20] * 200),  # those of the 400 events in the ring
}


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    valgrind, folder = tools.program("valgrind"), tmp_path_factory.mktemp("counts")
    callgrind = [valgrind, "--quiet", "--tool=callgrind", "--dump-before=getppid"]
    counted = count("cpu", folder, *callgrind, f"--callgrind-out-file={folder / 'counts'}")
    if platform.machine() != "x86_64":
        pytest.skip(f"no traps (not known: {platform.machine()})")
    return counted | count("forward", folder)


def count(device: str, folder: Path, *command: object) -> Any:
    """Count the instructions added to a pair, by case, in a separate process.

    Args:
        device: "cpu" for the core alone, "forward" for the core with autograd's library.
        folder: The folder for files of the counter.
        command: What starts the process.
    """
    command = (*command, sys.executable, PROGRAM, device, folder)
    return json.loads(subprocess.check_output(command, env=processes.environment()))


def limit(counted: float) -> float:
    """Return the upper limit for a count that was taken with Python 3.11 on x86-64.

    The limit is a tenth above the count; half above it for other Pythons and processors, whose
    machine code differs.
    """
    same_platform = sys.version_info[:2] == (3, 11) and platform.machine() == "x86_64"
    return counted * (1.1 if same_platform else 1.5)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_pair_takes_no_more_instructions(case: str, figures: dict[str, Any]) -> None:
    # GIVEN pairs of an allocation and a free, recorded into a full ring
    figure = figures[case]
    counted, frames = CASES[case]
    # THEN the ring has the allocation and the free of each pair, with their stacks
    assert figure["events"] == 2
    assert figure["frames"] == frames
    # AND the instruction count is within the limit
    print(f"{case}: {figure['instructions']} instructions, at most {limit(counted):.0f}")
    assert 0 < figure["instructions"] <= limit(counted)
