"""Files: finding snapshots, matching those of two directories, and reading sources.

The layout is that of `pytracer.tracing.snapshot_files`: verl's in a directory
(`step3/torch_memory_rank0_pid7.pickle`), or next to a file (`name.rank0.step3.pickle`).
"""

import contextlib
import os
import re
import select
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from pytracer.errors import PytracerError

SUFFIXES = (".pickle", ".pickle.gz", ".pickle.zst", ".pkl", ".pkl.gz", ".pkl.zst")
"""The suffixes of snapshots' names."""

FOLLOWS_NO_LINKS = "PYTRACER_FOLLOWS_NO_LINKS"
"""Variable that the agents' server sets for commands: what they read lies in the folder itself."""

_FOLDER_ALONE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PIPE_PATIENCE_S = 10
_MOST_SOURCE_BYTES = 2**20

# Numbers that fit into the columns of an exported table: 64 bits, and 32 bits for ranks.
_NUMBER = r"\d{1,18}"
_RANK = r"rank\d{1,9}"
_STEPS = rf"(?:step(?P<step>{_NUMBER})|steps(?P<first>{_NUMBER})-(?P<last>{_NUMBER}))"
_FOLDER = re.compile(rf"(?P<kind>exit)|{_STEPS}|(?P<timed>oom|demand|killed)_.+", re.DOTALL)
_IN_FOLDER = re.compile(r"torch_memory_(?P<who>.+)_pid\d+(?:_\d+)?", re.DOTALL)
_NEXT_TO_FILE = re.compile(  # matches any name
    rf"(?P<program>.*?)(?:\.(?P<who>{_RANK}))?(?:\.pid\d+)?"
    rf"(?:\.step(?P<step_of_phase>{_NUMBER})\.(?P<phase>.+)"
    rf"|(?:\.(?:{_STEPS}|(?P<kind>oom|demand|killed)-[\d-]+))?(?:_\d+)?)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Place:
    """The parts of a file's name that are the same in another run: no pid, no time.

    Attributes:
        program: The parts that do not belong to pytracer's layout: the folder that holds it, and
            `name` of `name.step3.pickle`.
        kind: "exit", "step", "oom", "demand" or "killed"; "" if unknown.
        first, last: The steps; None if `kind` is not "step".
        phase: The phase, as in "rollout", or "rollout_2" for its second occurrence in the step; ""
            if the file is not of one phase.
        who: The process: "rank3", or role and host of a process without a rank; "" if unknown.
    """

    program: str = ""
    kind: str = ""
    first: int | None = None
    last: int | None = None
    phase: str = ""
    who: str = ""

    @property
    def rank(self) -> int | None:
        """The process's rank; None if it has none, or the name does not contain it."""
        return int(self.who[4:]) if re.fullmatch(_RANK, self.who) else None

    def __str__(self) -> str:
        """Return the place as text, as in "step 3 rollout, rank 0"."""
        steps = f" {self.first}" if self.first == self.last else f"s {self.first}-{self.last}"
        when = f"step{steps}" if self.kind == "step" else self.kind
        who = f"rank {self.rank}" if self.rank is not None else self.who
        return ", ".join(filter(None, (self.program, f"{when} {self.phase}".strip(), who)))


OnError = Callable[[PytracerError], object]
"""Called with the error of a folder that cannot be searched."""


def find(paths: Iterable[Path], on_error: OnError | None = None) -> list[Path]:
    """Find snapshots.

    Args:
        paths: Files, which are returned as they are, and directories, which are searched
            recursively for regular files whose names end in `SUFFIXES`. Names that begin with a dot
            are left out, so that temporary files of snapshots being written are not found.
        on_error: Called for each folder inside a directory that cannot be searched. The others are
            searched nevertheless. None: such a folder raises the error.

    Returns:
        Each path once; those of a directory in natural order, step 2 before step 10.

    Raises:
        PytracerError: A path does not exist, cannot be searched, or contains no snapshots.
    """
    found: dict[Path, None] = {}
    for path in paths:
        try:
            is_directory = stat.S_ISDIR(path.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise PytracerError(
                f"{path} does not exist: give a snapshot or a directory of them"
            ) from error
        except OSError as error:
            raise PytracerError(f"cannot read {path}: {error.strerror}") from error
        inside = _inside(path, on_error) if is_directory else [path]
        if not inside:
            raise PytracerError(
                f"{path} contains no snapshots: their names end in {', '.join(SUFFIXES)}"
            )
        found.update(dict.fromkeys(inside))
    return list(found)


def parse_place(path: Path, root: Path | None = None) -> Place:
    """Return the place in the names of a file and of its folders below `root`."""
    *folders, name = path.absolute().parts if root is None else path.relative_to(root).parts
    parts = _IN_FOLDER.fullmatch(without_suffix(name))
    if parts is None:
        parts = _NEXT_TO_FILE.fullmatch(without_suffix(name))
        assert parts is not None
        first, last = _steps(parts["step"] or parts["step_of_phase"], parts["first"], parts["last"])
        program, kind = "/".join([*folders, parts["program"]]), parts["kind"]
        phase, who = parts["phase"] or "", parts["who"] or ""
    else:
        who, phase = parts["who"], ""
        if len(folders) > 1 and _is_folder(folders[-2]) and not _is_folder(folders[-1]):
            phase = folders.pop()
        folder = _FOLDER.fullmatch(folders[-1]) if folders else None
        if folder is None:
            return Place("/".join(folders), who=who)
        first, last = _steps(folder["step"], folder["first"], folder["last"])
        program, kind = "/".join(folders[:-1]), folder["kind"] or folder["timed"]
        if kind == "oom":
            who = who.removeprefix("oom_")
    return Place(program, kind or ("step" if first is not None else ""), first, last, phase, who)


def run_folder(path: Path) -> Path:
    """Return the folder that holds the files of a run: `run7` of `run7/step3/…_rank0_pid7.pickle`.

    For a file with another name it is the folder of the file.
    """
    if _IN_FOLDER.fullmatch(without_suffix(path.name)):
        return Path("/", parse_place(path).program.lstrip("/"))
    return path.parent


def without_suffix(name: str) -> str:
    """Return the name of a snapshot's file without its suffix, if it has one of `SUFFIXES`."""
    return name.removesuffix(next((end for end in SUFFIXES if name.endswith(end)), ""))


def _is_folder(name: str) -> bool:
    return _FOLDER.fullmatch(name) is not None


def _steps(step: str | None, first: str | None, last: str | None) -> tuple[int | None, int | None]:
    if step is not None:
        return int(step), int(step)
    return (int(first), int(last)) if first and last else (None, None)


@dataclass(frozen=True)
class MatchedFiles:
    """The files of two directories, matched by their places.

    Attributes:
        pairs: Each file of the first directory with the file of the second one that has the same
            place, in the first's order, with the first's place.
        only_first, only_second: The files without a match in the other directory.
    """

    pairs: list[tuple[Place, Path, Path]]
    only_first: list[Path]
    only_second: list[Path]


def match(first: Path, second: Path, on_error: OnError | None = None) -> MatchedFiles:
    """Match the snapshots of two directories by their places.

    Several files of one place (such as out-of-memory errors) are matched in order. A run may be
    repeated under another name or on another host: so the program is ignored if a directory
    has only one, and so are role and host of processes without a rank, if these files have no
    match and both directories have equally many of them for the place.

    `on_error` and the errors are those of `find`.
    """
    left = [_places(root, on_error) for root in (first, second)]
    pairs: list[tuple[Place, Path, Path]] = []
    for is_exact in (True, False):
        same: dict[Place, tuple[list[Path], list[Path]]] = defaultdict(lambda: ([], []))
        for side, places in enumerate(left):
            for path, place in places.items():
                if is_exact or place.rank is None:
                    same[place if is_exact else replace(place, who="")][side].append(path)
        for place, (before, after) in same.items():
            if is_exact or len(before) == len(after):
                pairs += ((place, *pair) for pair in zip(before, after, strict=False))
        matched = {path for _, *two in pairs for path in two}
        left = [{path: each[path] for path in each if path not in matched} for each in left]
    return MatchedFiles(sorted(pairs, key=lambda pair: _natural(pair[1])), *map(list, left))


def _places(root: Path, on_error: OnError | None) -> dict[Path, Place]:
    """Return the places of the files in a directory, in the order of `find`."""
    found = {path: parse_place(path, root) for path in find([root], on_error)}
    if len({place.program for place in found.values()}) == 1:
        found = {path: replace(place, program="") for path, place in found.items()}
    return found


def _inside(directory: Path, on_error: OnError | None) -> list[Path]:
    def failed(error: OSError) -> None:
        problem = PytracerError(f"cannot search {error.filename}: {error.strerror}")
        if on_error is None or error.filename == os.fspath(directory):
            raise problem from error
        on_error(problem)

    found = []
    for folder, folders, names in os.walk(directory, onerror=failed):
        folders[:] = [name for name in folders if not name.startswith(".")]
        named = (name for name in names if name.endswith(SUFFIXES) and not name.startswith("."))
        found += [path for path in (Path(folder, name) for name in named) if not is_special(path)]
    return sorted(found, key=_natural)


def is_special(path: "os.PathLike[str]") -> bool:
    """Return whether a file, or what a link leads to, is neither a regular file nor unknown.

    With `FOLLOWS_NO_LINKS`, a link is special, too.

    Opening a FIFO waits for its other end. Whoever may write to a folder can put one there. A file
    whose kind is unknown, such as a link to a missing one, is no special file: reading it fails.
    """
    try:
        info = os.stat(path, follow_symlinks=FOLLOWS_NO_LINKS not in os.environ)
        return not stat.S_ISREG(info.st_mode)
    except OSError:
        return False


def open_snapshot(path: "str | os.PathLike[str]") -> BinaryIO:
    """Open a file for reading. Where `FOLLOWS_NO_LINKS` is set, it is regular and behind no link.

    Raises:
        OSError: It cannot be opened.
        PytracerError: Nobody writes to the named pipe that it is.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    is_strict = FOLLOWS_NO_LINKS in os.environ
    with contextlib.ExitStack() as folders:
        at, name = None, os.fspath(path)
        if is_strict:
            *above, name = os.path.abspath(path).split("/")
            for folder in above:
                at = os.open(folder or "/", _FOLDER_ALONE, dir_fd=at)
                folders.callback(os.close, at)
            flags |= os.O_NOFOLLOW
        file = os.open(name, flags, dir_fd=at)
    try:
        mode = os.fstat(file).st_mode
        if is_strict and not stat.S_ISREG(mode):
            raise PytracerError(f"cannot read {path}: it is not a regular file")
        # A program that writes to a named pipe may come later; that to another one is there.
        if stat.S_ISFIFO(mode) and not os.path.realpath(path).startswith("/proc/"):
            pipe = select.poll()
            pipe.register(file, select.POLLIN)
            if not pipe.poll(1000 * _PIPE_PATIENCE_S):
                raise PytracerError(f"cannot read {path}: no program writes to this pipe")
        os.set_blocking(file, True)
        return open(file, "rb", buffering=0)
    except BaseException:
        os.close(file)
        raise


def _natural(path: Path) -> list[list[str | int]]:
    """Return a key that sorts numbers in names by value."""
    return [
        [int(text) if text.isdecimal() else text for text in re.split(r"(\d+)", part)]
        for part in path.parts
    ]


def read_source(filename: str, until_ns: int) -> list[str]:
    """Return the lines of a source file; [] if there is no such file that may be read.

    A snapshot's author chooses the names of files in it. So only regular files named `*.py` with an
    absolute path, of at most 1 MiB, are read.

    Args:
        until_ns: The time in ns since the epoch after which the file must not have been changed,
            because its lines may be others now.
    """
    if not os.path.isabs(filename) or not filename.endswith(".py"):
        return []
    try:
        found = os.stat(filename)
        is_usable = stat.S_ISREG(found.st_mode) and found.st_size <= _MOST_SOURCE_BYTES
        if not is_usable or found.st_mtime_ns > until_ns:
            return []
        return Path(filename).read_text(errors="replace").splitlines()
    except (OSError, ValueError):  # a name with a null character
        return []
