"""The difference between two files by call site, for a page of both."""

from typing import Any

from pytracer.analysis.diff.compare import compare_snapshots
from pytracer.analysis.diff.texts import device_answer, falsified, site_text
from pytracer.page.tables import shortened
from pytracer.reading.snapshot import Snapshot
from pytracer.text import printable

MOST_ROWS = 1000
"""The most call sites; those that changed least are left out."""


def difference_of(run: Snapshot, baseline: Snapshot) -> dict[str, Any]:
    """Return how a run differs from a baseline, as `pytracer diff BASELINE RUN` reports it.

    Of several devices, the one whose allocated memory changed most is shown.
    """
    found = compare_snapshots(baseline, run)
    if not found.devices:
        return {"rows": [], "sentence": "The files have no device in common."}
    device = max(found.devices, key=lambda each: abs(each.amounts["allocated_bytes"].delta or 0))
    sentences = [*falsified(found), device_answer(device)]
    sentences += (f"{note}." for note in device.notes)
    sentences += [f"Compared at the end, not at the peaks: {why}" for why in device.reasons]
    rows = [
        {
            "site": shortened(printable(site_text(change.name))),
            "before_bytes": change.before_bytes,
            "after_bytes": change.after_bytes,
        }
        for change in device.sites
        if change.is_change
    ]
    return {
        "rows": rows[:MOST_ROWS],
        "sentence": shortened(printable(" ".join(filter(None, sentences))), 2000),
    }
