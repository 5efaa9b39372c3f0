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
from pytracer.analysis.blocks import Sum, held_at, total_of
from pytracer.analysis.call_sites import frame_at
from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data
from pytracer.analysis.leaks.one_file import leaks_on_device
from pytracer.analysis.leaks.results import DeviceLeaks
from pytracer.analysis.ooms import is_oom_snapshot
from pytracer.analysis.report import DeviceReport, report_device
from pytracer.analysis.usage import LEAST_POINTS
from pytracer.errors import ConfigError, PytracerError
from pytracer.export.texts import frame_text
from pytracer.fleet import schema
from pytracer.fleet.schema import ArrowTables, Row, arrow_tables
from pytracer.fleet.sources import Source, read_content
from pytracer.reading.files import parse_place
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Frame, Snapshot
from pytracer.variables import parse_settings

_MOST_CALLERS = 3
_OPTIONS = (
    "context",
    "stack_depth",
    "trace_alloc_max_entries",
    "max_stack_bytes",
    "forward_stacks",
    "step_from",
)


def collect_file(source: Source) -> ArrowTables:
    """Read a file and return its rows: the work on one file, which every engine does alike."""
    try:
        if source.url is None:
            snapshot = load(source.path)
        else:
            snapshot = load(read_content(source), source.name)
        return arrow_tables(summarize(snapshot, source))
    except PytracerError as error:
        return unreadable(source, str(error))
    except Exception as error:  # one file must not end the collection
        return unreadable(source, f"{source.name} was not understood: {error!r}")


def unreadable(source: Source, error: str) -> ArrowTables:
    """Return the row of a file that cannot be read, with what its name tells."""
    return arrow_tables({"files": [_name_row(source) | {"error": " ".join(error.split())}]})


def summarize(snapshot: Snapshot, source: Source) -> dict[str, list[Row]]:
    """Return the rows of a snapshot that was read from a source."""
    file = _file_row(snapshot, source)
    key = {name: file[name] for name in ("run", "step", "rank", "source")}
    rows: dict[str, list[Row]] = {
        "files": [file],
        "settings": [key | row for row in _settings(snapshot)],
    }
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


def _name_row(source: Source) -> Row:
    place = parse_place(Path(source.path))
    return vars(source) | {
        "source": source.name,
        "kind": place.kind,
        "first_step": place.first,
        "last_step": place.last,
        "step": place.last,
        "rank": place.rank,
    }


def _file_row(snapshot: Snapshot, source: Source) -> Row:
    metadata, row = snapshot.metadata, _name_row(source)
    window = metadata.window
    if window is not None and window.first is not None and window.last is not None:
        row |= {"kind": "step", "first_step": window.first, "last_step": window.last}
    current = metadata.current_step or None  # 0: no step
    backends = [snapshot.backend(device) for device in chosen_devices(snapshot, None)]
    # The attributes that are columns have their names.
    return (
        vars(metadata)
        | row
        | {
            "step": current if row["last_step"] is None else row["last_step"],
            "rank": row["rank"] if metadata.rank is None else metadata.rank,
            "file_phase": metadata.only_phase,
            "backend": max(filter(None, backends), key=lambda name: name != "cpu", default=None),
            "pytracer": metadata.version,
        }
    )


def _peak(report: DeviceReport, leaks: DeviceLeaks) -> Row:
    """Return a row in which the attributes that are columns have their names, or a prefix."""
    peak, reserved = report.peak_allocated, report.peak_reserved
    row = vars(report) | vars(report.lost) | vars(report.counts)
    row |= {f"end_{name}": value for name, value in vars(report.end).items()}
    row |= {f"leak_{name}": value for name, value in vars(leaks).items()}
    if report.outside is not None:
        row |= vars(report.outside)
    if peak is None:
        row["is_peak_certain"] = None
    else:
        row |= {f"peak_{name}": value for name, value in vars(peak).items()}
    if peak is not None and reserved is not None:
        row["reserved_at_peak_bytes"] = peak.reserved_bytes
        row["fragmentation_at_peak_bytes"] = peak.fragmentation_bytes
    return row | {
        "peak_reserved_bytes": None if reserved is None else reserved.reserved_bytes,
        "leak_bytes_per_step": float(leaks.bytes_per_step),
        "available_bytes": leaks.available_bytes,
        "exhausted_step": leaks.exhausted_step,
    }


