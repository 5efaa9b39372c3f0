"""Snapshots as tables, for DuckDB, pandas, Spark and Ray: Parquet, or Arrow's IPC format.

Two tables, `events` and `blocks`, each of one file a snapshot. Rows are written in groups, and
texts (stacks, names) are kept once: memory grows with the columns, never with an object an event.
"""

import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from pytracer.errors import PytracerError
from pytracer.reading.devices import backend
from pytracer.reading.export import Origin, histories, stack_texts, whole
from pytracer.reading.history import History
from pytracer.reading.periods import step_marks
from pytracer.reading.sites import call_sites
from pytracer.reading.snapshot import NO_TIME, Column, Snapshot

Format = Literal["parquet", "arrow"]

ROWS = 1 << 17
"""Of a row group, or record batch."""

_ORIGIN = {
    "snapshot": "text",
    "rank": "int32",
    "host": "text",
    "pid": "int64",
    "backend": "text",
    "device": "int32",
}
EVENTS = {
    **_ORIGIN,
    "event": "int64",
    "time": "time",
    "step": "int64",
    "phase": "text",
    "action": "text",
    "address": "int64",
    "size_bytes": "int64",
    "stream": "int64",
    "pool": "text",
    "site": "text",
    "stack": "text",
    "compile_context": "text",
    "requested_bytes": "int64",
    "allocated_bytes": "int64",
    "active_bytes": "int64",
    "reserved_bytes": "int64",
}
"""The columns of `events`, and their kinds: "text" is a dictionary's, "time" in UTC."""
BLOCKS = {
    **_ORIGIN,
    "address": "int64",
    "size_bytes": "int64",
    "requested_bytes": "int64",
    "stream": "int64",
    "pool": "text",
    "site": "text",
    "stack": "text",
    "phase": "text",
    "step": "int64",
    "alloc_event": "int64",
    "free_requested_event": "int64",
    "free_event": "int64",
    "alloc_time": "time",
    "free_requested_time": "time",
    "free_time": "time",
}
"""The columns of `blocks`."""


@dataclass(frozen=True, eq=False)
class _Texts:
    """Texts that are referred to by index, each once, as pandas wants them of a dictionary."""

    distinct: Any  # a pyarrow array
    code: Column  # of each text, its index there


@dataclass(frozen=True, eq=False)
class _Coded:
    """A column of texts: which of them each row has, and whether it has any."""

    index: Column
    texts: _Texts
    is_null: Column | bool = False


Rows = Mapping[str, Any]  # _Coded for texts; else an array, masked where it is not known


def write_tables(snapshot: Snapshot, of: Origin, output: Path, file_format: Format) -> list[str]:
    """Writes `{output}/events/{name}.{format}` and `{output}/blocks/{name}.{format}`.

    Returns:
        What could not be told, a sentence each.

    Raises:
        PytracerError: pyarrow is not installed, or a file cannot be written.
    """
    tables = _Tables(snapshot, of)
    paths = [output / table / f"{of.name}.{file_format}" for table in ("events", "blocks")]
    with whole(paths[0]) as events, whole(paths[1]) as blocks:
        tables.write(events, file_format, EVENTS, tables.events())
        tables.write(blocks, file_format, BLOCKS, tables.blocks())
    return tables.notes


def pyarrow() -> Any:
    """The package, which is optional.

    Raises:
        PytracerError: It is not installed.
    """
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise PytracerError(
            f"tables need pyarrow ({error}): pip install 'torch-pytracer[arrow]'"
        ) from error


