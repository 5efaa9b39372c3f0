"""Programs that allocate in steps, and the leaks that are found in them."""

from collections.abc import Callable
from typing import Any

from synthetic_snapshots import Program, file_metadata

from pytracer.analysis import find_leaks
from pytracer.analysis.leaks.results import DeviceLeaks

SIZE = 1 << 16
LINE = ("/home/me/train.py", "train_step", 41)
OTHER = ("/home/me/train.py", "evaluate", 55)
MODEL = ("/home/me/train.py", "make_model", 9)


def observed(step: Callable[[Program, int], object], **options: Any) -> DeviceLeaks:
    """Return the result for a program, recorded as `recorded` does."""
    (device,) = find_leaks(recorded(step, **options).snapshot()).devices
    return device


def recorded(
    step: Callable[[Program, int], object],
    *,
    first: int = 1,
    steps: int = 60,
    begin: Callable[[Program], object] = lambda program: None,
    end: Callable[[Program], object] = lambda program: None,
) -> Program:
    """Return a program whose file has the steps from `first` to `steps`.

    Args:
        step: Allocates and frees in each step.
        first: The first step in the file; if it is not 1, the ring overwrote those before.
        steps: The last step.
        begin, end: Called before the first step of the file, and after the last step.
    """
    program, boundaries = Program(), []
    begin(program)
    for number in range(first, steps + 1):
        boundaries.append([number, len(program.events)])
        program.free(program.alloc(512, OTHER))
        step(program, number)
    boundaries.append([steps + 1, len(program.events)])
    program.free(program.alloc(512, OTHER))
    end(program)
    program.metadata = file_metadata(current_step=steps + 1)
    lost = 0 if first == 1 else 1000
    program.metadata["devices"][0] |= {"steps": boundaries, "overwritten": lost}
    return program


def keep(program: Program, number: int) -> None:
    program.alloc(SIZE, LINE)
