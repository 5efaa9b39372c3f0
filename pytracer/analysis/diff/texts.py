"""Differences in words."""

from collections.abc import Callable, Sequence

from pytracer.analysis.diff.changes import SiteChange
from pytracer.analysis.diff.differences import DeviceDifference
from pytracer.analysis.frame_text import call_site_text
from pytracer.reading.snapshot import Frame
from pytracer.text import size

AT = {"peak": "the peaks", "end": "the end"}
"""The compared moments of `DeviceDifference.at`, as in "at the peaks"."""


def device_answer(device: DeviceDifference) -> str:
    """Return how much a device's usage changed, and where most; "" if it is unknown."""
    amount = device.amounts["allocated_bytes"]
    if amount.delta is None or amount.before is None or amount.after is None:
        return ""
    return (
        f"{device.after}: {delta(amount.delta)} allocated at {AT[device.at]} "
        f"({size(amount.before)} → {size(amount.after)}){most_text(device.sites)}."
    )


def most_text(sites: Sequence[SiteChange]) -> str:
    """Name the call site that changed most; sites are sorted by their change."""
    if not sites or not sites[0].delta_bytes:
        return ""
    frames = sites[0].after or sites[0].before
    where = call_site_text(frames[0] if frames else None)
    return f"; most by {where}: {delta(sites[0].delta_bytes)}"


def frames_text(frames: Sequence[Frame], width: int | None = None) -> str:
    """Return the call sites that are one row of a table; `width` as for `call_site_text`."""
    first = call_site_text(frames[0] if frames else None, width)
    return first if len(frames) < 2 else f"{first}\nand {len(frames) - 1} more lines"


def delta(delta_bytes: int) -> str:
    """Return a difference in bytes, with its sign."""
    return signed(delta_bytes, size)


def signed(difference: int, show: Callable[[int], str]) -> str:
    """Return a number with its sign."""
    return f"+{show(difference)}" if difference > 0 else show(difference)
