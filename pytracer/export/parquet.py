"""Snapshots as tables in Parquet, for DuckDB, pandas, Spark and Ray.

There are two tables, `events` and `blocks`, with one file for each snapshot. Rows are written in
groups, and each distinct text (stack, name) is stored once, so that no Python object is made for an
event.
"""

import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pytracer.analysis.block_categories import block_categories, rows_at_end, values_of
from pytracer.analysis.call_sites import UNKNOWN, call_sites, frame_at
from pytracer.analysis.history import ContradictionError, History, replay, unknown_history
from pytracer.analysis.modules import block_modules
from pytracer.atomic_file import open_output
from pytracer.errors import PytracerError
from pytracer.export.texts import frame_text, stack_texts
from pytracer.reading.files import parse_place
from pytracer.reading.snapshot import NO_TIME, Column, Snapshot
from pytracer.reading.steps import step_boundaries

ROWS = 1 << 17  # the number of rows in a row group

_ORIGIN = {
    "snapshot": "text",
    "rank": "int32",
    "host": "text",
    "pid": "int64",
    "backend": "text",
    "device": "int32",
}
_PLACE = {
    "stream": "int64",
    "pool": "text",
    "site": "text",
    "stack": "text",
    "autograd_node": "text",
    "forward_stack": "text",
    "forward_phase": "text",
}
_USAGE = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")
_LIFE = ("alloc", "free_requested", "free")
EVENTS = {
    **_ORIGIN,
    "event": "int64",
    "time": "time",
    "step": "int64",
    "phase": "text",
    "action": "text",
    "address": "int64",
    "size_bytes": "int64",
    **_PLACE,
    "compile_context": "text",
    **dict.fromkeys(_USAGE, "int64"),
}
"""The columns of `events`, and their kinds: "text" is dictionary-encoded, "time" is UTC."""
BLOCKS = {
    **_ORIGIN,
    "address": "int64",
    "size_bytes": "int64",
    "requested_bytes": "int64",
    **_PLACE,
    "phase": "text",
    "step": "int64",
    **{f"{name}_event": "int64" for name in _LIFE},
    **{f"{name}_time": "time" for name in _LIFE},
    "category": "text",
    "category_rule": "text",
    "owner": "text",
    "holder": "text",
    "module": "text",
}
"""The columns of `blocks`."""


@dataclass(frozen=True, eq=False)
class _Texts:
    """Texts that rows refer to by index; the distinct ones form the dictionary."""

    distinct: Any  # a pyarrow array
    code: Column  # for each text its index in `distinct`


@dataclass(frozen=True, eq=False)
class _Coded:
    """A column of texts: for each row the index of its text, and whether it has none."""

    index: Column
    texts: _Texts
    is_null: Column | bool = False


Rows = Mapping[str, Any]  # _Coded for texts; else an array, masked where it is unknown


def write_tables(snapshot: Snapshot, name: str, output: Path) -> list[str]:
    """Write `{output}/events/{name}.parquet` and `{output}/blocks/{name}.parquet`.

    The path of the snapshot has the rank and the step of all events where the file has none.

    Returns:
        A sentence for each device that lacks data.

    Raises:
        PytracerError: pyarrow is not installed, or a file cannot be written.
    """
    tables = _Tables(snapshot, name)
    paths = [output / table / f"{name}.parquet" for table in ("events", "blocks")]
    with (
        open_output(paths[0], makes_folder=True) as events,
        open_output(paths[1], makes_folder=True) as blocks,
    ):
        tables.write(events, EVENTS, tables.events())
        tables.write(blocks, BLOCKS, tables.blocks())
    return tables.notes


def pyarrow(who_needs: str = "tables need") -> Any:
    """Return the package, which is optional; `who_needs` it begins the error's text.

    Raises:
        PytracerError: It is not installed.
    """
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise PytracerError(f"{who_needs} pyarrow ({error}): `pip install pyarrow`") from error


