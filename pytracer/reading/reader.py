"""Loading of snapshot files. Nothing in a file is executed, whoever wrote it."""

import gzip
import io
import os
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pytracer.errors import PytracerError
from pytracer.reading import _reader
from pytracer.reading.files import open_snapshot
from pytracer.reading.metadata import file_metadata
from pytracer.reading.snapshot import (
    Allocations,
    Blocks,
    Segments,
    Snapshot,
    Stacks,
    Trace,
    compress_constant,
)

# The message to the user, by the kind of `_reader.ReadError`.
_MESSAGES = {
    "truncated": "{path} is cut short: {what}; copy or dump it again",
    "damaged": "{path} is damaged, or not a memory snapshot: {what}",
    "refused": (
        "{path} is refused: {what}, but a memory snapshot holds only containers, numbers and "
        "strings; load this file with pickle only if you trust it"
    ),
    "not a snapshot": (
        "{path} is a pickle but not a memory snapshot: {what}; a snapshot is a dict with the keys "
        "'segments' and 'device_traces', or before torch 2.0 a list of segments"
    ),
    "not a pickle": (
        "{path} is not a memory snapshot: give a file that pytracer, or torch's "
        "`torch.cuda.memory._dump_snapshot`, has written"
    ),
    "too large": (
        "{path} is refused: reading it takes {what}, over {times} times the file's size. A "
        "snapshot written by a recorder never needs that much{remedy}"
    ),
}

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZIP = b"PK\x03\x04"

# Compression shrinks snapshots 5- to 30-fold. A file that grows far more was made to fill memory.
_MOST_GROWTH = 200

# The limit of the memory that reading may take, in times the file's size, plus a constant for small
# files. Snapshots take up to 3 times their content's size, lists of annotations 13 times.
_MOST_MEMORY = 20
_MOST_MEMORY_COMPRESSED = 300
_SPARE_BYTES = 16 * 2**20

# The memory that loading and analysing a regular file takes, in times the file's size.
_USUAL_MEMORY = 4
_USUAL_MEMORY_COMPRESSED = 60


