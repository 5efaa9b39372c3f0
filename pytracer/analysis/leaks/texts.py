"""Leaks in words."""

from collections.abc import Sequence

from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.leaks.groups import is_users
from pytracer.analysis.leaks.results import DeviceLeaks, Growth
from pytracer.reading.snapshot import Frame
from pytracer.text import number, size


def rate_text(device: DeviceLeaks, count_bytes: float) -> str:
    """Return a growth, as in "40 MiB a step"."""
    unit = {"slice": "24th of the events"}.get(device.unit, device.unit)
    return f"{size(round(count_bytes))} a {unit}"


def since_text(leaks: Sequence[Growth], device: DeviceLeaks) -> str:
    """Return when leaks began, as in " since step 3"; "" if it is unknown."""
    if leaks[0].is_older:
        unit = {"slice": "part"}.get(device.unit, device.unit)
        begin = f"the first {unit}" if device.first is None else f"step {device.first}"
        return f" since {begin} or before"
    first = leaks[0].first_step
    return "" if first is None else f" since step {first}"


def where_text(growths: Sequence[Growth]) -> str:
    """Return the line of the largest growth, how many others there are, and their caller."""
    largest = growths[0]
    if not largest.frames:
        return "allocations without a Python stack, such as those of backward"
    text = call_site_text(largest.frames[0])
    lines = {growth.frames[0] for growth in growths if growth.frames}
    if len(lines) > 1:
        text += f" and {number(len(lines) - 1, 'other line')}"
    if caller := _caller(growths):
        text += f", called from {call_site_text(caller)}"
    return text


def _caller(growths: Sequence[Growth]) -> Frame | None:
    """Return the innermost caller that the largest growths share, in the user's own code."""
    largest = growths[0]
    others = [g for g in growths if g.bytes_per_step >= 0.05 * largest.bytes_per_step]
    for frame in largest.frames[1:]:
        if is_users(frame) and all(frame in growth.frames for growth in others):
            return None if frame.name == "<module>" else frame
    return None


def answer(device: DeviceLeaks) -> str:
    """Return the verdict on a device in one or two sentences."""
    if device.verdict == "leak":
        leaks = leaks_of(device)
        text = f"Leak: {rate_text(device, device.bytes_per_step)}{since_text(leaks, device)}, from "
        text += f"{where_text(leaks)}."
        if device.oom_step is not None:
            text += f" Memory ran out in step {device.oom_step:,}."
        elif device.exhausted_step is not None:
            text += f" Memory would run out at about step {device.exhausted_step:,}."
        return text
    if device.verdict == "none":
        span = f"steps {device.first} to {device.last}"
        if device.first is None:
            span = f"{device.files} files"
        return f"No leak found in {span}: {device.reason}."
    text = f"Can't tell whether there is a leak, because {device.reason}."
    if device.growths:
        growth = device.growths[0]
        text += f" The largest growth is {rate_text(device, growth.bytes_per_step)}, "
        text += f"from {where_text([growth])}."
    return text


def leaks_of(device: DeviceLeaks) -> list[Growth]:
    """Return the growths that are leaks."""
    return [growth for growth in device.growths if growth.verdict == "leak"]
