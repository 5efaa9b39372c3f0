"""One snapshot as rows of the tables of `pytracer.fleet.schema`.

The numbers are those of `pytracer show`: this module only arranges them.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from pytracer.analysis.answer_words import answer_of
from pytracer.analysis.block_categories import has_categories
from pytracer.analysis.call_sites import CallChains, frame_at
from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data
from pytracer.analysis.held_memory import Sum, held_memory, total_of
from pytracer.analysis.holders import by_site, shared_callers
from pytracer.analysis.leaks.one_file import leaks_on_device
from pytracer.analysis.leaks.results import DeviceLeaks
from pytracer.analysis.ooms import OutOfMemory, is_oom_snapshot
from pytracer.analysis.report import DeviceReport, report_device
from pytracer.analysis.usage import LEAST_POINTS
from pytracer.errors import ConfigError
from pytracer.fleet.schema import (
    MOST_LEAKS,
    MOST_OOMS,
    MOST_PHASES,
    MOST_SETTING_LENGTH,
    MOST_SETTINGS,
    MOST_SITES,
    MOST_STEPS,
)
from pytracer.fleet.sources import Source
from pytracer.reading.files import parse_place
from pytracer.reading.snapshot import Frame, Snapshot
from pytracer.variables import parse_settings

Row = dict[str, Any]
Rows = dict[str, list[Row]]
"""The rows of each table. A column that a row lacks is null."""

_VERSIONS = ("torch", "torch_npu", "python")
_MOST_CALLERS = 3
_OPTIONS = (
    "context",
    "stack_depth",
    "trace_alloc_max_entries",
    "max_stack_bytes",
    "forward_stacks",
    "step_from",
)


def summarize(snapshot: Snapshot, source: Source) -> Rows:
    """Return the rows of a snapshot that was read from a source."""
    file = _file_row(snapshot, source)
    key = {name: file[name] for name in ("run", "step", "rank", "source")}
    rows: Rows = {"files": [file], "settings": [key | row for row in _settings(snapshot)]}
    devices = chosen_devices(snapshot, None)
    file["devices"], file["events"], file["is_oom"] = len(devices), 0, False
    for device in devices:
        data = device_data(snapshot, device)
        report = report_device(data, top=0, points=LEAST_POINTS)
        leaks = leaks_on_device(data)
        file["events"] += report.events
        file["is_oom"] |= is_oom_snapshot(data)
        own = key | {"device": device, "device_name": report.name}
        for table, found in (
            ("peaks", [_peak(report, leaks)]),
            ("sites", _sites(data, report)),
            ("steps", _steps(report)),
            ("phases", _phases(report)),
            ("ooms", _ooms(report)),
            ("leaks", _leaks(leaks)),
        ):
            rows.setdefault(table, []).extend(row | own for row in found)
    if file["is_oom"]:  # also after the file was copied to another folder
        file["kind"] = "oom"
    return rows


def failed(source: Source, error: str) -> Rows:
    """Return the row of a file that cannot be read, with what its name tells."""
    place = parse_place(Path(source.path))
    row = _name_row(source) | {
        "step": place.last,
        "rank": place.rank,
        "error": " ".join(error.split()),
    }
    return {"files": [row]}


def _name_row(source: Source) -> Row:
    place = parse_place(Path(source.path))
    return {
        "run": source.run,
        "source": source.name,
        "folder": source.folder,
        "kind": place.kind,
        "first_step": place.first,
        "last_step": place.last,
        "file_bytes": source.file_bytes,
        "modified_ns": source.modified_ns,
        "stamp": source.stamp,
    }


def _file_row(snapshot: Snapshot, source: Source) -> Row:
    metadata, row = snapshot.metadata, _name_row(source)
    window = metadata.window
    if window is not None and window.first is not None and window.last is not None:
        row |= {"kind": "step", "first_step": window.first, "last_step": window.last}
    current = metadata.current_step or None  # 0: no step
    backends = [snapshot.backend(device) for device in chosen_devices(snapshot, None)]
    return row | {
        "step": current if row["last_step"] is None else row["last_step"],
        "rank": parse_place(Path(source.path)).rank if metadata.rank is None else metadata.rank,
        "file_phase": metadata.only_phase,
        "role": metadata.role,
        "host": metadata.host,
        "pid": metadata.pid,
        "backend": next((name for name in backends if name and name != "cpu"), None)
        or next((name for name in backends if name), None),
        **{name: getattr(metadata, name) for name in _VERSIONS},
        "pytracer": metadata.version,
        "written_ns": metadata.written_ns,
    }


def _peak(report: DeviceReport, leaks: DeviceLeaks) -> Row:
    row: Row = {
        name: getattr(report, name)
        for name in ("is_cpu", "events", "first_us", "last_us", "contradiction", "only_phase")
    }
    lost, peak, end, outside = report.lost, report.peak_allocated, report.end, report.outside
    for name in ("overwritten", "unknown_frees", "live_dropped", "before_bytes", "exact_from"):
        row[name] = getattr(lost, name)
    row |= {
        "peak_most_bytes": report.peak_most_bytes,
        "is_peak_certain": None if peak is None else report.is_peak_certain,
        "end_allocated_bytes": end.allocated_bytes,
        "end_active_bytes": end.active_bytes,
        "end_requested_bytes": end.requested_bytes,
        "end_reserved_bytes": end.reserved_bytes,
        "end_largest_free_bytes": end.largest_free_bytes,
        "end_inactive_split_bytes": end.inactive_split_bytes,
    }
    if peak is not None:
        row |= {
            "peak_allocated_bytes": peak.allocated_bytes,
            "peak_event": peak.event,
            "peak_time_us": peak.time_us,
            "peak_step": peak.step,
            "peak_phase": peak.phase,
            "peak_requested_bytes": peak.requested_bytes,
            "peak_active_bytes": peak.active_bytes,
        }
    if peak is not None and report.peak_reserved is not None:
        row |= {
            "reserved_at_peak_bytes": peak.reserved_bytes,
            "fragmentation_at_peak_bytes": peak.fragmentation_bytes,
            "peak_reserved_bytes": report.peak_reserved.reserved_bytes,
        }
    if outside is not None:
        for name in ("total", "free", "process", "outside", "others"):
            row[f"{name}_bytes"] = getattr(outside, f"{name}_bytes")
    row |= vars(report.counts)
    return row | {
        "leak_verdict": leaks.verdict,
        "leak_reason": leaks.reason,
        "leak_unit": leaks.unit,
        "leak_first": leaks.first,
        "leak_last": leaks.last,
        "leak_observed": leaks.observed,
        "leak_begin_bytes": leaks.begin_bytes,
        "leak_end_bytes": leaks.end_bytes,
        "leak_bytes_per_step": float(leaks.bytes_per_step),
        "available_bytes": leaks.available_bytes,
        "exhausted_step": leaks.exhausted_step,
    }


def _sites(data: DeviceData, report: DeviceReport) -> Iterable[Row]:
    history, chains = data.history, CallChains(data.snapshot.stacks)
    moments: dict[str, int | None] = {"end": None}
    if history.is_known:
        moments["peak"] = history.peak
    if report.ooms and history.is_replayed:
        moments["oom"] = report.ooms[-1].event + 1
    for moment, entry in moments.items():
        held = held_memory(data, entry)
        found = by_site(held, "category", "phase", chains=chains)
        for total, parts in found[:MOST_SITES]:
            yield {"moment": moment, "is_others": False, **_group_row(chains, data, total, parts)}
        if others := [total for total, _ in found[MOST_SITES:]]:
            yield {
                "moment": moment,
                "is_others": True,
                **_sums(total_of((), others)),
                "groups": len(others),
                "largest_group_bytes": others[0].size_bytes,
            }


def _group_row(chains: CallChains, data: DeviceData, total: Sum, parts: list[Sum]) -> Row:
    """Return the row of the blocks with the same call site, category and phase."""
    site, category, phase = total.key
    return {
        **_site(frame_at(chains.stacks, site)),
        "callers": _chain(shared_callers(chains, parts, _MOST_CALLERS)),
        "category": category if has_categories(data.snapshot) else None,
        "phase": phase,
        **_sums(total),
        "groups": 1,
        "largest_group_bytes": total.size_bytes,
    }


def _sums(total: Sum) -> Row:
    return {
        "size_bytes": total.size_bytes,
        "requested_bytes": total.requested_bytes,
        "blocks": total.count,
    }


def _steps(report: DeviceReport) -> Iterable[Row]:
    for step in report.steps[-MOST_STEPS:]:
        yield vars(step) | {"number": step.step, "inexact": ",".join(step.inexact)}


def _phases(report: DeviceReport) -> Iterable[Row]:
    largest = sorted(report.phases, key=lambda phase: -(phase.peak_bytes or 0))
    for phase in largest[:MOST_PHASES]:
        yield vars(phase) | {"inexact": ",".join(phase.inexact)}


def _ooms(report: DeviceReport) -> Iterable[Row]:
    for number, oom in [*enumerate(report.ooms, 1)][-MOST_OOMS:]:
        is_last = oom is report.ooms[-1]
        row = _oom(oom) | {"number": number, "is_last": is_last}
        if is_last and report.explanation is not None:
            verdicts = report.explanation.verdicts
            row |= {
                "verdict": verdicts[0].kind if verdicts else None,
                "verdicts": ",".join(verdict.kind for verdict in verdicts),
                "explanation": " ".join(verdict.text for verdict in verdicts),
                "what": answer_of(report.explanation).headline,
            }
        yield row


def _oom(oom: OutOfMemory) -> Row:
    sample = oom.sample
    return {
        **vars(oom),
        "oom_step": oom.step,
        "allocated_bytes": None if sample is None else sample.allocated_bytes,
        "reserved_bytes": None if sample is None else sample.reserved_bytes,
        **_site(oom.call_site),
    }


def _leaks(leaks: DeviceLeaks) -> Iterable[Row]:
    for growth in leaks.growths[:MOST_LEAKS]:
        site = growth.frames[0] if growth.frames else None
        yield {
            **vars(growth),
            **_site(site),
            "callers": _chain(growth.frames[1 : _MOST_CALLERS + 1]),
            "unit": leaks.unit,
        }


def _settings(snapshot: Snapshot) -> Iterable[Row]:
    metadata, text = snapshot.metadata, snapshot.settings_text
    if text is not None:
        try:
            items: Mapping[str, str] = parse_settings(text)
        except ConfigError:  # the allocator refused this text
            items = {"(unreadable)": text}
        yield from _scope("allocator", items)
    yield from _scope("reported", snapshot.allocator_settings)
    options = metadata.options
    yield from _scope("recording", {name: options[name] for name in _OPTIONS if name in options})
    versions = {name: getattr(metadata, name) for name in _VERSIONS}
    versions["pytracer"] = metadata.version
    yield from _scope("version", {name: value for name, value in versions.items() if value})
    yield from _scope("metadata", metadata.given)


def _scope(scope: str, items: Mapping[Any, Any]) -> Iterable[Row]:
    for key, value in islice(items.items(), MOST_SETTINGS):
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        yield {
            "scope": scope,
            "key": str(key)[:MOST_SETTING_LENGTH],
            "value": text[:MOST_SETTING_LENGTH],
        }


def _site(frame: Frame | None) -> Row:
    if frame is None:
        return {}
    return {
        "site": _frame_text(frame),
        "filename": frame.filename,
        "line": frame.line,
        "function": frame.name,
    }


def _frame_text(frame: Frame) -> str:
    return f"{frame.filename}:{frame.line} {frame.name}" if frame.filename else frame.name


def _chain(frames: Iterable[Frame]) -> str:
    return " <- ".join(map(_frame_text, frames))
