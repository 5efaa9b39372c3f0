"""Check that recording an allocation and its free in the core takes no more instructions."""

import pytest
import tools
from instructions import Figure, count, limit

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
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Figure]:
    tools.program("valgrind")
    folder = tmp_path_factory.mktemp("counts")
    return count("cpu", folder) | count("forward", folder)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_pair_takes_no_more_instructions(case: str, figures: dict[str, Figure]) -> None:
    # GIVEN pairs of an allocation and a free, recorded into a full ring
    figure = figures[case]
    counted, frames = CASES[case]
    # THEN the ring has the allocation and the free of each pair, with their stacks
    assert figure["events"] == 2
    assert figure["frames"] == frames
    # AND the instruction count is within the limit
    print(f"{case}: {figure['instructions']} instructions, at most {limit(counted):.0f}")
    assert 0 < figure["instructions"] <= limit(counted)