def load(source: str | Path | bytes, name: str = "the snapshot") -> Snapshot:
    """Load a memory snapshot, written by pytracer or by PyTorch's own recorder.

    Files of torch 1.13 and newer, of torch_npu and of pytracer are read, in pickle protocols 2 to
    5, uncompressed or compressed with gzip or zstd (which needs pyarrow), whatever the file's name.
    The memory needed is about the size of the uncompressed file. Control-C ends the reading.

    Args:
        source: The file, or its content.
        name: How messages name the content.

    Returns:
        The snapshot's columns.

    Raises:
        PytracerError: The file cannot be read, is cut short, is damaged (the message has the
            position, in bytes of the uncompressed content), is not a memory snapshot, takes more
            memory than the limit (20 times the file's size, 300 times if it is compressed, plus
            16 MiB), or contains anything but builtin containers, numbers and strings. Loading such
            a file with pickle would run the code that the file names.
    """
    path = name if isinstance(source, bytes) else str(source)
    times = 0
    try:
        with (
            io.BytesIO(source) if isinstance(source, bytes) else open_snapshot(source) as raw,
            io.BufferedReader(counted := _Counted(raw)) as file,
            _decompressed(file, counted, path) as content,
        ):
            times = _MOST_MEMORY if content is file else _MOST_MEMORY_COMPRESSED
            tables = _read(content, lambda: _SPARE_BYTES + times * counted.bytes)
    except _reader.ReadError as error:
        kind, what = error.args
        remedy = "; decompress it yourself if you trust it" if times > _MOST_MEMORY else ""
        message = _MESSAGES[kind].format(path=path, what=what, times=times, remedy=remedy)
        raise PytracerError(message) from None
    except EOFError as error:  # of gzip
        raise PytracerError(f"{path} is cut short: copy or dump it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise PytracerError(f"{path} is damaged: {error}") from error
    except OSError as error:
        if error.errno is None:  # of zstd
            raise PytracerError(f"{path} is damaged: {error}") from error
        raise PytracerError(f"cannot read {path}: {error.strerror}") from error
    except MemoryError as error:
        raise PytracerError(f"{path} does not fit into this machine's memory") from error
    return _snapshot(path, tables)


def _read(content: Any, allowed_bytes: Callable[[], int]) -> dict[str, Any]:
    try:
        return _reader.read(content, allowed_bytes)
    except _reader.ExitingError:
        # A thread that waits for the GIL in Python code which C++ code calls would end the process.
        content = io.BytesIO(content.read())
        return _reader.read(content, allowed_bytes().__index__)


def estimated_bytes(path: Path) -> int:
    """Estimate the memory that loading and analysing a file takes; 0 if it is not a file."""
    try:
        if not os.path.isfile(path):
            return 0
        with open(path, "rb") as file:
            begin = file.read(4)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return 0  # `load` will raise the error
    return usual_bytes(size, begin.startswith((_GZIP, _ZSTD)))


def usual_bytes(size_bytes: int, is_compressed: bool) -> int:
    """Estimate the memory that loading and analysing a file of a size takes."""
    return size_bytes * (_USUAL_MEMORY_COMPRESSED if is_compressed else _USUAL_MEMORY)


class _Counted(io.RawIOBase):
    """A file that counts the bytes read from it, because a pipe cannot tell its position."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(buffer)
        self.bytes += count
        return count


class _Bounded(io.RawIOBase):
    """A decompressed file whose growth is limited."""

    def __init__(self, content: Any, compressed: _Counted, path: str) -> None:
        self._content = content
        self._compressed = compressed
        self._path = path
        self._bytes = 0

    def readinto(self, buffer: Any) -> int:
        count: int = self._content.readinto(buffer)
        self._bytes += count
        if self._bytes > _MOST_GROWTH * (self._compressed.bytes + 2**16):
            raise PytracerError(
                f"{self._path} is refused: it grows more than {_MOST_GROWTH}-fold when it is "
                "decompressed; decompress it yourself if you trust it"
            )
        return count

    def close(self) -> None:
        self._content.close()
        super().close()


def _decompressed(file: "io.BufferedReader[_Counted]", counted: _Counted, path: str) -> Any:
    """Return `file`, or a decompressor of it, chosen by the file's first bytes."""
    begin = file.peek(4)[:4]
    if begin[:2] == _GZIP:
        return _Bounded(gzip.GzipFile(fileobj=file), counted, path)
    if begin == _ZIP:
        raise PytracerError(
            f"{path} is a zip file, such as a checkpoint of torch.save, not a memory snapshot"
        )
    if begin == _ZSTD:
        try:
            import pyarrow
        except ImportError as error:
            raise PytracerError(
                f"{path} is compressed with zstd, which needs pyarrow: decompress the file, or "
                "`pip install pyarrow`"
            ) from error
        return _Bounded(pyarrow.CompressedInputStream(file, "zstd"), counted, path)
    return file


def _snapshot(path: str, tables: dict[str, Any]) -> Snapshot:
    strings = tables["strings"]
    metadata = file_metadata(_checked(path, tables, "pytracer", dict))
    segment_rows, block_rows = tables["device_segments"], tables["device_blocks"]
    segments = Segments(*(column[segment_rows] for column in tables["segments"]))
    blocks = Blocks(*(column[block_rows] for column in tables["blocks"]))
    offsets = np.concatenate((np.zeros(1, np.int64), tables["stack_ends"]))
    stacks: list[Any] = [offsets, tables["stack_frames"], *tables["frames"]]
    stacks += [*tables["stack_backward"], strings, metadata.torch_folders]
    events = [compress_constant(column) for column in tables.pop("events")]
    missing = Allocations(*tables["allocations"])
    return Snapshot(
        path=path,
        traces=tuple(
            Trace(*(column[rows] for column in events), missing=missing.within(rows))
            for rows in tables["traces"]
        ),
        segments=replace(segments, first_block=segments.first_block - block_rows.start),
        blocks=replace(blocks, segment=blocks.segment - segment_rows.start),
        stacks=Stacks(*stacks),
        strings=strings,
        pools=np.column_stack(tables["pools"]),
        actions=tables["actions"],
        allocator_settings=_checked(path, tables, "allocator_settings", dict),
        external_annotations=_checked(path, tables, "external_annotations", list),
        metadata=metadata,
        unknown_keys=tuple(sorted(map(".".join, tables["unknown_keys"]))),
        host_device=None if tables["host_device"] < 0 else tables["host_device"],
    )


def _checked(path: str, tables: dict[str, Any], name: str, kind: type) -> Any:
    value = tables[name]
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise PytracerError(f"{path} is damaged: {name} is a {type(value).__name__}")
    return value
