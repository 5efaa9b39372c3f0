"""A file that shows alone how a program grows: by its steps, or by categories as an estimate."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pytracer.analysis.oom.savings import OF_BATCH
from pytracer.errors import PytracerError
from pytracer.fitting.alignment import Recorded, matches_of_steps
from pytracer.fitting.growth import MISSING
from pytracer.fitting.lines import kinds_of
from pytracer.fitting.sizes import GivenSizes, Sizes
from pytracer.reading.snapshot import Column

_MOST_SIZES = 16  # how many sizes of steps are used: more take more time, and do not show more

_OF_MODEL = "within_optimizer"
"""The rule of temporary memory that grows with the model, and not with its data."""


def shown_by(
    files: Sequence[Recorded], sizes: Sequence[GivenSizes], targets: Sequence[Sizes]
) -> tuple[dict[str, Recorded], list[str]]:
    """Return by name the recordings that show how the program grows, with their sizes.

    Returns:
        The recordings, and a sentence if one of them is an estimate.

    Raises:
        PytracerError: A complete step has no size.
    """
    found: dict[str, Recorded] = {}
    for file, given in zip(files, sizes, strict=True):
        found |= _parts_of(file, given)
    (name, only), *others = found.items()
    changed = [
        each for each in targets[0] if any(target[each] != only.sizes[each] for target in targets)
    ]
    if others or len(changed) != 1 or not only.complete:
        return found, []
    note = (
        "An estimate from one recording: activations, temporary memory, inputs, outputs and what "
        f"is unknown are taken to grow with {changed[0]}, and nothing else. A second recording "
        f"with another {changed[0]} shows how each request grows."
    )
    return {name: only, f"{name}, twice": _doubled(only, changed[0])}, [note]


def _parts_of(file: Recorded, sizes: GivenSizes) -> dict[str, Recorded]:
    """Return a recording with its sizes by name; or one for each size that its steps have.

    The recording for a step has the requests of the whole program, with the sizes of the step.

    Raises:
        PytracerError: A complete step has no size.
    """
    whole = {name: value for name, value in sizes.items() if isinstance(value, int)}
    of_steps = {name: value for name, value in sizes.items() if not isinstance(value, int)}
    if not of_steps:
        return {file.path: replace(file, sizes=whole)}
    for name, values in of_steps.items():
        if len(values) < file.complete:  # the last step may not be complete
            raise PytracerError(
                f"{file.path} has {file.complete} complete steps, and {len(values)} sizes of "
                f"{name}: give one for each complete step, in order"
            )
    rows = list(zip(*(values[: file.complete] for values in of_steps.values()), strict=True))
    steps: dict[tuple[int, ...], list[int]] = {}
    for number, row in enumerate(rows):
        steps.setdefault(row, []).append(number)
    ordered = sorted(steps, key=lambda row: float(np.prod(row)))
    chosen = np.linspace(0, len(ordered) - 1, min(len(ordered), _MOST_SIZES)).round().astype(int)
    return {
        f"{file.path}, step {steps[row][-1] + 1}": _of_steps(
            file, steps[row], {**whole, **dict(zip(of_steps, row, strict=True))}, row == ordered[-1]
        )
        for row in (ordered[i] for i in chosen.tolist())
    }


def _of_steps(file: Recorded, steps: list[int], sizes: Sizes, is_base: bool) -> Recorded:
    """Return the whole program with the sizes that some steps of it have.

    It lacks the requests that these steps do not have, except those that the program keeps, such as
    parameters. The base of the predictions has all. In these steps, requests are as they were: what
    depends on values differs between them.
    """
    are_kept = _are_kept(file)
    size_bytes = np.where(are_kept | is_base, file.size_bytes, MISSING)
    rest, row = _with_rows(file, ~are_kept), np.flatnonzero(~are_kept)
    for other in range(len(file.steps) - 1):
        own, same = matches_of_steps(rest, other if other in steps else steps[-1], rest, other)
        size_bytes[row[same]] = rest.size_bytes[own]
    changed = replace(file.with_sizes(np.maximum(size_bytes, 1)), sizes=sizes)
    return _with_rows(changed, size_bytes != MISSING)


def _doubled(file: Recorded, name: str) -> Recorded:
    """Return an estimate of the recording at twice the size of a variable, such as its batch.

    What the batch needs by its category is doubled, and so is what is unknown, unless the program
    keeps it after the last step.
    """
    kinds = kinds_of(file)
    grows = kinds.are(lambda name, rule: name in (*OF_BATCH, "unknown") and rule != _OF_MODEL)
    size_bytes = file.size_bytes * np.where(grows & ~_are_kept(file), 2, 1)
    sizes = {**file.sizes, name: 2 * file.sizes[name]}
    return replace(file.with_sizes(size_bytes), sizes=sizes)


def _are_kept(file: Recorded) -> Column:
    """Return which allocations the program keeps from its first step on, such as states: bool.

    None, if there is no step that shows what the program keeps longer than to the next one.
    """
    found = np.zeros(len(file.rows), bool)
    if file.complete > 1:
        found[file.held_at(file.ends[file.complete] - 1)] = True
        found[file.steps[1] :] = False
    return found


def _with_rows(file: Recorded, chosen: Column) -> Recorded:
    steps = np.concatenate(([0], np.cumsum(chosen)))[file.steps].tolist()
    return replace(file, rows=file.rows[chosen], key=file.key[chosen], steps=steps)
