"""In programs of random parts, no innocent part is accused, and the parts that leak are found."""

from pathlib import Path

import generated_leaks
import pytest
from generated_leaks import Part

from pytracer.analysis import find_leaks
from pytracer.analysis.leaks.results import DeviceLeaks, Growth
from pytracer.reading import load

SEEDS = 60


def part_of(growth: Growth, program: generated_leaks.Program) -> Part:
    """Return the part whose line is among the frames of a growth."""
    (part,) = (
        part
        for part in program.parts
        if any(
            Path(frame.filename).name == "generated_leaks.py" and frame.line in part.lines
            for frame in growth.frames
        )
    )
    return part


def search(program: generated_leaks.Program) -> tuple[DeviceLeaks, list[Part], list[Part]]:
    """Return the result, and the parts that are accused and in doubt."""
    (device,) = find_leaks(load(program.path)).devices
    accused = [part_of(growth, program) for growth in device.growths if growth.verdict == "leak"]
    doubted = [part_of(growth, program) for growth in device.growths if growth.verdict != "leak"]
    return device, accused, doubted


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_programs(seed: int, tmp_path: Path) -> None:
    # GIVEN a program of random parts
    program = generated_leaks.run(seed, tmp_path / "a.pickle", loses_beginning=False)
    # WHEN its recording is searched
    device, accused, doubted = search(program)
    assert (device.first, device.last) == (1, program.steps)
    # THEN no part is accused that does not leak
    assert [part for part in accused if not part.is_leak] == []
    # AND those that leak often are; growth by chance may look as if it slowed down
    for part in program.parts:
        if part.is_leak and len(part.kept_in) >= 6:
            by_chance = isinstance(part, generated_leaks.Sometimes)
            assert part in accused or (by_chance and part in doubted), part
    # AND the verdict follows
    assert (device.verdict == "leak") == bool(accused)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_programs_whose_beginning_is_lost(seed: int, tmp_path: Path) -> None:
    # GIVEN a recording whose ring overwrote the first steps
    program = generated_leaks.run(1000 + seed, tmp_path / "a.pickle", loses_beginning=True)
    # THEN no part is accused that does not leak
    device, accused, doubted = search(program)
    assert [part for part in accused if not part.is_leak] == []
    # AND a leak that was observed often is accused, or doubted
    for part in program.parts:
        seen = [step for step in part.kept_in if step >= (device.first or 0)]
        if part.is_leak and len(seen) >= 6 and device.observed >= 8:
            assert part in accused or part in doubted, part


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_programs_that_have_ended(seed: int, tmp_path: Path) -> None:
    # GIVEN a recording that has a few steps, and the frees of all that the program had kept
    program = generated_leaks.run(
        2000 + seed, tmp_path / "a.pickle", loses_beginning=True, ends=True
    )
    # THEN no part is accused that does not leak
    device, accused, _ = search(program)
    assert [part for part in accused if not part.is_leak] == []
    # AND those that have leaked from the beginning on are, if a step has all its events
    for part in program.parts if device.observed else ():
        if isinstance(part, generated_leaks.EveryFewSteps) and len(part.kept_in) >= 20:
            assert part in accused, part