def _sites(data: DeviceData, report: DeviceReport) -> Iterable[Row]:
    history, chains = data.history, data.chains
    moments: dict[str, int | None] = {"end": None}
    if history.is_known:
        moments["peak"] = history.peak
        if report.ooms:
            moments["oom"] = report.ooms[-1].event + 1
    for moment, entry in moments.items():
        found = held_at(data, entry).by_site("category", "phase")
        for total, parts in found[: schema.MOST_SITES]:
            site, category, phase = total.key
            sizes = ((part.key[-1], part.size_bytes) for part in parts)
            yield {
                **_sum_row(moment, [total], total),
                **_site(frame_at(chains.stacks, site)),
                "is_others": False,
                "callers": _chain(chains.shared_callers(sizes, _MOST_CALLERS)),
                "category": category if has_categories(data.snapshot) else None,
                "phase": phase,
            }
        if others := [total for total, _ in found[schema.MOST_SITES :]]:
            yield {**_sum_row(moment, others, total_of((), others)), "is_others": True}


def _sum_row(moment: str, groups: list[Sum], total: Sum) -> Row:
    return {
        "moment": moment,
        "size_bytes": total.size_bytes,
        "requested_bytes": total.requested_bytes,
        "blocks": total.blocks,
        "groups": len(groups),
        "largest_group_bytes": groups[0].size_bytes,
    }


def _steps(report: DeviceReport) -> Iterable[Row]:
    for step in report.steps[-schema.MOST_STEPS :]:
        yield vars(step) | {"number": step.step}


def _phases(report: DeviceReport) -> Iterable[Row]:
    largest = sorted(report.phases, key=lambda phase: -(phase.peak_bytes or 0))
    for phase in largest[: schema.MOST_PHASES]:
        yield vars(phase)


def _ooms(report: DeviceReport) -> Iterable[Row]:
    for number, oom in [*enumerate(report.ooms, 1)][-schema.MOST_OOMS :]:
        is_last = oom is report.ooms[-1]
        row: Row = {
            **vars(oom),
            **_site(oom.call_site),
            "number": number,
            "is_last": is_last,
            "oom_step": oom.step,
        }
        if oom.sample is not None:
            row["allocated_bytes"] = oom.sample.allocated_bytes
            row["reserved_bytes"] = oom.sample.reserved_bytes
        if is_last and report.explanation is not None:
            verdicts = report.explanation.verdicts
            row["verdict"] = verdicts[0].kind if verdicts else None
            row["verdicts"] = ",".join(verdict.kind for verdict in verdicts)
            row["explanation"] = " ".join(verdict.text for verdict in verdicts)
            row["what"] = answer_of(report.explanation).headline
        yield row


def _leaks(leaks: DeviceLeaks) -> Iterable[Row]:
    for growth in leaks.growths[: schema.MOST_LEAKS]:
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
    versions = {name: getattr(metadata, name) for name in ("torch", "torch_npu", "python")}
    versions["pytracer"] = metadata.version
    yield from _scope("version", {name: value for name, value in versions.items() if value})
    yield from _scope("metadata", metadata.given)


def _scope(scope: str, items: Mapping[Any, Any]) -> Iterable[Row]:
    for key, value in islice(items.items(), schema.MOST_SETTINGS):
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        yield {
            "scope": scope,
            "key": str(key)[: schema.MOST_SETTING_LENGTH],
            "value": text[: schema.MOST_SETTING_LENGTH],
        }


def _site(frame: Frame | None) -> Row:
    if frame is None:
        return {}
    return {
        "site": frame_text(frame),
        "filename": frame.filename,
        "line": frame.line,
        "function": frame.name,
    }


def _chain(frames: Iterable[Frame]) -> str:
    return " <- ".join(map(frame_text, frames))