class _Tables:
    def __init__(self, snapshot: Snapshot, name: str) -> None:
        self._arrow = pyarrow()
        self._snapshot, self._metadata = snapshot, snapshot.metadata
        self._place = parse_place(Path(snapshot.path))
        self._histories, self.notes = _histories(snapshot)
        stacks, strings = snapshot.stacks, snapshot.strings
        self._stacks = self._texts(
            stack_texts(snapshot, lambda filename, name, line: f"{filename}:{line} {name}", "\n")
        )
        sites, self._site_of = np.unique(call_sites(stacks), return_inverse=True)
        frames = (frame_at(stacks, site) for site in sites.tolist())
        self._sites = self._texts("" if each is None else frame_text(each) for each in frames)
        self._has_site = sites[self._site_of] != UNKNOWN
        self._has_frames = np.diff(stacks.offsets) != 0
        self._strings = self._texts(strings)
        self._actions = self._texts(snapshot.actions)
        self._pools = self._texts(f"{high}.{low}" for high, low in snapshot.pools.tolist())
        self._name, self._host = self._texts([name]), self._texts([self._metadata.host or ""])
        self._backends = self._texts(snapshot.backend(d) for d in range(len(snapshot.traces)))

    def events(self) -> Iterator[Rows]:
        for device, (trace, history) in enumerate(
            zip(self._snapshot.traces, self._histories, strict=True)
        ):
            step_of = self._steps(device)
            for begin in range(0, len(trace), ROWS):
                rows = slice(begin, begin + ROWS)
                event = np.arange(begin, min(begin + ROWS, len(trace)))
                yield {
                    **self._origin_columns(device, len(event)),
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
                    **_usage(history, event),
                }

    def blocks(self) -> Iterator[Rows]:
        for device, history in enumerate(self._histories):
            if not history.is_known:
                continue
            blocks, step_of = history.blocks, self._steps(device)
            time_us = self._snapshot.traces[device].time_us
            found = block_categories(self._snapshot, device, history)
            modules = block_modules(self._snapshot, device, history)
            at_end = rows_at_end(self._snapshot, device, blocks)
            holder = values_of(self._snapshot.blocks.holder, at_end)
            kinds = [self._texts(pair[i] for pair in found.kinds) for i in range(2)]
            paths = self._texts(modules.paths)
            for begin in range(0, len(blocks), ROWS):
                rows = slice(begin, begin + ROWS)
                life = {name: getattr(blocks, f"{name}_event")[rows] for name in _LIFE}
                for name, event in life.items():
                    is_outside = (event < 0) | (event >= len(time_us))
                    life[name] = np.ma.masked_where(is_outside, event)
                is_older = np.ma.getmaskarray(life["alloc"])
                step, birth = step_of(blocks.alloc_event[rows]), blocks.birth_step[rows]
                is_told = is_older & (birth != 0)
                step[is_told] = birth[is_told]
                yield {
                    **self._origin_columns(device, len(is_older)),
                    "address": blocks.address[rows],
                    "size_bytes": np.ma.array(blocks.size_bytes[rows], mask=~blocks.is_sized[rows]),
                    "requested_bytes": blocks.requested_bytes[rows],
                    "stream": blocks.stream[rows],
                    "pool": _Coded(blocks.pool[rows], self._pools, is_older),
                    **self._stack(blocks.stack[rows]),
                    "phase": _Coded(blocks.user_metadata[rows], self._strings, is_older),
                    "step": step,
                    **{f"{name}_event": event for name, event in life.items()},
                    **{f"{name}_time": _times(time_us, event) for name, event in life.items()},
                    "category": _Coded(found.kind[rows], kinds[0]),
                    "category_rule": _Coded(found.kind[rows], kinds[1]),
                    "owner": _Coded(found.owner[rows], self._strings, found.owner[rows] == 0),
                    "holder": _Coded(holder[rows], self._strings, holder[rows] == 0),
                    "module": _Coded(modules.path[rows], paths, modules.path[rows] == 0),
                }

    def write(self, file: BinaryIO, kinds: Mapping[str, str], groups: Iterator[Rows]) -> None:
        pa = self._arrow
        types = {
            "text": pa.dictionary(pa.int32(), pa.string()),
            "time": pa.timestamp("us", tz="UTC"),
            "int32": pa.int32(),
            "int64": pa.int64(),
        }
        metadata = json.dumps(self._metadata.as_written, default=str)
        schema = pa.schema(
            {name: types[kind] for name, kind in kinds.items()}, metadata={"pytracer": metadata}
        )
        writer = pa.parquet.ParquetWriter(
            file,
            schema,
            compression="zstd",
            use_dictionary=[name for name, kind in kinds.items() if kind == "text"],
            dictionary_pagesize_limit=1 << 30,  # beyond it each row stores its own text
        )
        with writer:
            for rows in groups:
                arrays = [self._array(rows[field.name], field.type) for field in schema]
                writer.write_batch(pa.record_batch(arrays, schema=schema))

    def _array(self, values: Any, kind: Any) -> Any:
        pa = self._arrow
        if not isinstance(values, _Coded):
            mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
            return pa.array(np.ma.getdata(values), mask=mask).cast(kind)
        codes, texts = values.texts.code[values.index], values.texts.distinct
        # A row group stores its own dictionary: the texts that it needs.
        is_used = np.zeros(len(texts), bool)
        is_used[codes] = True
        codes = (np.cumsum(is_used, dtype=np.int32) - 1)[codes]
        texts = texts.take(np.flatnonzero(is_used))
        mask = np.broadcast_to(values.is_null, len(codes))
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=mask), texts)

    def _texts(self, texts: Iterable[str]) -> _Texts:
        codes: dict[str, int] = {}
        # Arrow has no lone surrogates, which names of files may contain: they are replaced.
        valid = (text.encode(errors="replace").decode() for text in texts)
        code = np.array([codes.setdefault(text, len(codes)) for text in valid], np.int32)
        if not codes:  # rows without a text refer to index 0
            codes, code = {"": 0}, np.zeros(1, np.int32)
        return _Texts(self._arrow.array(list(codes), self._arrow.string()), code)

    def _origin_columns(self, device: int, count: int) -> Rows:
        first, metadata = np.zeros(count, np.int32), self._metadata
        rank = self._place.rank if metadata.rank is None else metadata.rank
        return {
            "snapshot": _Coded(first, self._name),
            "rank": _constant(rank, count),
            "host": _Coded(first, self._host, not metadata.host),
            "pid": _constant(metadata.pid, count),
            "backend": _Coded(first + device, self._backends),
            "device": first + device,
        }

    def _stack(self, stack: Column) -> Rows:
        stacks = self._snapshot.stacks
        forward = stacks.forward[stack]
        return {
            "site": _Coded(self._site_of[stack], self._sites, ~self._has_site[stack]),
            "stack": _Coded(stack, self._stacks, ~self._has_frames[stack]),
            "autograd_node": _Coded(stacks.node[stack], self._strings, stacks.node[stack] == 0),
            "forward_stack": _Coded(forward, self._stacks, ~self._has_frames[forward]),
            "forward_phase": _Coded(stacks.phase[stack], self._strings, stacks.phase[stack] == 0),
        }

    def _steps(self, device: int) -> Callable[[Column], Any]:
        """Return a function from events to their steps."""
        boundaries, place = step_boundaries(self._snapshot, device), self._place
        if not boundaries and place.first is not None and place.first == place.last:
            boundaries = [(place.first, 0)]
        steps = np.array([0, *(step for step, _ in boundaries)])
        firsts = np.array([first for _, first in boundaries])

        def step_of(event: Column) -> Any:
            boundary = np.searchsorted(firsts, event, side="right")
            return np.ma.array(steps[boundary], mask=boundary == 0)

        return step_of


