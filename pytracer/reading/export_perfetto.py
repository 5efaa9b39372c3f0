"""Snapshots in the Trace Event Format, JSON: for ui.perfetto.dev and chrome://tracing.

Each device has a counter for each of its levels; phases and steps are slices, and each time that
memory ran out is an instant. Of files without times (torch_npu's own) a microsecond is an event.
"""

import json
import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np

from pytracer.reading.about import annotations
from pytracer.reading.devices import device_name
from pytracer.reading.export import Origin, histories
from pytracer.reading.history import History
from pytracer.reading.snapshot import NO_TIME, OOM, Column, Snapshot

_LEVELS = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")
_STEP = re.compile(r"step \d+|ProfilerStep#\d+")
_LINES = 1 << 14
_LANES = 10_000  # threads are numbered for all processes together: Perfetto names them by number


class Writer:
    """Writes any number of snapshots into one trace. `add` may be called in any thread.

    The files of windows of one process (steps, but not phases) are shown as one process, and any
    other is one of its own.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Begins the trace in a file that is open for writing; `finish` ends it."""
        self._file = file
        self._lock = threading.Lock()
        self._processes: dict[tuple[Any, ...], int] = {}
        self._spans: dict[int, list[_Span]] = defaultdict(list)  # by process
        self._file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        self._separator = b""

    def add(self, snapshot: Snapshot, of: Origin) -> list[str]:
        """Adds a snapshot.

        Returns:
            What could not be told, a sentence each.
        """
        with self._lock:
            pid, is_new = self._process(snapshot, of)
            self._spans[pid] += _spans(snapshot)
        found, notes = histories(snapshot, "no counters")
        if is_new:
            self._write(_json(_metadata("process_name", pid, pid, _title(of))))
        for device, history in enumerate(found):
            times = _times(snapshot, device)
            if history is not None:
                for text in _counters(snapshot, device, history, times, pid):
                    self._write(text)
            self._write(_json(*_ooms(snapshot, device, times, pid)))
        return notes

    def finish(self) -> None:
        """Ends the trace."""
        for pid, spans in self._spans.items():
            self._write(_json(*_slices(spans, pid)))
        self._file.write(b"\n]}\n")

    def _process(self, snapshot: Snapshot, of: Origin) -> tuple[int, bool]:
        window = snapshot.about.get("window")
        is_step = isinstance(window, dict) and window.get("phase") is None
        key = (of.host, of.pid) if is_step and of.pid is not None else (of.name, None, None)
        is_new = key not in self._processes
        return self._processes.setdefault(key, len(self._processes) + 1), is_new

    def _write(self, text: str) -> None:
        """Lines of JSON objects, with commas between them."""
        if text:
            with self._lock:
                self._file.write(self._separator + text.encode())
                self._separator = b",\n"


def _json(*events: Mapping[str, Any]) -> str:
    return ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)


def _metadata(name: str, pid: int, tid: int, value: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": value}}


def _title(of: Origin) -> str:
    told = (
        f"rank {of.rank}" if of.rank is not None else "",
        of.host,
        f"pid {of.pid}" if of.pid is not None else "",
    )
    return ", ".join(filter(None, told)) or of.name


def _times(snapshot: Snapshot, device: int) -> Column:
    """Of each event, never earlier than that of the one before, nor than the epoch."""
    time_us = snapshot.traces[device].time_us
    if not snapshot.has_times(device):
        return np.arange(1, len(time_us) + 1)
    first = max(time_us[np.argmax(time_us != NO_TIME)], 0)
    times: Column = np.maximum.accumulate(np.maximum(time_us, first))
    return times


def _counters(
    snapshot: Snapshot, device: int, history: History, times: Column, pid: int
) -> Iterator[str]:
    """A line for each time that a level changed; of those in one microsecond the last alone."""
    if len(times) == 0 or not history.levels.reserved_bytes.any():
        return  # a device that was not used has but the events of snapshots
    at = np.concatenate(([max(times[0] - 1, 0)], times))
    is_last = np.append(at[1:] != at[:-1], True)
    name = device_name(snapshot, device)
    for level in _LEVELS:
        is_exact = level in ("requested_bytes", "reserved_bytes")
        first = 0 if is_exact else history.exact_from
        kept = np.flatnonzero(is_last[first:]) + first
        values = getattr(history.levels, level)[kept]
        changed = np.diff(values, prepend=-1) != 0  # no level is negative
        rows = np.column_stack((at[kept], values))[changed]
        counter = {"ph": "C", "name": f"{name} {level.removesuffix('_bytes')}", "pid": pid}
        text = _json(counter).replace("%", "%%").removesuffix("}")
        line = f'{text},"ts":%d,"args":{{"bytes":%d}}}}'
        for begin in range(0, len(rows), _LINES):
            chunk = rows[begin : begin + _LINES]
            # One formatting of many lines: a tenth of the time that one of each would take.
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


@dataclass
class _Span:
    name: str
    begin_us: int
    end_us: int


def _slices(spans: list[_Span], pid: int) -> Iterator[dict[str, Any]]:
    """Complete events; slices of a thread must nest, so what does not has a thread of its own."""
    spans = sorted(spans, key=lambda span: (span.begin_us, -span.end_us))
    steps = [span for span in spans if _STEP.fullmatch(span.name)]
    phases = [span for span in spans if not _STEP.fullmatch(span.name)]
    for step, following in pairwise(steps):  # of two files, the first may end in the second
        step.end_us = min(step.end_us, following.begin_us)
    tid = pid * _LANES
    for kind, several in (("steps", steps), ("phases", phases)):
        for number, lane in enumerate(_lanes(several)):
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


def _spans(snapshot: Snapshot) -> list[_Span]:
    """What began and ended.

    An end is of what began last of its name. What has no end in the file lasts to the end of all,
    and what has no beginning began with the first.
    """
    timed = sorted(annotations(snapshot), key=lambda each: each.time_us)
    if not timed:
        return []
    first_us, last_us = timed[0][0], timed[-1][0]
    spans: list[_Span] = []
    begun: dict[tuple[str, str], list[_Span]] = {}
    for time_us, name, stage, device in timed:
        open_ones = begun.setdefault((name, device), [])
        if stage == "START":
            open_ones.append(_Span(name, time_us, last_us))
            spans.append(open_ones[-1])
        elif stage == "END" and open_ones:
            open_ones.pop().end_us = time_us
        elif stage == "END":
            spans.append(_Span(name, first_us, time_us))
    return spans


def _lanes(spans: list[_Span]) -> list[list[_Span]]:
    lanes: list[list[_Span]] = []
    around: list[list[_Span]] = []  # of each lane, what a span that begins now would be in
    for span in spans:
        for outer in around:
            while outer and outer[-1].end_us <= span.begin_us:
                outer.pop()
        fitting = (i for i, o in enumerate(around) if not o or span.end_us <= o[-1].end_us)
        lane = next(fitting, len(lanes))
        if lane == len(lanes):
            lanes.append([])
            around.append([])
        lanes[lane].append(span)
        around[lane].append(span)
    return lanes
