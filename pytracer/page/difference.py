"""How a run differs from a baseline, over time, by line and by module, for a page."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.diff.changes import Change
from pytracer.analysis.diff.compare import compare_snapshots
from pytracer.analysis.diff.texts import device_answer, falsified, share, site_text
from pytracer.page.open_file import CURVE_POINTS, OpenFile, highest
from pytracer.page.tables import MOST_OF_LINE, shortened
from pytracer.text import printable

MOST_ROWS = 1000
"""The most call sites or modules of a difference; those that changed least are left out."""


def difference_of(run: OpenFile, baseline: OpenFile) -> dict[str, Any]:
    """Return how a run differs from a baseline, as `pytracer diff BASELINE RUN` reports it.

    Of several devices, the one whose allocated memory changed most is shown.
    """
    found = compare_snapshots(baseline.snapshot, run.snapshot)
    if not found.devices:
        sentence = "The files have no device in common."
        return {"rows": [], "modules": [], "sentence": sentence, "curves": None}
    device = max(found.devices, key=lambda each: abs(each.amounts["allocated_bytes"].delta or 0))
    sentences = [*falsified(found), device_answer(device)]
    sentences += (f"{note}." for note in device.notes)
    sentences += [f"Compared at the end, not at the peaks: {why}" for why in device.reasons]
    return {
        "rows": _rows(device.changes["line"]),
        "modules": _rows(device.changes["module"]),
        "sentence": shortened(printable(" ".join(filter(None, sentences))), MOST_OF_LINE),
        "curves": _curves(_named(baseline, device.before), _named(run, device.after)),
    }


def _rows(changes: Sequence[Change]) -> list[dict[str, Any]]:
    found = [
        {
            "name": shortened(printable(site_text(change.name))),
            "before_bytes": change.before_bytes,
            "after_bytes": change.after_bytes,
            "share": _share(change),
        }
        for change in changes
        if change.is_change
    ]
    return found[:MOST_ROWS]


def _share(change: Change) -> str:
    """Return a change as a percentage or a factor; "new" and "gone" if one side has no memory."""
    before, after = change.before_bytes, change.after_bytes
    if not before or not after:
        return "" if before == after else "gone" if before else "new"
    return share(before, after).removeprefix(", ")


def _named(file: OpenFile, name: str) -> DeviceData | None:
    return next(
        (each for each in file.devices if file.snapshot.device_name(each.device) == name), None
    )


def _curves(before: DeviceData | None, after: DeviceData | None) -> Mapping[str, Any] | None:
    """Return the allocated bytes of two devices over the same steps, or over all events of each.

    A point is the most of its part of a step or of the events, so that runs of other lengths are
    compared part by part. None if a device has no history.
    """
    if before is None or after is None:
        return None
    histories = [before.history, after.history]
    if not all(history.is_known for history in histories):
        return None
    begins = [_begins(device) for device in (before, after)]
    steps = sorted(begins[0].keys() & begins[1].keys())
    columns = [history.usage.allocated_bytes for history in histories]
    if len(steps) > 1:
        parts = max(1, CURVE_POINTS // len(steps))
        curves = [
            np.concatenate([highest(column[slice(*of[step])], parts) for step in steps])
            for column, of in zip(columns, begins, strict=True)
        ]
        ends = [f"step {step}" for step in (steps[0], steps[-1])]
    else:
        points = min(CURVE_POINTS, *map(len, columns))
        curves = [highest(column, points) for column in columns]
        ends = ["first event", "last event"]
        steps, parts = [], 1
    first, second = (highest(curve, min(len(curve), CURVE_POINTS)) for curve in curves)
    most = int(np.abs(curves[1] - curves[0]).argmax())
    where = (
        f"in step {steps[most // parts]}"
        if steps
        else f"after {most * 100 // len(curves[0])}% of the events"
    )
    return {
        "before": first.tolist(),
        "after": second.tolist(),
        "ends": ends,
        "largest": {"bytes": int(curves[1][most] - curves[0][most]), "where": where},
    }


def _begins(device: DeviceData) -> dict[int, tuple[int, int]]:
    """Return the first entry of each marked step, and the entry after its last one."""
    if not device.has_marked_steps:
        return {}
    firsts = [first for _, first in device.boundaries]
    ends = [*firsts[1:], len(device.trace)]
    return {
        step: (first, end + 1) for (step, first), end in zip(device.boundaries, ends, strict=True)
    }
