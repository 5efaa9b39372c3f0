"""Loads a snapshot file. Nothing in the file is executed, whoever wrote it."""

import gzip
import io
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pytracer.errors import PytracerError
from pytracer.reading import _reader
from pytracer.reading.snapshot import Blocks, Segments, Snapshot, Stacks, Trace, lean

# What follows for who reads the message, by the kind of `_reader.ReadError`.
_MESSAGES = {
    "cut short": "{path} is cut short: {what}; copy or dump it again",
    "damaged": "{path} is damaged, or no memory snapshot: {what}",
    "refused": (
        "{path} is refused: {what}, and a memory snapshot holds nothing but containers, numbers "
        "and strings; do not load this file with pickle either unless you trust it"
    ),
    "not a snapshot": (
        "{path} is a pickle but no memory snapshot: {what}; a snapshot is a dict with the keys "
        "'segments' and 'device_traces', or before torch 2.0 a list of segments"
    ),
}

# Snapshots shrink 5- to 30-fold. What grows more than this is made to fill the memory.
_MOST_GROWTH = 200


def load(source: str | Path | bytes) -> Snapshot:
    """Loads a memory snapshot, written by pytracer or by PyTorch's own recorder.

    Reads what torch 1.13 and newer and torch_npu write, and pytracer itself, in pickle protocols 2
    to 5, as it is or compressed by gzip or zstd (which needs pyarrow), whatever the file's name. It
    takes about as much memory as the file has bytes when it is not compressed.

    Args:
        source: The file, or its content.

    Returns:
        The snapshot's columns.

    Raises:
        PytracerError: The file cannot be read, is cut short, is damaged (the message tells where,
            in bytes of what is not compressed), is no memory snapshot, or asks for anything but
            builtin containers, numbers and strings. That is refused: loading it with pickle would
            run code of the file's choosing.
    """
    path = "the snapshot" if isinstance(source, bytes) else str(source)
    try:
        with (
            io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file,
            _decompressed(file, path) as content,
        ):
            tables = _reader.read(content)
    except _reader.ReadError as error:
        kind, what = error.args
        raise PytracerError(_MESSAGES[kind].format(path=path, what=what)) from None
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


class _Bounded(io.RawIOBase):
    """A decompressed file that may not grow without end."""

    def __init__(self, content: Any, compressed: io.BytesIO | io.BufferedReader, path: str) -> None:
        self._content = content
        self._compressed = compressed
        self._path = path
        self._bytes = 0

    def readinto(self, buffer: Any) -> int:
        count: int = self._content.readinto(buffer)
        self._bytes += count
        if self._bytes > _MOST_GROWTH * (self._compressed.tell() + 2**16):
            raise PytracerError(
                f"{self._path} is refused: it grows more than {_MOST_GROWTH}-fold when it is "
                "decompressed; decompress it yourself if you trust it"
            )
        return count

    def close(self) -> None:
        self._content.close()
        super().close()


def _decompressed(file: io.BytesIO | io.BufferedReader, path: str) -> Any:
    """`file`, or what reads through its compression, which its first bytes tell."""
    begin = file.getvalue()[:4] if isinstance(file, io.BytesIO) else file.peek(4)[:4]
    if begin[:2] == b"\x1f\x8b":
        return _Bounded(gzip.GzipFile(fileobj=file), file, path)
    if begin == b"\x28\xb5\x2f\xfd":
        try:
            import pyarrow
        except ImportError as error:
            raise PytracerError(
                f"{path} is compressed by zstd, which takes pyarrow to read: decompress it, or "
                "`pip install 'torch-pytracer[arrow]'`"
            ) from error
        return _Bounded(pyarrow.CompressedInputStream(file, "zstd"), file, path)
    return file


def _snapshot(path: str, tables: dict[str, Any]) -> Snapshot:
    strings = tables["strings"]
    filename, name, line = tables["frames"]
    segment_rows, block_rows = tables["device_segments"], tables["device_blocks"]
    segments = Segments(*(column[segment_rows] for column in tables["segments"]))
    blocks = Blocks(*(column[block_rows] for column in tables["blocks"]))
    events = [lean(column) for column in tables.pop("events")]
    return Snapshot(
        path=path,
        traces=tuple(Trace(*(column[rows] for column in events)) for rows in tables["traces"]),
        segments=replace(segments, first_block=segments.first_block - block_rows.start),
        blocks=replace(blocks, segment=blocks.segment - segment_rows.start),
        stacks=Stacks(
            offsets=np.concatenate((np.zeros(1, np.int64), tables["stack_ends"])),
            frame=tables["stack_frames"],
            filename=filename,
            name=name,
            line=line,
            strings=strings,
        ),
        strings=strings,
        pools=tables["pools"].reshape(-1, 2),
        actions=tables["actions"],
        allocator_settings=_plain(path, tables, "allocator_settings", dict),
        external_annotations=_plain(path, tables, "external_annotations", list),
        about=_plain(path, tables, "pytracer", dict),
        unknown_keys=tables["unknown_keys"],
    )


def _plain(path: str, tables: dict[str, Any], name: str, kind: type) -> Any:
    value = tables[name]
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise PytracerError(f"{path} is damaged: {name} is a {type(value).__name__}")
    return value
