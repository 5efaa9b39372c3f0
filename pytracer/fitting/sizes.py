"""The sizes of a program's data, such as its batch: as people write them, and of recordings."""

import re
from collections.abc import Mapping, Sequence
from math import gcd
from pathlib import Path

import numpy as np

from pytracer.analysis.block_categories import block_categories
from pytracer.analysis.call_sites import call_sites, frame_at
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.requests import Recording
from pytracer.errors import ConfigError, PytracerError
from pytracer.fitting.growth import MOST_MULTIPLE, are_alike_rounded
from pytracer.reading.files import find, parse_place
from pytracer.reading.snapshot import Column, Snapshot
from pytracer.text import number

Sizes = dict[str, int]  # the size of each variable, as in {"batch": 2, "length": 4096}

MOST_VALUES = 1000  # the most sizes of a range

LEAST_MULTIPLE = 8  # from this multiple on, kernels are known to round sizes

GivenSizes = dict[str, int | list[int]]
"""The sizes of a recording. A list has the sizes of its complete steps, in order."""

_WHOLE = r"[1-9]\d{0,11}"
_SIZES = re.compile(rf"{_WHOLE}(?:/{_WHOLE})*")
_RANGE = re.compile(rf"({_WHOLE})(?:\.\.({_WHOLE})(?:\.\.({_WHOLE}))?)?")
_EXAMPLE = "give sizes such as batch=16,length=4096"


def parsed_file(text: str) -> tuple[Path, GivenSizes | None]:
    """Return the path of "a.pickle@batch=2,length=64/128" and its sizes; None: it has none.

    Raises:
        ConfigError: A size is no whole number greater than 0.
    """
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


def processes_of(texts: Sequence[str]) -> dict[str, list[tuple[Path, GivenSizes | None]]]:
    """Return the recordings of each process, such as "rank3", with their sizes as `parsed_file`.

    Args:
        texts: Files, which are of one process, "", or directories, of which each has a recording of
            each process.

    Raises:
        PytracerError: A directory does not.
    """
    named = [parsed_file(text) for text in texts]
    for path, _ in named:
        if sum(path == other for other, _ in named) > 1:
            raise ConfigError(f"{path} is given twice: give recordings at different sizes")
    if not any(path.is_dir() for path, _ in named):
        return {"": named}
    found = [_of_processes(path) for path, _ in named]
    for who in dict.fromkeys(who for each in found for who in each):
        for (path, _), each in zip(named, found, strict=True):
            if who not in each:
                raise PytracerError(
                    f"{path} has no recording of {who or 'one process'}, and others have: give "
                    "directories of equally many ranks, or files of one process"
                )
    return {
        who: [(each[who], sizes) for (_, sizes), each in zip(named, found, strict=True)]
        for who in found[0]
    }


def _of_processes(directory: Path) -> dict[str, Path]:
    """Return the recording of each process in a directory; files of steps and errors are none."""
    found: dict[str, Path] = {}
    for path in find([directory]):
        place = parse_place(path)
        if place.kind in ("", "exit") and found.setdefault(place.who, path) != path:
            raise PytracerError(
                f"{found[place.who]} and {path} are of one process, {place.who or 'without a rank'}"
                ": give the files of one run"
            )
    if not found:
        raise PytracerError(
            f"{directory} has files of steps or errors alone, and none of a whole program: record "
            "without a choice of steps"
        )
    return found


def parsed_target(text: str) -> dict[str, Sequence[int]]:
    """Return the values of each variable of a text such as "batch=8..32,length=4096".

    "8..32" means all numbers from 8 to 32, and "8..32..8" every eighth of them.

    Raises:
        ConfigError: The text has another form, or a range is empty.
    """
    found: dict[str, Sequence[int]] = {}
    for part in text.split(","):
        name, _, values = part.strip().partition("=")
        parsed = _RANGE.fullmatch(values)
        first, last, step = (int(each or 0) for each in parsed.groups()) if parsed else (0, 0, 0)
        if not name or name in found or first > (last or first) or not first:
            raise ConfigError(
                f'"{text}": {_EXAMPLE}, each name once; 8..32 and 8..32..8 are ranges'
            )
        found[name] = range(first, (last or first) + 1, step or 1)
    return found


def targets_of(values: Mapping[str, int | Sequence[int]]) -> list[Sizes]:
    """Return all combinations of the values, in their order.

    Raises:
        ConfigError: There are no values, too many, or one is no whole number greater than 0.
    """
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


def sizes_of(
    recorded: Sequence[tuple[Snapshot, Recording]],
    given: Sequence[GivenSizes | None],
    names: Sequence[str],
) -> list[GivenSizes]:
    """Return the sizes of each recording: those given with its name, or else of its metadata.

    Raises:
        ConfigError: One of the `names` has no size.
    """
    found = []
    for (snapshot, _), sizes in zip(recorded, given, strict=True):
        known = {
            name: value
            for name, value in snapshot.metadata.given.items()
            if isinstance(name, str)
            and _are_sizes(value if isinstance(value, list) and name in names else [value])
        }
        found.append(known if sizes is None else sizes)
        for name in names:
            if name not in found[-1]:
                path, proposal = snapshot.path, _proposal(recorded, name)
                raise ConfigError(
                    f"{path} does not say its {name}: give a whole number as {path}@{name}=2, or "
                    f"record with PYTRACER_METADATA={name}=2 or "
                    f'Tracer(metadata={{"{name}": 2}}){proposal}'
                )
    return found


