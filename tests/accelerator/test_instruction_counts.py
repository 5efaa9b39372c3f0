"""Check that recording a pair of events of torch's allocator takes no more instructions."""

import pytest
from instructions import CannotCountError, Figure, count, limit

# The counted instructions of a pair (with g++ 12; torch 2.15.0, torch_npu 2.13.0), and the number
# of frames of each recorded stack. `pytest -rP` prints the current counts.
CASES = {
    "without stacks": ({"cuda": 777, "npu": 755}, []),
    "allocations' stacks, 5 frames": ({"cuda": 953, "npu": 931}, [5]),
    "allocations' stacks, 40 frames": ({"cuda": 1156, "npu": 1134}, [40]),
    "all stacks, 5 frames": ({"cuda": 1516, "npu": 1494}, [5, 5]),
    "all stacks, 40 frames": ({"cuda": 2272, "npu": 2250}, [40, 40]),
}


@pytest.fixture(scope="module")
def figures(backend: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Figure]:
    try:
        return count(backend, "hardware", tmp_path_factory.mktemp("counts"))
    except CannotCountError as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("case", CASES)
def test_a_pair_takes_no_more_instructions(
    case: str, backend: str, figures: dict[str, Figure]
) -> None:
    # GIVEN pairs of an allocation and a free, recorded into a full ring
    figure = figures[case]
    counted, frames = CASES[case]
    # THEN all three events of each pair are recorded, with their stacks
    assert figure["events"] == 3
    assert figure["frames"] == frames
    # AND the added instructions are within the limit
    print(f"{case}: {figure['instructions']} instructions, at most {limit(counted[backend]):.0f}")
    assert 0 < figure["instructions"] <= limit(counted[backend])
