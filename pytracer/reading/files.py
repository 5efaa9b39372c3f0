"""Which files are snapshots, and which of them belong together.

The layout is pytracer's, which is verl's (`pytracer.output` has the table of names): in a
directory `step3/torch_memory_rank0_pid7.pickle`, beside a file `name.rank0.step3.pickle`.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytracer.errors import PytracerError

SUFFIXES = (".pickle", ".pickle.gz", ".pickle.zst", ".pkl", ".pkl.gz", ".pkl.zst")
"""How the names of snapshots end."""

_STEPS = r"(?:step(?P<step>\d+)|steps(?P<first>\d+)-(?P<last>\d+))"
_FOLDER = re.compile(rf"(?P<kind>exit)|{_STEPS}|(?P<timed>oom|demand)_.+")
_IN_FOLDER = re.compile(r"torch_memory_(?P<who>.+)_pid\d+(?:_\d+)?")
_BESIDE = re.compile(
    r"(?P<program>.+?)(?:\.(?P<who>rank\d+))?(?:\.pid\d+)?"
    r"(?:\.step(?P<step_of_phase>\d+)\.(?P<phase>.+)"
    rf"|(?:\.(?:{_STEPS}|(?P<kind>oom|demand)-[\d-]+))?(?:_\d+)?)"
)


@dataclass(frozen=True)
class Place:
    """What a file's name says of it that is the same in another run: no pid, no time.

    Attributes:
        program: What is not of pytracer's layout: the folder that holds it, and the `name` of
            `name.step3.pickle`.
        kind: "exit", "step", "oom" or "demand"; "": the name does not tell.
        first, last: The steps; None if `kind` is not "step".
        phase: "rollout", "rollout_2": the second time in the step. "": the file is of no phase.
        who: "rank3"; of a process without a rank its role and host; "": the name does not tell.
    """

    program: str = ""
    kind: str = ""
    first: int | None = None
    last: int | None = None
    phase: str = ""
    who: str = ""

    @property
    def rank(self) -> int | None:
        """The process's rank; None: it has none, or the name does not tell."""
        return int(self.who[4:]) if re.fullmatch(r"rank\d+", self.who) else None

    def __str__(self) -> str:
        """As in "step 3 rollout, rank 0"."""
        when = self.kind
        if self.kind == "step":
            when = (
                f"step {self.first}"
                if self.first == self.last
                else f"steps {self.first}-{self.last}"
            )
        who = f"rank {self.rank}" if self.rank is not None else self.who
        return ", ".join(filter(None, (self.program, f"{when} {self.phase}".strip(), who)))


def find(paths: Iterable[Path]) -> list[Path]:
    """Finds snapshots.

    Args:
        paths: Files, which are taken as they are, and directories, which are searched with all
            that is in them for names that end in `SUFFIXES`. What begins with a dot is left out
            there, so also the temporary files of snapshots that are being written.

    Returns:
        Each once; what is in a directory in natural order, step 2 before step 10.

    Raises:
        PytracerError: A path does not exist, cannot be searched, or has no snapshots in it.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise PytracerError(f"{path} does not exist: give a snapshot or a directory of them")
        inside = _inside(path) if path.is_dir() else [path]
        if not inside:
            raise PytracerError(
                f"{path} has no snapshots in it: their names end in {', '.join(SUFFIXES)}"
            )
        found.update(dict.fromkeys(inside))
    return list(found)


def place_of(path: Path, root: Path | None = None) -> Place:
    """What a file's name, with that of its folders below `root`, says of it."""
    *folders, name = path.absolute().parts if root is None else path.relative_to(root).parts
    stem = next((name.removesuffix(each) for each in SUFFIXES if name.endswith(each)), name)
    if (told := _IN_FOLDER.fullmatch(stem)) is None:
        return _beside(folders, stem)
    who = told["who"]
    phase = ""
    if len(folders) > 1 and _FOLDER.fullmatch(folders[-2]) and not _FOLDER.fullmatch(folders[-1]):
        phase = folders.pop()
    folder = _FOLDER.fullmatch(folders[-1]) if folders else None
    if folder is None:
        return Place("/".join(folders), who=who)
    if folder["timed"] == "oom":
        who = who.removeprefix("oom_")
    first, last = _steps(folder["step"], folder["first"], folder["last"])
    return Place(
        program="/".join(folders[:-1]),
        kind="step" if first is not None else folder["kind"] or folder["timed"],
        first=first,
        last=last,
        phase=phase,
        who=who,
    )