class _Tables:
    def __init__(self, snapshot: Snapshot, of: Origin) -> None:
        self._arrow = pyarrow()
        self._snapshot, self._of = snapshot, of
        self._histories, self.notes = histories(snapshot, "no blocks, and no bytes after events")
        stacks, strings = snapshot.stacks, snapshot.strings
        frames = [
            f"{strings[filename]}:{line} {strings[name]}"
            for filename, line, name in zip(
                stacks.filename.tolist(), stacks.line.tolist(), stacks.name.tolist(), strict=True
            )
        ]
        self._stacks = self._texts(stack_texts(stacks, frames, "\n"))
        self._sites, self._site_of = self._texts(frames), call_sites(stacks)
        self._strings = self._texts(strings)
        self._actions = self._texts(snapshot.actions)
        self._pools = self._texts(f"{high}.{low}" for high, low in snapshot.pools.tolist())
        self._name, self._host = self._texts([of.name]), self._texts([of.host])
        self._backends = self._texts(backend(snapshot, d) for d in range(len(snapshot.traces)))

    def events(self) -> Iterator[Rows]:
        for device, (trace, history) in enumerate(
            zip(self._snapshot.traces, self._histories, strict=True)
        ):
            step_of = self._steps(device)
            for begin in range(0, len(trace), ROWS):
                rows = slice(begin, begin + ROWS)
                event = np.arange(begin, min(begin + ROWS, len(trace)))
                yield {
                    **self._origin(device, len(event)),
                    "event": event,
                    "time": np.ma.masked_equal(trace.time_us[rows], NO_TIME),
                    "step": step_of(event),
                    "phase": _Coded(trace.user_metadata[rows], self._strings),
                    "action": _Coded(trace.action[rows], self._actions),
                    "address": trace.address[rows],
                    "size_bytes": trace.size_bytes[rows],
                    "stream": trace.stream[rows],
                    "pool": _Coded(trace.pool[rows], self._pools),
                    **self._stack(trace.stack[rows]),
                    "compile_context": _Coded(trace.compile_context[rows], self._strings),
                    **_levels(history, event),
                }

    def blocks(self) -> Iterator[Rows]:
        for device, history in enumerate(self._histories):
            if history is None:
                continue
            blocks, step_of = history.blocks, self._steps(device)
            time_us = self._snapshot.traces[device].time_us
            for begin in range(0, len(blocks), ROWS):
                rows = slice(begin, begin + ROWS)
                alloc, free_requested, free = (
                    np.ma.masked_where((column < 0) | (column >= len(time_us)), column)
                    for column in (
                        blocks.alloc_event[rows],
                        blocks.free_requested_event[rows],
                        blocks.free_event[rows],
                    )
                )
                is_older = np.ma.getmaskarray(alloc)
                yield {
                    **self._origin(device, len(alloc)),
                    "address": blocks.address[rows],
                    "size_bytes": np.ma.array(blocks.size_bytes[rows], mask=~blocks.is_sized[rows]),
                    "requested_bytes": blocks.requested_bytes[rows],
                    "stream": blocks.stream[rows],
                    "pool": _Coded(blocks.pool[rows], self._pools, is_older),
                    **self._stack(blocks.stack[rows]),
                    "phase": _Coded(blocks.user_metadata[rows], self._strings, is_older),
                    "step": step_of(blocks.alloc_event[rows]),
                    "alloc_event": alloc,
                    "free_requested_event": free_requested,
                    "free_event": free,
                    "alloc_time": _times(time_us, alloc),
                    "free_requested_time": _times(time_us, free_requested),
                    "free_time": _times(time_us, free),
                }

    def write(
        self, file: BinaryIO, file_format: Format, kinds: Mapping[str, str], groups: Iterator[Rows]
    ) -> None:
        pa = self._arrow
        types = {
            "text": pa.dictionary(pa.int32(), pa.string()),
            "time": pa.timestamp("us", tz="UTC"),
            "int32": pa.int32(),
            "int64": pa.int64(),
        }
        about = json.dumps(self._snapshot.about, default=str)
        schema = pa.schema(
            {name: types[kind] for name, kind in kinds.items()}, metadata={"pytracer": about}
        )
        if file_format == "arrow":
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            writer = pa.ipc.new_file(file, schema, options=options)
        else:
            texts = [name for name, kind in kinds.items() if kind == "text"]
            writer = pa.parquet.ParquetWriter(
                file,
                schema,
                compression="zstd",
                use_dictionary=texts,
                dictionary_pagesize_limit=1 << 30,  # beyond it each row would have its own text
            )
        with writer:
            for rows in groups:
                arrays = [
                    self._array(rows[field.name], field.type, file_format) for field in schema
                ]
                writer.write_batch(pa.record_batch(arrays, schema=schema))

    def _array(self, values: Any, kind: Any, file_format: Format) -> Any:
        pa = self._arrow
        if not isinstance(values, _Coded):
            mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
            return pa.array(np.ma.getdata(values), mask=mask).cast(kind)
        codes, texts = values.texts.code[values.index], values.texts.distinct
        if file_format == "parquet":  # each row group has a dictionary of its own: what it needs
            is_used = np.zeros(len(texts), bool)
            is_used[codes] = True
            codes = (np.cumsum(is_used, dtype=np.int32) - 1)[codes]
            texts = texts.take(np.flatnonzero(is_used))
        mask = np.broadcast_to(values.is_null, len(codes))
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=mask), texts)

    def _texts(self, texts: Iterable[str]) -> _Texts:
        codes: dict[str, int] = {}
        # What is no Unicode (lone surrogates, as in names of files) is replaced, as Arrow has none.
        valid = (text.encode(errors="replace").decode() for text in texts)
        code = np.array([codes.setdefault(text, len(codes)) for text in valid], np.int32)
        if not codes:  # index 0 is there, for rows that have none
            codes, code = {"": 0}, np.zeros(1, np.int32)
        return _Texts(self._arrow.array(list(codes), self._arrow.string()), code)

    def _origin(self, device: int, count: int) -> Rows:
        first = np.zeros(count, np.int32)
        return {
            "snapshot": _Coded(first, self._name),
            "rank": _constant(self._of.rank, count),
            "host": _Coded(first, self._host, not self._of.host),
            "pid": _constant(self._of.pid, count),
            "backend": _Coded(first + device, self._backends),
            "device": first + device,
        }

    def _stack(self, stack: Column) -> Rows:
        is_empty = stack == 0
        sites = np.where(is_empty, 0, self._site_of[stack])
        return {
            "site": _Coded(sites, self._sites, is_empty),
            "stack": _Coded(stack, self._stacks, is_empty),
        }

    def _steps(self, device: int) -> Callable[[Column], Any]:
        """What tells the steps of events."""
        marks = step_marks(self._snapshot, device)
        if not marks and self._of.step is not None:
            marks = [(self._of.step, 0)]
        steps = np.array([0, *(step for step, _ in marks)])
        firsts = np.array([first for _, first in marks])

        def steps_of(event: Column) -> Any:
            mark = np.searchsorted(firsts, event, side="right")
            return np.ma.array(steps[mark], mask=mark == 0)

        return steps_of


def _constant(value: int | None, count: int) -> Any:
    return np.ma.array(np.full(count, value or 0), mask=value is None)


def _levels(history: History | None, event: Column) -> Rows:
    if history is None:
        return dict.fromkeys(
            ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes"),
            _constant(None, len(event)),
        )
    levels, after = history.levels, event + 1
    is_guess = after < history.exact_from
    return {
        "requested_bytes": levels.requested_bytes[after],
        "allocated_bytes": np.ma.array(levels.allocated_bytes[after], mask=is_guess),
        "active_bytes": np.ma.array(levels.active_bytes[after], mask=is_guess),
        "reserved_bytes": levels.reserved_bytes[after],
    }


def _times(time_us: Column, event: Any) -> Any:
    """Of events, masked as they are and where the file does not tell."""
    if len(time_us) == 0:
        return _constant(None, len(event))
    found = time_us[event.filled(0)]
    return np.ma.array(found, mask=np.ma.getmaskarray(event) | (found == NO_TIME))