def _are_sizes(values: list[object]) -> bool:
    return bool(values) and all(type(value) is int and value > 0 for value in values)


def _proposal(recorded: Sequence[tuple[Snapshot, Recording]], name: str) -> str:
    """Return what the largest input of each recording shows of its size; "" for nothing.

    Bytes show only proportions, and not of what: the user decides.
    """
    inputs, where = [], ""
    for snapshot, recording in recorded:
        blocks = recording.history.blocks
        kinds = block_categories(snapshot, recording.device, recording.history)
        rows = np.flatnonzero(kinds.are(lambda category, _: category == "input"))
        if len(rows) == 0:
            return ""
        row = rows[np.argmax(blocks.requested_bytes[rows])]
        inputs.append(int(blocks.requested_bytes[row]))
        site = call_sites(snapshot.stacks)[blocks.stack[row]]
        where = where or call_site_text(frame_at(snapshot.stacks, int(site)))
    if len({*inputs}) == 1:
        return ""
    common = gcd(*inputs)
    files = " ".join(
        f"{snapshot.path}@{name}={size_bytes // common}"
        for (snapshot, _), size_bytes in zip(recorded, inputs, strict=True)
    )
    bytes_of = " and ".join(f"{size_bytes:,}" for size_bytes in inputs)
    return (
        f". Their largest inputs have {bytes_of} bytes ({where}). If they differ in {name} alone, "
        f"the sizes are {files}, or the same multiple of each"
    )


def variables_of(recorded: Mapping[str, Sizes], targets: Sequence[Sizes]) -> list[str]:
    """Return the variables in which recordings differ, in the order of `--at`.

    Args:
        recorded: The sizes of each recording, by path.
        targets: The sizes to predict.

    Raises:
        PytracerError: The recordings do not show how the program grows with a variable.
    """
    names = [*targets[0]]
    for path, sizes in recorded.items():
        first_path, first = next(iter(recorded.items()))
        for name in sorted(sizes.keys() & first.keys() - {*names}):
            if sizes[name] != first[name]:
                raise ConfigError(
                    f"{first_path} and {path} differ in {name} ({first[name]:,} and "
                    f"{sizes[name]:,}): give {name} with --at too"
                )
    found = []
    for name in names:
        values = {sizes[name] for sizes in recorded.values()}
        if len(values) > 1:
            found.append(name)
        elif other := {target[name] for target in targets} - values:
            raise PytracerError(
                f"all recordings have {name}={values.pop():,}, which does not show what changes at "
                f"{name}={max(other):,}: give a recording with another {name}"
            )
    if found and not are_independent(list(recorded.values()), found):
        raise PytracerError(
            f"{number(len(recorded), 'recording')} cannot tell {' and '.join(found)} apart: give "
            f"{len(found) + 1}, of which each differs from one of the others in one of them alone"
        )
    return found


def are_independent(recorded: Sequence[Sizes], variables: Sequence[str]) -> bool:
    """Return whether recordings show the growth with each variable apart from the others."""
    points = points_of(recorded, variables)
    with_constant = np.column_stack([np.ones(len(points)), points / points.max(axis=0)])
    return bool(np.linalg.matrix_rank(with_constant, tol=1e-9) > len(variables))


def unlike_sizes(recorded: Sequence[Sizes], variables: Sequence[str], target: Sizes) -> list[str]:
    """Return a sentence about each size that is no multiple of what divides all recorded ones.

    Kernels round lengths up, and convolutions halve them: recordings of even multiples alone do not
    show it, nor of one variable alone that is always rounded to the same.
    """
    found = []
    points = points_of(recorded, variables)
    if len(variables) == 1 and are_alike_rounded(points)[0]:
        (name,) = variables
        least = int(points[0, 0] - 1) // MOST_MULTIPLE * MOST_MULTIPLE
        if not least < target[name] <= least + MOST_MULTIPLE:
            found.append(
                f"All recordings have a {name} from {least + 1:,} to {least + MOST_MULTIPLE:,}: "
                f"what a kernel rounds up to a multiple of {MOST_MULTIPLE} seems to be constant."
            )
    for name in variables:
        common = gcd(*(sizes[name] for sizes in recorded))
        multiple = common & -common  # the power of two
        if multiple >= LEAST_MULTIPLE and target[name] % multiple:
            found.append(
                f"All recordings have a {name} that is a multiple of {multiple:,}, and "
                f"{target[name]:,} is none: kernels may round it, which they do not show."
            )
    return found


def points_of(recorded: Sequence[Sizes], variables: Sequence[str]) -> Column:
    """Return the sizes as numbers: float64 of shape (recordings, variables)."""
    shape = (len(recorded), len(variables))
    return np.array([[each[name] for name in variables] for each in recorded], float).reshape(shape)


def sizes_text(sizes: Sizes) -> str:
    """Return sizes as text, as in "batch=16, length=4,096"."""
    return ", ".join(f"{name}={value:,}" for name, value in sizes.items())