def _histories(snapshot: Snapshot) -> tuple[list[History], list[str]]:
    found: list[History] = []
    notes = [] if any(map(len, snapshot.traces)) else [f"{snapshot.path}: it has no events"]
    for device in range(len(snapshot.traces)):
        try:
            found.append(replay(snapshot, device))
        except ContradictionError as error:
            found.append(unknown_history())
            notes.append(f"{snapshot.path}: no blocks, and no bytes after events: {error}")
    return found, notes


def _constant(value: int | None, count: int) -> Any:
    return np.ma.array(np.full(count, value or 0), mask=value is None)


def _usage(history: History, event: Column) -> Rows:
    if not history.is_known:
        return dict.fromkeys(_USAGE, _constant(None, len(event)))
    usage, after = history.usage, event + 1
    is_bound = after < history.exact_from
    return {
        "requested_bytes": usage.requested_bytes[after],
        "allocated_bytes": np.ma.array(usage.allocated_bytes[after], mask=is_bound),
        "active_bytes": np.ma.array(usage.active_bytes[after], mask=is_bound),
        "reserved_bytes": usage.reserved_bytes[after],
    }


def _times(time_us: Column, event: Any) -> Any:
    """Return the times of events, masked where the event is masked or its time is unknown."""
    if len(time_us) == 0:
        return _constant(None, len(event))
    found = time_us[event.filled(0)]
    return np.ma.array(found, mask=np.ma.getmaskarray(event) | (found == NO_TIME))
