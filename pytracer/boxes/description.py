"""What a process says of itself in its box, typed and bounded where it is read.

A box is not trusted, whoever wrote it: any value may have any type, and any text may be a path. A
value of another type than its attribute is None, or its default. Only this module reads the JSON.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytracer import _core
from pytracer.boxes import places
from pytracer.errors import PytracerError
from pytracer.reading.metadata import FileMetadata, file_metadata
from pytracer.text import printable

_MOST_TEXT = 200  # characters of a text that is printed
_MOST_NAME = 150  # bytes of a name, which the event and the time follow; 255 are permitted
_MOST_PATH = 4096  # characters, as Linux permits
_MOST_NESTED = 20  # dicts and lists in each other that a snapshot gets
_DEPTH, _CONTEXT_ALL = 32, 3  # if the box does not say how much of a stack is shown


@dataclass(frozen=True)
class Description:
    """A description of a recorded process.

    Attributes:
        output: The folder of its output, without symbolic links; None: unknown.
        is_only_if_used: Whether a process that used no device leaves nothing.
        stack_depth, context, has_forward_stacks: How much of stacks is shown, as `_core.Box.view`
            takes it.
        about: The snapshot's metadata. `about.as_written` has only what a snapshot can hold.
        total_bytes: The sizes of accelerators, by index.
        kills: What `pytracer.tracing.host_memory.kills` said. The file may be any file.
        is_ray_worker: Whether Ray had started the process.
    """

    output: Path | None
    is_only_if_used: bool
    stack_depth: int
    context: int
    has_forward_stacks: bool
    about: FileMetadata
    total_bytes: dict[int, int]
    kills: tuple[str, int] | None
    is_ray_worker: bool
    _path: tuple[str, str]  # before and after the event and the time

    @property
    def who(self) -> str:
        """The process, as in "rank 3 (process 7 of host)"."""
        host = "an unknown host" if self.about.host is None else shown(self.about.host)
        who = f"process {'?' if self.about.pid is None else self.about.pid} of {host}"
        return who if self.about.rank is None else f"rank {self.about.rank} ({who})"

    @property
    def accelerator(self) -> str:
        """The name of the accelerators, as in "cuda"."""
        names = (name for name in self.about.backends or () if name != "cpu")
        return shown(next(names, "device"))

    def file(self, event: str, when: str) -> Path:
        """Return the name of a file about the process, with at most one folder of its own.

        The process says only what its other files are called, not where they are.
        """
        before, after = self._path
        if "/" in after:
            return Path(f"{event}_{when}", f"{_name(after.strip('/'))}.pickle")
        suffix = ".pkl" if after == ".pkl" else ".pickle"
        return Path(f"{_name(before.rstrip('.'))}.{event}-{when}{suffix}")


def described(text: bytes) -> Description | None:
    """Return the description that is written in a box; None: the process has written all.

    Raises:
        ValueError: It is damaged.
    """
    if not text:
        return None
    try:
        written = _bounded(json.loads(text.decode(errors="replace")), _MOST_NESTED)
    except RecursionError:
        written = None
    if not isinstance(written, dict):
        raise ValueError("its description is not a JSON object")
    recording, kills = _list(written.get("recording"), 3), _list(written.get("cgroup"), 2)
    depth, context, forward = recording
    sizes = written.get("devices")
    path = [each if isinstance(each, str) else "" for each in _list(written.get("path"), 3)]
    about = written.get("metadata")
    return Description(
        output=_folder(written.get("folder")),
        is_only_if_used=written.get("only_if_used") is True,
        stack_depth=_in_range(depth, _core.MAX_STACK_DEPTH) or _DEPTH,
        context=_CONTEXT_ALL if (given := _in_range(context, _CONTEXT_ALL)) is None else given,
        has_forward_stacks=forward is True,
        about=file_metadata(about if isinstance(about, dict) else {}),
        total_bytes=dict(_sizes(sizes) if isinstance(sizes, dict) else ()),
        kills=(kills[0], kills[1]) if [*map(type, kills)] == [str, int] else None,
        is_ray_worker=written.get("is_ray_worker") is True,
        _path=(path[0], path[2]),
    )


def shown(text: str) -> str:
    """Return a text of a box as it is printed."""
    return printable(text[:_MOST_TEXT])


def _name(text: str) -> str:
    """Return a text as a part of a file's name."""
    text = text.removesuffix(".pickle").lstrip(".")
    text = "".join(c if c.isprintable() and c not in "/\\" else "_" for c in text)
    return text.encode()[:_MOST_NAME].decode(errors="ignore") or "torch_memory"


def _folder(written: object) -> Path | None:
    if not isinstance(written, str) or not os.path.isabs(written) or len(written) > _MOST_PATH:
        return None
    try:
        return Path(os.path.realpath(written))
    except (OSError, ValueError):  # no path can be this text
        return None


def _sizes(written: dict[str, Any]) -> Any:
    for index, size in written.items():
        total_bytes = size.get("total_bytes") if isinstance(size, dict) else None
        if re.fullmatch("[0-9]{1,3}", index) and type(total_bytes) is int and total_bytes >= 0:
            yield int(index), total_bytes


def _list(written: object, length: int) -> list[Any]:
    if isinstance(written, list) and len(written) == length:
        return written
    return [None] * length


def _in_range(written: object, most: int) -> int | None:
    return written if type(written) is int and 0 <= written <= most else None


def _bounded(value: Any, nested: int) -> Any:
    """Return a value without what no snapshot can hold: other integers, and too many levels."""
    if isinstance(value, dict):
        return {k: _bounded(v, nested - 1) for k, v in value.items()} if nested else None
    if isinstance(value, list):
        return [_bounded(each, nested - 1) for each in value] if nested else None
    return None if isinstance(value, int) and abs(value) >= 2**63 else value


class DamagedBoxError(PytracerError):
    """A box cannot be read by anybody, whatever this process may do."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[_core.Box, Description] | None]:
    """Open a box of this user's, with what its process said last; None: nothing is left to say.

    Raises:
        OSError: It cannot be read, or is not a regular file of this user's.
        DamagedBoxError: It is not a box, is one of another version, or is damaged.
    """
    file = places.open_box(path)
    try:
        if os.fstat(file).st_size == 0:  # the process had not begun, or see `places.empty`
            yield None
            return
        try:
            box = _core.Box(file)
            description = described(box.description)
        except (PytracerError, ValueError) as error:
            raise DamagedBoxError(str(error)) from error
        yield None if description is None else (box, description)
    finally:
        os.close(file)
