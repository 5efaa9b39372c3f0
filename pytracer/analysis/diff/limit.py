"""The check of a comparison against a limit: `pytracer diff --fail-over`."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pytracer.analysis.diff.devices import pair_devices
from pytracer.analysis.diff.summaries import DeviceSummary, SnapshotSummary
from pytracer.analysis.diff.texts import delta, share
from pytracer.analysis.report import DeviceReport
from pytracer.text import number, parsed_size, size


@dataclass(frozen=True)
class Limit:
    """How much more memory a new recording may take than its baseline.

    Attributes:
        text: The limit as the user wrote it, as in "5%".
        share: The share of the baseline's memory; None for a limit in bytes.
        count_bytes: The number of bytes; None for a share.
    """

    text: str
    share: float | None
    count_bytes: int | None

    def allowed(self, before_bytes: float) -> float:
        """Return the most bytes that are within the limit."""
        if self.share is not None:
            return before_bytes * (1 + self.share)
        return before_bytes + (self.count_bytes or 0)


def parse_limit(text: str) -> Limit:
    """Return the limit that a text means: "5%", "0%" or "200MiB".

    Raises:
        ValueError: The text is neither a percentage nor a size.
    """
    if found := re.fullmatch(r"\s*(\d{1,6}(?:\.\d{1,6})?)\s*%\s*", text):
        return Limit(text.strip(), float(found[1]) / 100, None)
    try:
        if text.strip().isdecimal():
            raise ValueError  # 5 is rather meant as 5% than as 5 bytes
        return Limit(text.strip(), None, parsed_size(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a limit: give a percentage such as 5%, or a size such as 200MiB"
        ) from None


@dataclass(frozen=True)
class LimitCheck:
    """Whether a new recording takes more memory than its baseline, beyond a limit.

    Attributes:
        verdict: "over": an amount is certainly over the limit; "within": all are certainly within;
            "unknown": the files do not tell.
        reason: The sentence that `pytracer diff --fail-over` prints.
        limit: The limit, as the user wrote it.
        amount: "peak allocated", "peak reserved" or "allocated at the end": the amount that
            decided, the largest growth; None if nothing was compared.
        before_bytes, after_bytes: This amount in the baseline and in the new recording.
    """

    verdict: Literal["over", "within", "unknown"]
    reason: str
    limit: str
    amount: str | None
    before_bytes: int | None
    after_bytes: int | None


@dataclass(frozen=True)
class _Range:
    """An amount of which bounds are known; `most` is infinite if the ring lost events."""

    least: float
    most: float


@dataclass(frozen=True)
class _Compared:
    verdict: Literal["over", "within", "unknown"]
    where: str
    amount: str
    before: _Range
    after: _Range
    reason: str = ""


def check_limit(
    pairs: Iterable[tuple[str, SnapshotSummary, SnapshotSummary]],
    limit: Limit,
    missing: Iterable[str] = (),
) -> LimitCheck:
    """Compare the peaks and the ends of recordings with a limit.

    Args:
        pairs: For each two files what they are of ("" for the only pair), the baseline and the new
            recording.
        limit: How much more the new recording may take.
        missing: Why parts of the recordings could not be compared.
    """
    found: list[_Compared] = []
    unknown = list(missing)
    for place, before, after in pairs:
        devices, (only_before, only_after) = pair_devices(before, after, place)
        for path, names in ((before.path, only_before), (after.path, only_after)):
            unknown += (f"only {path} has {name}" for name in names)
        for device in devices:
            where = ", ".join(filter(None, (place, device.after.name)))
            unknown += _incomparable(device.before.report, device.after.report, after.path)
            found += _compared(device.before, device.after, where, limit)
    if not found:
        unknown.append("the recordings have no device in common")
    unknown += (each.reason for each in found if each.verdict == "unknown")
    over = [each for each in found if each.verdict == "over"]
    largest = max(
        over or found, key=lambda each: each.after.least - each.before.least, default=None
    )
    if over and largest is not None:
        return _check(
            "over", f"Over the limit of {limit.text}: {_change(largest)}.", limit, largest
        )
    if unknown:
        others = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        reason = (
            f"Can't tell whether the limit of {limit.text} holds, because {unknown[0]}{others}."
        )
        return _check("unknown", reason, limit, largest)
    assert largest is not None
    reason = f"Within the limit of {limit.text}: the largest growth is {_change(largest)}."
    if largest.after.least <= largest.before.least:
        reason = f"Within the limit of {limit.text}: no peak and no end has grown."
    return _check("within", reason, limit, largest)


def _incomparable(before: DeviceReport, after: DeviceReport, path: str) -> Iterator[str]:
    """Yield why the new recording is not the same job: a job that died early takes less memory."""
    if after.sites_at_oom is not None:
        yield f"{path} was written because memory ran out"
    if len(after.steps) < len(before.steps):
        yield (
            f"{path} has {number(len(after.steps), 'step')}, and the baseline {len(before.steps):,}"
        )
    kinds = [device.name.partition(":")[0] for device in (before, after)]
    if kinds[0] != kinds[1]:
        yield f"the baseline is of {before.name}, and {path} of {after.name}"


def _check(
    verdict: Literal["over", "within", "unknown"],
    reason: str,
    limit: Limit,
    found: _Compared | None,
) -> LimitCheck:
    return LimitCheck(
        verdict=verdict,
        reason=reason,
        limit=limit.text,
        amount=None if found is None else found.amount,
        before_bytes=None if found is None else int(found.before.least),
        after_bytes=None if found is None else int(found.after.least),
    )


def _change(found: _Compared) -> str:
    before, after = int(found.before.least), int(found.after.least)
    grown = f"{delta(after - before)}{share(before, after)}"
    return f"{found.where}: {found.amount} {size(before)} → {size(after)} ({grown})"


def _compared(
    before: DeviceSummary, after: DeviceSummary, where: str, limit: Limit
) -> Iterator[_Compared]:
    old, new = _amounts(before), _amounts(after)
    for amount in [name for name in old if name in new]:
        first, second = old[amount], new[amount]
        if second.least > limit.allowed(first.most):
            yield _Compared("over", where, amount, first, second)
        elif second.most <= limit.allowed(first.least):
            yield _Compared("within", where, amount, first, second)
        else:
            reason = f"{where}: the {amount} is not known exactly"
            sides = {"baseline": before, "new recording": after}
            why = next(text for side, device in sides.items() for text in _inexact(side, device))
            yield _Compared("unknown", where, amount, first, second, f"{reason}: {why}")


def _amounts(device: DeviceSummary) -> dict[str, _Range]:
    report = device.report
    end = report.end.allocated_bytes
    peak, reserved = report.peak_allocated, report.peak_reserved
    is_complete = report.lost.overwritten == 0 and report.only_phase is None
    least = end if peak is None or peak.uncertain_bytes is None else peak.allocated_bytes
    most: float = math.inf
    if is_complete and report.peak_most_bytes is not None:
        most = report.peak_most_bytes
    found = {"peak allocated": _Range(least, most), "allocated at the end": _Range(end, end)}
    if not report.is_cpu:
        highest = report.end.reserved_bytes if reserved is None else reserved.reserved_bytes
        is_known = is_complete and reserved is not None
        found["peak reserved"] = _Range(highest, highest if is_known else math.inf)
    return found


def _inexact(side: str, device: DeviceSummary) -> Iterator[str]:
    """Yield why the peaks of a device are not exact."""
    report = device.report
    if report.contradiction is not None:
        yield f"of the {side}, {report.contradiction}"
    elif report.peak_allocated is None:
        yield f"the {side} has no events"
    elif report.only_phase is not None:
        yield f"the {side} has the events of one phase only"
    elif report.lost.overwritten is None:
        yield f"the {side} does not say whether the ring overwrote events"
    elif report.lost.overwritten:
        yield f"the ring of the {side} overwrote its first events"
    elif not report.is_peak_certain:
        yield f"blocks of the {side} are older than its trace, and their exact sizes are unknown"
