"""The sizes of a program's data, such as its batch: as people write them, and of recordings."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pytracer.errors import ConfigError, PytracerError
from pytracer.reading.snapshot import Column, Snapshot
from pytracer.text import number

Sizes = dict[str, int]  # the size of each variable, as in {"batch": 2, "length": 4096}

MOST_VALUES = 1000  # the most sizes of a range

GivenSizes = dict[str, int | list[int]]
"""The sizes of a recording. A list has the sizes of its complete steps, in order."""

_WHOLE = r"[1-9]\d{0,11}"
_SIZES = re.compile(rf"{_WHOLE}(?:/{_WHOLE})*")
_RANGE = re.compile(rf"({_WHOLE})(?:\.\.({_WHOLE})(?:\.\.({_WHOLE}))?)?")
_EXAMPLE = "give sizes such as batch=16,length=4096"


def parsed_file(text: str) -> tuple[Path, GivenSizes | None]:
    """Return the path of "a.pickle@batch=2,length=64/128" and its sizes; None: it has none."""
    path, _, sizes = text.rpartition("@")
    if not path or "=" not in sizes or Path(text).exists():
        return Path(text), None
    found: GivenSizes = {}
    for part in sizes.split(","):
        name, _, given = part.partition("=")
        if not name or not _SIZES.fullmatch(given):
            raise ConfigError(f'"{text}": {_EXAMPLE}; a size is a whole number above 0')
        values = [int(value) for value in given.split("/")]
        found[name] = values if len(values) > 1 else values[0]
    return Path(path), found


def parsed_target(text: str) -> dict[str, Sequence[int]]:
    """Return the values of each variable of a text such as "batch=8..32,length=4096".

    "8..32" means all numbers from 8 to 32, and "8..32..8" every eighth of them.
    """
    found: dict[str, Sequence[int]] = {}
    for part in text.split(","):
        name, _, values = part.strip().partition("=")
        parsed = _RANGE.fullmatch(values)
        first, last, step = (int(each or 0) for each in parsed.groups()) if parsed else (0, 0, 0)
        if not name or name in found or first > (last or first) or not first:
            raise ConfigError(
                f'"{text}": {_EXAMPLE}, each name once; 8..32 is a range, 8..32..8 has steps of 8'
            )
        found[name] = range(first, (last or first) + 1, step or 1)
    return found


def targets_of(values: Mapping[str, int | Sequence[int]]) -> list[Sizes]:
    """Return all combinations of the values, in their order."""
    found: list[Sizes] = [{}]
    for name, given in values.items():
        column = [given] if isinstance(given, int) else list(given)
        if not column or not all(type(value) is int and 0 < value < 10**12 for value in column):
            raise ConfigError(f"{name}={given!r}: {_EXAMPLE}; a size is a whole number above 0")
        found = [{**sizes, name: value} for sizes in found for value in column]
        if len(found) > MOST_VALUES:
            raise ConfigError(f"more than {MOST_VALUES:,} sizes at once: give fewer values")
    if not values:
        raise ConfigError(f"no sizes to predict: {_EXAMPLE}")
    return found


def sizes_of(snapshot: Snapshot, given: GivenSizes | None, names: Sequence[str]) -> GivenSizes:
    """Return the sizes of a recording: those given with its name, or else of its metadata."""

    def is_size(name: object, value: object) -> bool:
        values = value if isinstance(value, list) and name in names else [value]
        is_whole = all(type(each) is int and each > 0 for each in values)
        return isinstance(name, str) and bool(values) and is_whole

    metadata = snapshot.metadata.given.items()
    found = given or {name: value for name, value in metadata if is_size(name, value)}
    for name in names:
        if name not in found:
            path = snapshot.path
            raise ConfigError(
                f"{path} does not say its {name}: give a whole number as {path}@{name}=2, or "
                f'record with PYTRACER_METADATA={name}=2 or Tracer(metadata={{"{name}": 2}})'
            )
    return found


def variables_of(recorded: Sequence[Sizes], targets: Sequence[Sizes]) -> list[str]:
    """Return the variables in which recordings, or their steps, differ, in the order of `--at`."""
    names = [*targets[0]]
    for name in sorted({*recorded[0]}.intersection(*recorded) - {*names}):
        if len(values := {sizes[name] for sizes in recorded}) > 1:
            few = " and ".join(f"{value:,}" for value in sorted(values)[:2])
            raise ConfigError(f"recordings differ in {name} ({few}): give {name} with --at too")
    found = []
    for name in names:
        values = {sizes[name] for sizes in recorded}
        if len(values) > 1:
            found.append(name)
        elif other := {target[name] for target in targets} - values:
            raise PytracerError(
                f"all recordings have {name}={values.pop():,}, so the effect of "
                f"{name}={max(other):,} is unknown: add a recording with another {name}"
            )
    if found and not are_independent(recorded, found):
        raise PytracerError(
            f"{number(len(recorded), 'recording')} cannot tell {' and '.join(found)} apart: give "
            f"{len(found) + 1} that change one of them at a time"
        )
    return found


def are_independent(recorded: Sequence[Sizes], variables: Sequence[str]) -> bool:
    """Return whether recordings show the growth with each variable apart from the others."""
    points = points_of(recorded, variables)
    with_constant = np.column_stack([np.ones(len(points)), points / points.max(axis=0)])
    return bool(np.linalg.matrix_rank(with_constant, tol=1e-9) > len(variables))


def points_of(recorded: Sequence[Sizes], variables: Sequence[str]) -> Column:
    """Return the sizes as numbers: float64 of shape (recordings, variables)."""
    shape = (len(recorded), len(variables))
    return np.array([[each[name] for name in variables] for each in recorded], float).reshape(shape)


def sizes_text(sizes: Sizes) -> str:
    """Return sizes as text, as in "batch=16, length=4,096"."""
    return ", ".join(f"{name}={value:,}" for name, value in sizes.items())
