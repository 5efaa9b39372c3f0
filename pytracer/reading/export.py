"""What the exports of snapshots to other formats share."""

import contextlib
import itertools
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pytracer.errors import PytracerError
from pytracer.reading.about import is_count
from pytracer.reading.files import SUFFIXES, Place
from pytracer.reading.history import ContradictionError, History, replay
from pytracer.reading.snapshot import Snapshot, Stacks


@dataclass(frozen=True)
class Origin:
    """Where a snapshot comes from.

    Attributes:
        name: Of its file, unique among those that are exported together.
        rank, pid: None: not known.
        step: Of all its events, if the file's name tells one and the file itself none.
        host: "": not known.
    """

    name: str
    rank: int | None
    step: int | None
    host: str
    pid: int | None


def origin(snapshot: Snapshot, name: str, place: Place) -> Origin:
    """What a snapshot, or else its file's name, tells of its origin."""
    about = snapshot.about
    rank, pid, host = about.get("rank"), about.get("pid"), about.get("host")
    return Origin(
        name=name,
        rank=rank if is_count(rank) else place.rank,
        step=place.first if place.first == place.last else None,
        host=host if isinstance(host, str) else "",
        pid=pid if is_count(pid) else None,
    )


def names(paths: Sequence[Path]) -> list[str]:
    """Names the files made of snapshots, each differently.

    The folders that they have in common are left out, and the others joined with dots:
    "step3.torch_memory_rank0_pid7".
    """
    absolute = [Path(os.path.abspath(path)) for path in paths]
    common = Path(os.path.commonpath([path.parent for path in absolute]))
    found: dict[str, None] = {}
    for path in absolute:
        text = ".".join(path.relative_to(common).parts)
        stem = next((text.removesuffix(each) for each in SUFFIXES if text.endswith(each)), text)
        name, number = stem, 1
        while name in found:
            number += 1
            name = f"{stem}_{number}"
        found[name] = None
    return list(found)


def histories(snapshot: Snapshot, without: str) -> tuple[list[History | None], list[str]]:
    """The histories of all devices with a trace, and why some have none.

    Args:
        snapshot: As `load` returns it.
        without: What is missing then, as in "no counters".
    """
    found: list[History | None] = []
    notes = [] if any(map(len, snapshot.traces)) else [f"{snapshot.path}: it has no events"]
    for device in range(len(snapshot.traces)):
        try:
            found.append(replay(snapshot, device))
        except ContradictionError as error:
            found.append(None)
            notes.append(f"{snapshot.path}: {without}: {error}")
    return found, notes


def stack_texts(
    stacks: Stacks, frames: Sequence[str], separator: str, outermost_first: bool = False
) -> list[str]:
    """Every distinct stack as one text, given those of the distinct frames."""
    of_stack, offsets = stacks.frame.tolist(), stacks.offsets.tolist()
    step = -1 if outermost_first else 1
    return [
        separator.join([frames[frame] for frame in of_stack[begin:end][::step]])
        for begin, end in itertools.pairwise(offsets)
    ]


_unfinished: set[Path] = set()


def remove_unfinished() -> None:
    """Removes what `whole` has begun: for a process that is about to end in the middle of it."""
    for path in tuple(_unfinished):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that appears under its name when it is complete, in place of an older one.

    What is there and no regular file (a pipe, `/dev/null`) is written to as it is.

    Raises:
        PytracerError: It cannot be written.
    """
    temporary = path.with_name(f".pytracer-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
    try:
        if path.exists() and not path.is_file():
            with open(path, "wb") as file:
                yield file
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        _unfinished.add(temporary)
        try:
            with open(temporary, "xb") as file:
                yield file
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            _unfinished.discard(temporary)
    except OSError as error:
        raise PytracerError(f"cannot write {path}: {error.strerror or error}") from error