def _beside(folders: Sequence[str], stem: str) -> Place:
    told = _BESIDE.fullmatch(stem)
    assert told is not None  # it matches any name
    first, last = _steps(told["step"] or told["step_of_phase"], told["first"], told["last"])
    return Place(
        program="/".join([*folders, told["program"]]),
        kind="step" if first is not None else told["kind"] or "",
        first=first,
        last=last,
        phase=told["phase"] or "",
        who=told["who"] or "",
    )


def _steps(step: str | None, first: str | None, last: str | None) -> tuple[int | None, int | None]:
    if step is not None:
        return int(step), int(step)
    return (int(first), int(last)) if first and last else (None, None)


@dataclass(frozen=True)
class Matched:
    """The files of two directories.

    Attributes:
        pairs: Each file of the first directory with that of the second one that has its place, in
            the first's order; the place is the first's.
        only_first, only_second: Files that the other directory has no match for.
    """

    pairs: list[tuple[Place, Path, Path]]
    only_first: list[Path]
    only_second: list[Path]


def match(first: Path, second: Path) -> Matched:
    """Matches the snapshots of two directories by their places.

    Several of one place (of times that memory ran out, say) are matched in their order. The
    program does not count in a directory of one program alone, nor do role and host of processes
    without a rank where they match nothing and both directories have equally many such files for
    the place: a run may be repeated under another name or on another host.

    Raises:
        PytracerError: As for `find`.
    """
    places = [_places(root) for root in (first, second)]
    pairs: list[tuple[Place, Path, Path]] = []
    left: list[dict[Place, list[Path]]] = [{}, {}]
    for of in places[0].keys() | places[1].keys():
        one, other = (each.get(of, []) for each in places)
        both = min(len(one), len(other))
        pairs += ((of, *pair) for pair in zip(one, other, strict=False))
        left[0][of], left[1][of] = one[both:], other[both:]
    nobody = [_of_nobody(each) for each in left]
    for of in nobody[0].keys() & nobody[1].keys():
        one, other = nobody[0][of], nobody[1][of]
        if len(one) == len(other):
            pairs += ((of, *pair) for pair in zip(one, other, strict=True))
    matched = {path for _, *two in pairs for path in two}
    one, other = (
        sorted(
            (path for files in each.values() for path in files if path not in matched), key=_natural
        )
        for each in left
    )
    return Matched(sorted(pairs, key=lambda pair: _natural(pair[1])), one, other)


def _places(root: Path) -> dict[Place, list[Path]]:
    found = {path: place_of(path, root) for path in find([root])}
    if len({each.program for each in found.values()}) == 1:
        found = {path: replace(each, program="") for path, each in found.items()}
    places = defaultdict(list)
    for path, each in found.items():
        places[each].append(path)
    return places


def _of_nobody(places: dict[Place, list[Path]]) -> dict[Place, list[Path]]:
    """Files of processes without a rank, by place without role and host."""
    merged: dict[Place, list[Path]] = defaultdict(list)
    for each, files in places.items():
        if each.rank is None:
            merged[replace(each, who="")] += files
    return {each: sorted(files, key=_natural) for each, files in merged.items()}


def _inside(directory: Path) -> list[Path]:
    def fail(error: OSError) -> None:
        raise PytracerError(f"cannot search {error.filename}: {error.strerror}") from error

    found = []
    for folder, folders, names in os.walk(directory, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            Path(folder, name)
            for name in names
            if name.endswith(SUFFIXES) and not name.startswith(".")
        ]
    return sorted(found, key=_natural)


def _natural(path: Path) -> list[list[str | int]]:
    """Sorts numbers in names by their values."""
    return [
        [int(text) if text.isdecimal() else text for text in re.split(r"(\d+)", part)]
        for part in path.parts
    ]
