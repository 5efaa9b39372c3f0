"""Snapshots as tables in Parquet, for DuckDB, pandas, Spark and Ray.

There are two tables, `events` and `blocks`, with one file for each snapshot. Rows are written in
groups. Each group stores a distinct text (stack, name) once, so that no Python object is made for
an event.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pytracer.analysis.blocks import Blocks, Coded, blocks_of, numbered
from pytracer.analysis.call_sites import call_sites, frame_at
from pytracer.analysis.device_data import DeviceData, device_data
from pytracer.analysis.history import replay
from pytracer.atomic_file import open_output
from pytracer.errors import optional
from pytracer.export.texts import frame_text, stack_texts
from pytracer.reading.files import parse_place
from pytracer.reading.snapshot import NO_TIME, Column, Snapshot, has_events
from pytracer.reading.steps import steps_at

ROWS = 1 << 17  # the number of rows in a row group

PYARROW = ("pyarrow", "pyarrow.parquet")

_USAGE = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")
_LIFE = ("alloc", "free_requested", "free")

Rows = Mapping[str, Any]
"""The columns of rows: `Coded` texts, None where there is none; or an array, masked where it is
unknown, of int32, of times (UTC), or else of int64."""


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
        tables.write(events, tables.events())
        tables.write(blocks, tables.blocks())
    return tables.notes()


class _Tables:
    def __init__(self, snapshot: Snapshot, name: str) -> None:
        self._arrow, _ = optional("tables need", *PYARROW)
        self._snapshot, self._name = snapshot, name
        self._place = parse_place(Path(snapshot.path))
        # The oldest files have no traces: the columns of their tables have no rows.
        self._devices = [self._device(i) for i in range(max(len(snapshot.traces), 1))]
        self._stacks = _known(
            stack_texts(snapshot, lambda filename, name, line: f"{filename}:{line} {name}", "\n")
        )
        sites, self._site_of = np.unique(call_sites(snapshot.stacks), return_inverse=True)
        frames = (frame_at(snapshot.stacks, site) for site in sites.tolist())
        self._sites = [None if frame is None else frame_text(frame) for frame in frames]
        self._pools = [f"{high}.{low}" for high, low in snapshot.pools.tolist()]
        self._names = _known(snapshot.strings)

    def notes(self) -> list[str]:
        path = self._snapshot.path
        notes = [] if any(map(len, self._snapshot.traces)) else [f"{path}: it has no events"]
        reasons = (data.contradiction for data in self._devices if data.contradiction is not None)
        for reason in reasons:
            why = reason.partition(", so the usage")[0]
            notes.append(f"{path}: blocks and the usage after each event are left out: {why}")
        return notes

    def events(self) -> Iterator[Rows]:
        strings = self._snapshot.strings
        for data in self._devices:
            trace = data.trace
            for begin in range(0, max(len(trace), 1), ROWS):
                rows = slice(begin, begin + ROWS)
                event = np.arange(begin, min(begin + ROWS, len(trace)))
                yield {
                    **self._origin(data.device, len(event)),
                    "event": event,
                    "time": _times(trace.time_us, event),
                    "step": _steps(data, event),
                    "phase": Coded(strings, trace.user_metadata[rows]),
                    "action": Coded(self._snapshot.actions, trace.action[rows]),
                    "address": trace.address[rows],
                    "size_bytes": trace.size_bytes[rows],
                    "stream": trace.stream[rows],
                    "pool": Coded(self._pools, trace.pool[rows]),
                    **self._stack(trace.stack[rows]),
                    "compile_context": Coded(strings, trace.compile_context[rows]),
                    **_usage(data, event),
                }

    def blocks(self) -> Iterator[Rows]:
        for data in self._devices:
            blocks = blocks_of(data)
            if not self._snapshot.traces or data.contradiction is not None:
                blocks = blocks.where(np.zeros(0, np.int64))
            for begin in range(0, max(len(blocks), 1), ROWS):
                rows = np.arange(begin, min(begin + ROWS, len(blocks)))
                yield self._of_blocks(blocks.where(rows))

    def _of_blocks(self, blocks: Blocks) -> Rows:
        data, time_us = blocks.data, blocks.data.trace.time_us
        life = {name: blocks[f"{name}_event"].astype(np.int64) for name in _LIFE}
        for name, event in life.items():
            life[name] = np.ma.masked_where((event < 0) | (event >= len(time_us)), event)
        is_older, pools = np.ma.getmaskarray(life["alloc"]), len(self._pools)
        birth_step = blocks["birth_step"].astype(np.int64)
        rules = [rule for _, rule in blocks.column("kind").values]
        modules, path = blocks.column("module_path")
        return {
            **self._origin(data.device, len(blocks)),
            "address": blocks["address"],
            "size_bytes": np.ma.array(blocks["size_bytes"], mask=~blocks["is_sized"]),
            "requested_bytes": blocks["requested_bytes"],
            "stream": blocks.of_lives("stream"),
            "pool": Coded([*self._pools, None], np.where(is_older, pools, blocks.of_lives("pool"))),
            **self._stack(blocks["stack"]),
            "phase": blocks.column("phase"),
            "step": _steps(data, blocks["alloc_event"], np.where(birth_step, birth_step, -1)),
            **{f"{name}_event": event for name, event in life.items()},
            **{f"{name}_time": _times(time_us, event) for name, event in life.items()},
            "category": blocks.column("category"),
            "category_rule": Coded(rules, blocks["kind"]),
            "owner": blocks.column("owner"),
            "holder": Coded(self._names, blocks["kept_by"]),
            "module": Coded(_known(modules), path),
        }

    def write(self, file: BinaryIO, groups: Iterator[Rows]) -> None:
        pa, writer = self._arrow, None
        metadata = {"pytracer": json.dumps(self._snapshot.metadata.as_written, default=str)}
        for rows in groups:
            batch = pa.record_batch({name: self._array(values) for name, values in rows.items()})
            if writer is None:
                texts = [name for name, values in rows.items() if isinstance(values, Coded)]
                writer = pa.parquet.ParquetWriter(
                    file,
                    batch.schema.with_metadata(metadata),
                    compression="zstd",
                    use_dictionary=texts,
                    dictionary_pagesize_limit=1 << 30,  # beyond it each row stores its own text
                )
            writer.write_batch(batch)
        assert writer is not None  # there is a group for each device, and a device
        writer.close()

    def _array(self, values: Any) -> Any:
        pa = self._arrow
        if not isinstance(values, Coded):
            kinds = {"M": pa.timestamp("us", tz="UTC"), "i4": pa.int32()}
            kind = kinds.get(values.dtype.kind) or kinds.get(values.dtype.str[1:], pa.int64())
            mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
            return pa.array(np.ma.getdata(values), mask=mask).cast(kind)
        used, code = numbered(values.code)
        codes: dict[str, int] = {}
        # Arrow has no lone surrogates, which names of files may contain: they are replaced.
        texts = (values.values[i] for i in used.tolist())
        valid = (None if text is None else text.encode(errors="replace").decode() for text in texts)
        places = [-1 if text is None else codes.setdefault(text, len(codes)) for text in valid]
        place = np.array(places, np.int32)[code]
        index = pa.array(place, mask=place < 0)
        return pa.DictionaryArray.from_arrays(index, pa.array([*codes], pa.string()))

    def _origin(self, device: int, count: int) -> Rows:
        first, metadata = np.zeros(count, np.int32), self._snapshot.metadata
        rank = self._place.rank if metadata.rank is None else metadata.rank
        return {
            "snapshot": Coded([self._name], first),
            "rank": _constant(rank, count).astype(np.int32),
            "host": Coded([metadata.host or None], first),
            "pid": _constant(metadata.pid, count),
            "backend": Coded([self._snapshot.backend(device)], first),
            "device": first + device,
        }

    def _stack(self, stack: Column) -> Rows:
        stacks = self._snapshot.stacks
        return {
            "site": Coded(self._sites, self._site_of[stack]),
            "stack": Coded(self._stacks, stack),
            "autograd_node": Coded(self._names, stacks.node[stack]),
            "forward_stack": Coded(self._stacks, stacks.forward[stack]),
            "forward_phase": Coded(self._names, stacks.phase[stack]),
        }

    def _device(self, device: int) -> DeviceData:
        data, place = device_data(self._snapshot, device), self._place
        if len(data.trace) and not has_events(data.trace):  # marks, which change nothing
            data = replace(data, history=replay(self._snapshot, device))
        if not data.boundaries and place.first is not None and place.first == place.last:
            data = replace(data, boundaries=[(place.first, 0)])
        return data


def _known(texts: Iterable[str]) -> list[str | None]:
    """Return texts with None for "", which stands for none."""
    return [text or None for text in texts]


def _steps(data: DeviceData, event: Column, before: Column | int = -1) -> Any:
    """Return the steps of events, masked where they are unknown; `before`: as `steps_at`, or -1."""
    steps = steps_at(data.boundaries, event, before)
    return np.ma.array(steps, mask=steps < 0)


def _constant(value: int | None, count: int) -> Any:
    return np.ma.array(np.full(count, value or 0), mask=value is None)


def _usage(data: DeviceData, event: Column) -> Rows:
    history, after = data.history, event + 1
    if data.contradiction is not None or not history.is_known:
        return dict.fromkeys(_USAGE, _constant(None, len(event)))
    columns = {name: getattr(history.usage, name)[after] for name in _USAGE}
    for name in ("allocated_bytes", "active_bytes"):
        columns[name] = np.ma.array(columns[name], mask=after < history.exact_from)
    return columns


def _times(time_us: Column, event: Any) -> Any:
    """Return the times of events, masked where the event is masked or its time is unknown."""
    if len(time_us) == 0:
        return _constant(None, len(event)).astype("M8[us]")
    found = time_us[np.ma.filled(event, 0)]
    is_unknown = np.ma.getmaskarray(event) | (found == NO_TIME)
    return np.ma.array(found.astype("M8[us]"), mask=is_unknown)
