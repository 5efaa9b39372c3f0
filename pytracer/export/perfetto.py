"""Snapshots in the Trace Event Format (JSON), for ui.perfetto.dev and chrome://tracing.

Each device has counters of its usage. Phases and steps are slices, out-of-memories are instants. In
files without times (those of torch_npu's own recorder) each event takes one microsecond.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np

from pytracer.analysis.history import History
from pytracer.analysis.spans import Span, is_step, spans
from pytracer.export.histories import replay_all
from pytracer.export.origin import Origin
from pytracer.reading.metadata import device_name
from pytracer.reading.snapshot import NO_TIME, OOM, Column, Snapshot

_COUNTERS = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")
_LINES = 1 << 14
_LANES = 10_000  # thread numbers are unique over all processes: Perfetto names threads by them


class Writer:
    """A writer of any number of snapshots into one trace. `add` may be called on any thread.

    The files of a process's step windows are shown as one process. Each other file, also that of a
    phase, is shown as a process of its own.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Begin the trace in a file that is open for writing; `finish` ends it."""
        self._file = file
        self._lock = threading.Lock()
        self._processes: dict[tuple[Any, ...], int] = {}
        self._spans: dict[int, list[Span]] = defaultdict(list)  # by process
        self._file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        self._separator = b""

    def add(self, snapshot: Snapshot, origin: Origin) -> list[str]:
        """Add a snapshot.

        Returns:
            A sentence for each device that lacks data.
        """
        with self._lock:
            pid, is_new = self._process(snapshot, origin)
            self._spans[pid] += spans(snapshot)
        found, notes = replay_all(snapshot, "no counters")
        if is_new:
            self._write(_json(_metadata("process_name", pid, pid, _title(origin))))
        for device, history in enumerate(found):
            times = _times(snapshot, device)
            if history is not None:
                for text in _counters(snapshot, device, history, times, pid):
                    self._write(text)
            self._write(_json(*_ooms(snapshot, device, times, pid)))
        return notes

    def finish(self) -> None:
        """End the trace."""
        for pid, found in self._spans.items():
            self._write(_json(*_slices(found, pid)))
        self._file.write(b"\n]}\n")

    def _process(self, snapshot: Snapshot, origin: Origin) -> tuple[int, bool]:
        window = snapshot.metadata.get("window")
        is_step = isinstance(window, dict) and window.get("phase") is None
        is_shared = is_step and origin.pid is not None
        key = (origin.host, origin.pid) if is_shared else (origin.name, None, None)
        is_new = key not in self._processes
        return self._processes.setdefault(key, len(self._processes) + 1), is_new

    def _write(self, text: str) -> None:
        """Write lines of JSON objects, separated by commas."""
        if text:
            with self._lock:
                self._file.write(self._separator + text.encode())
                self._separator = b",\n"


def _json(*events: Mapping[str, Any]) -> str:
    return ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)


def _metadata(name: str, pid: int, tid: int, value: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": value}}


def _title(origin: Origin) -> str:
    parts = (
        f"rank {origin.rank}" if origin.rank is not None else "",
        origin.host,
        f"pid {origin.pid}" if origin.pid is not None else "",
    )
    return ", ".join(filter(None, parts)) or origin.name


def _times(snapshot: Snapshot, device: int) -> Column:
    """Return the time of each event, never before that of the previous event, nor negative."""
    time_us = snapshot.traces[device].time_us
    if not snapshot.has_times(device):
        return np.arange(1, len(time_us) + 1)
    first = max(time_us[np.argmax(time_us != NO_TIME)], 0)
    times: Column = np.maximum.accumulate(np.maximum(time_us, first))
    return times


def _counters(
    snapshot: Snapshot, device: int, history: History, times: Column, pid: int
) -> Iterator[str]:
    """Yield lines for the changes of each counter; of those in one microsecond only the last."""
    if len(times) == 0 or not history.usage.reserved_bytes.any():
        return  # a device that was not used has only the events of snapshots
    at = np.concatenate(([max(times[0] - 1, 0)], times))
    is_last = np.append(at[1:] != at[:-1], True)
    name = device_name(snapshot, device)
    for column in _COUNTERS:
        is_exact = column in ("requested_bytes", "reserved_bytes")
        first = 0 if is_exact else history.exact_from
        kept = np.flatnonzero(is_last[first:]) + first
        values = getattr(history.usage, column)[kept]
        changed = np.diff(values, prepend=-1) != 0  # no value is negative: the first always counts
        rows = np.column_stack((at[kept], values))[changed]
        counter = {"ph": "C", "name": f"{name} {column.removesuffix('_bytes')}", "pid": pid}
        text = _json(counter).replace("%", "%%").removesuffix("}")
        line = f'{text},"ts":%d,"args":{{"bytes":%d}}}}'
        for begin in range(0, len(rows), _LINES):
            chunk = rows[begin : begin + _LINES]
            # One formatting of many lines takes a tenth of the time of one for each line.
            yield ",\n".join([line] * len(chunk)) % tuple(chunk.ravel().tolist())


def _ooms(snapshot: Snapshot, device: int, times: Column, pid: int) -> Iterator[dict[str, Any]]:
    trace = snapshot.traces[device]
    for event in np.flatnonzero(trace.action == OOM).tolist():
        yield {
            "ph": "i",
            "s": "p",
            "name": f"{device_name(snapshot, device)} out of memory",
            "pid": pid,
            "tid": pid,
            "ts": int(times[event]),
            "args": {
                "requested_bytes": int(trace.size_bytes[event]),
                "device_free_bytes": int(trace.address[event]),
                "event": event,
            },
        }


def _slices(spans: list[Span], pid: int) -> Iterator[dict[str, Any]]:
    """Yield complete events. Slices of a thread must nest: others get threads of their own."""
    spans = sorted(spans, key=lambda span: (span.begin_us, -span.end_us))
    steps = [span for span in spans if is_step(span)]
    phases = [span for span in spans if not is_step(span)]
    for step, following in pairwise(steps):  # the spans of two files may overlap
        step.end_us = min(step.end_us, following.begin_us)
    tid = pid * _LANES
    for kind, chosen in (("steps", steps), ("phases", phases)):
        for number, lane in enumerate(_lanes(chosen)):
            tid += 1
            title = f"{kind} {number + 1}" if number else kind
            yield _metadata("thread_name", pid, tid, title)
            for span in lane:
                yield {
                    "ph": "X",
                    "cat": kind,
                    "name": span.name,
                    "pid": pid,
                    "tid": tid,
                    "ts": span.begin_us,
                    "dur": span.end_us - span.begin_us,
                }


def _lanes(spans: list[Span]) -> list[list[Span]]:
    lanes: list[list[Span]] = []
    around: list[list[Span]] = []  # for each lane the open spans
    for span in spans:
        for outer in around:
            while outer and outer[-1].end_us <= span.begin_us:
                outer.pop()
        lane = next(
            (i for i, outer in enumerate(around) if not outer or span.end_us <= outer[-1].end_us),
            len(lanes),
        )
        if lane == len(lanes):
            lanes.append([])
            around.append([])
        lanes[lane].append(span)
        around[lane].append(span)
    return lanes
