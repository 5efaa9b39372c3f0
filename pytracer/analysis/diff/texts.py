"""Differences in words."""

from collections.abc import Iterator, Sequence

from pytracer.analysis.diff.changes import Change
from pytracer.analysis.diff.differences import DeviceDifference, Difference
from pytracer.analysis.frame_text import call_site_text
from pytracer.reading.snapshot import Frame
from pytracer.text import number, signed_size, size

AT = {"peak": "the peaks", "end": "the end"}
"""The compared moments of `DeviceDifference.at`, as in "at the peaks"."""


def falsified(found: Difference) -> Iterator[str]:
    """Yield what options falsify that differ between the recordings, as sentences."""
    for option in found.metadata:
        if option.falsifies:
            values = (option.before, option.after)
            before, after = ("missing" if value is None else value for value in values)
            yield f"{option.name} differs ({before} → {after}): {option.falsifies}."


def answers(found: Difference) -> Iterator[str]:
    """Yield what a reader wants to know first: how much usage changed, and where most."""
    yield from filter(None, map(device_answer, found.devices))
    if found.pairs > 1 and found.files and found.files[0].delta_bytes:
        largest = found.files[0]
        yield f"The largest difference is {signed_size(largest.delta_bytes)}, in {largest.name}."


def device_answer(device: DeviceDifference) -> str:
    """Return how much a device's usage changed, and where most; "" if it is unknown."""
    amount = device.amounts["allocated_bytes"]
    if amount.delta is None or amount.before is None or amount.after is None:
        return ""
    over = f", averaged over {number(device.pairs, 'pair')} of files" if device.pairs > 1 else ""
    change, sizes = "no change in bytes", size(amount.before)
    if amount.delta:
        change = signed_size(amount.delta)
        sizes += f" → {size(amount.after)}{share(amount.before, amount.after)}"
    where = f"{AT[device.at]}{over} ({sizes}){_most(device.changes['line'], amount.delta)}"
    return f"{device.after}: {change} allocated at {where}."


def share(before: int, after: int) -> str:
    """Return a change as a percentage, as in ", +5.2%"; as a factor if it has doubled."""
    if before <= 0 or before == after:
        return ""
    ratio = after / before
    if ratio < 2:
        return f", {(ratio - 1) * 100:+.3g}%"
    return f", {ratio:{'.3g' if ratio < 1000 else ',.0f'}}\N{MULTIPLICATION SIGN}"


def _most(sites: Sequence[Change], delta_bytes: int) -> str:
    """Name the call site that changed most in the direction of the sum; sites are sorted."""
    if not delta_bytes:
        changed = [change for change in sites if change.delta_bytes][:2]
        parts = (
            f"{site_text(change.name)}: {signed_size(change.delta_bytes)}" for change in changed
        )
        return f"; changes cancel out (the largest: {', '.join(parts)})" if changed else ""
    largest = next((c for c in sites if (c.delta_bytes > 0) == (delta_bytes > 0)), None)
    if largest is None or not largest.delta_bytes:
        return ""
    return f"; most by {site_text(largest.name)}: {signed_size(largest.delta_bytes)}"


def site_text(site: Frame | str | None, width: int | None = None) -> str:
    """Return a call site, or the name of something else; `width` as for `call_site_text`."""
    return site if isinstance(site, str) else call_site_text(site, width)
