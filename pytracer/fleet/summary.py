"""One snapshot as rows of the tables of `pytracer.fleet.schema`.

The numbers are those of `pytracer show`: this module only arranges them.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from pytracer.analysis.answer_words import answer_of
from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data
from pytracer.analysis.explanation import explain_device
from pytracer.analysis.groups import Held
from pytracer.analysis.leaks.one_file import leaks_on_device
from pytracer.analysis.leaks.results import DeviceLeaks
from pytracer.analysis.report import DeviceReport, report_device
from pytracer.analysis.steps_and_phases import Phase
from pytracer.errors import ConfigError, PytracerError
from pytracer.export.texts import frame_text
from pytracer.fleet import schema
from pytracer.fleet.schema import ArrowTables, OfFile, Row, arrow_tables, row_of
from pytracer.fleet.sources import Source, read_content
from pytracer.reading.files import parse_place
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Snapshot
from pytracer.simulator.trials import try_settings
from pytracer.variables import parse_settings

_MOST_CALLERS = 3
_NOT_SETTINGS = ("rank", "role", "metadata", "settings", "untraced", "waiting")


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
    key = {name: file[name] for name in OfFile.__annotations__}
    rows: dict[str, list[Row]] = defaultdict(list)
    rows["files"] = [file]
    rows["settings"] = [row | key for row in _settings(snapshot)]
    devices = chosen_devices(snapshot, None)
    file |= {"devices": len(devices), "events": 0, "is_oom": False}
    for device in devices:
        data = device_data(snapshot, device)
        report, leaks = report_device(data), leaks_on_device(data)
        file["events"] += report.events
        file["is_oom"] |= report.is_oom_file
        key |= {"device": device, "device_name": report.name}
        for table, found in {
            "devices": [row_of(report) | row_of(leaks, "leak")],
            "held": [row for held in report.held if held.by != "owner" for row in _held(held)],
            "steps": map(row_of, report.steps[-schema.MOST_STEPS :]),
            "phases": map(row_of, _largest(report.phases)),
            "ooms": _ooms(data, report),
            "leaks": _leaks(leaks),
        }.items():
            rows[table] += [row | key for row in found]
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
        "file_step": place.last,
        "rank": place.rank,
    }


def _file_row(snapshot: Snapshot, source: Source) -> Row:
    metadata, row = snapshot.metadata, _name_row(source)
    window = metadata.window
    if window is not None and window.first is not None and window.last is not None:
        row |= {"kind": "step", "first_step": window.first, "last_step": window.last}
    current = metadata.current_step or None  # 0: no step
    backends = [snapshot.backend(device) for device in chosen_devices(snapshot, None)]
    own = row_of(metadata) | row
    return own | {
        "file_step": current if row["last_step"] is None else row["last_step"],
        "rank": row["rank"] if metadata.rank is None else metadata.rank,
        "backend": max(filter(None, backends), key=lambda name: name != "cpu", default=None),
    }


def _held(held: Held) -> Iterator[Row]:
    shown, others = held.groups[: schema.MOST_GROUPS], held.groups[schema.MOST_GROUPS :]
    for groups in [*([group] for group in shown), *([others] if others else [])]:
        name = frame_text(groups[0].frames[0]) if groups[0].frames else None
        yield {
            "moment": held.moment.name,
            "by": held.by,
            "name": None if groups is others else name or getattr(groups[0], held.by, None),
            "is_others": groups is others,
            "size_bytes": sum(group.size_bytes for group in groups),
            "requested_bytes": sum(group.requested_bytes for group in groups),
            "blocks": sum(group.count for group in groups),
            "groups": len(groups),
            "largest_group_bytes": groups[0].size_bytes,
        }


def _largest(phases: Iterable[Phase]) -> list[Phase]:
    return sorted(phases, key=lambda phase: -(phase.peak_bytes or 0))[: schema.MOST_PHASES]


def _ooms(data: DeviceData, report: DeviceReport) -> Iterator[Row]:
    for oom in report.ooms[-schema.MOST_OOMS :]:
        row = row_of(oom) | {"is_last": oom is report.ooms[-1]}
        if row["is_last"]:
            explanation = explain_device(data, try_settings, report.ooms)
            verdicts = explanation.verdicts
            row["verdict"] = verdicts[0].kind if verdicts else None
            row["verdicts"] = ",".join(verdict.kind for verdict in verdicts)
            row["explanation"] = " ".join(verdict.text for verdict in verdicts)
            row["what"] = answer_of(explanation).headline
        yield row


def _leaks(leaks: DeviceLeaks) -> Iterator[Row]:
    for growth in leaks.growths[: schema.MOST_LEAKS]:
        sites = [*map(frame_text, growth.frames)]
        yield row_of(growth) | {
            "site": next(iter(sites), None),
            "callers": " <- ".join(sites[1 : _MOST_CALLERS + 1]),
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
    known = {name: value for name, value in metadata.options.items() if value is not None}
    yield from _scope("recording", {n: known[n] for n in known if n not in _NOT_SETTINGS})
    yield from _scope("metadata", metadata.given)


def _scope(scope: str, items: Mapping[Any, Any]) -> Iterable[Row]:
    for key, value in islice(items.items(), schema.MOST_SETTINGS):
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        yield {
            "scope": scope,
            "key": str(key)[: schema.MOST_SETTING_LENGTH],
            "value": text[: schema.MOST_SETTING_LENGTH],
        }
