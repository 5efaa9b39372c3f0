"""The check of a comparison against a limit: `pytracer diff --fail-over`."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from pytracer.analysis.diff.devices import kind_of, pair_devices
from pytracer.analysis.diff.summaries import SnapshotSummary
from pytracer.analysis.diff.texts import share
from pytracer.analysis.report import DeviceReport
from pytracer.text import number, parsed_size, signed_size, size


@dataclass(frozen=True)
class Limit:
    """How much more memory a new recording may take than its baseline.

    Attributes:
        text: The limit as the user wrote it, as in "5%".
        share: The share of the baseline's memory; 0 for a limit in bytes.
        count_bytes: The number of bytes; 0 for a share.
    """

    text: str
    share: float = 0
    count_bytes: int = 0

    def allowed(self, before_bytes: float) -> float:
        """Return the most bytes that are within the limit."""
        return before_bytes * (1 + self.share) + self.count_bytes


def parse_limit(text: str) -> Limit:
    """Return the limit that a text means: "5%", "0%" or "200MiB".

    Raises:
        ValueError: The text is neither a percentage nor a size.
    """
    if found := re.fullmatch(r"\s*(\d{1,6}(?:\.\d{1,6})?)\s*%\s*", text):
        return Limit(text.strip(), share=float(found[1]) / 100)
    try:
        if text.strip().isdecimal():
            raise ValueError  # 5 is rather meant as 5% than as 5 bytes
        return Limit(text.strip(), count_bytes=parsed_size(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a limit: give a percentage such as 5%, or a size such as 200MiB"
        ) from None


Verdict = Literal["over", "within", "unknown"]


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

    verdict: Verdict
    reason: str
    limit: str
    amount: str | None
    before_bytes: int | None
    after_bytes: int | None

    @property
    def growth_bytes(self) -> int:
        """How much the amount has grown."""
        return (self.after_bytes or 0) - (self.before_bytes or 0)


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
    found: list[LimitCheck] = []
    unknown = list(missing)
    for place, before, after in pairs:
        devices, (only_before, only_after) = pair_devices(before, after, place)
        for path, names in ((before.path, only_before), (after.path, only_after)):
            unknown += (f"only {path} has {name}" for name in names)
        for device in devices:
            old, new = device.before.report, device.after.report
            unknown += _incomparable(old, new, after.path)
            found += _compared(old, new, ", ".join(filter(None, (place, new.name))), limit)
    if not found:
        unknown.append("the recordings have no device in common")
    unknown += (each.reason for each in found if each.verdict == "unknown")
    over = [each for each in found if each.verdict == "over"]
    nothing = LimitCheck("unknown", "", limit.text, None, None, None)
    largest = max(over or found, key=lambda each: each.growth_bytes, default=nothing)
    if over:
        return replace(largest, reason=f"Over the limit of {limit.text}: {largest.reason}.")
    if unknown:
        others = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        reason = (
            f"Can't tell whether the limit of {limit.text} holds, because {unknown[0]}{others}."
        )
        return replace(largest, verdict="unknown", reason=reason)
    grown = f"the largest growth is {largest.reason}"
    grown = grown if largest.growth_bytes > 0 else "neither the peaks nor the end usage grew"
    return replace(largest, reason=f"Within the limit of {limit.text}: {grown}.")


def _incomparable(before: DeviceReport, after: DeviceReport, path: str) -> Iterator[str]:
    """Yield why the new recording is not the same job: a job that died early takes less memory."""
    if after.is_oom_file:
        yield f"{path} was written because memory ran out"
    if len(after.steps) < len(before.steps):
        yield (
            f"{path} has {number(len(after.steps), 'step')}, and the baseline {len(before.steps):,}"
        )
    if kind_of(before.name) != kind_of(after.name):
        yield f"the baseline comes from {before.name}, but {path} comes from {after.name}"


def _compared(
    before: DeviceReport, after: DeviceReport, where: str, limit: Limit
) -> Iterator[LimitCheck]:
    """Yield a check for each amount; its reason is the change, or why the verdict is unknown."""
    old, new = _amounts(before), _amounts(after)
    for amount in [name for name in old if name in new]:
        (least, most), (new_least, new_most) = old[amount], new[amount]
        verdict: Verdict = "unknown"
        if new_least > limit.allowed(most):
            verdict = "over"
        elif new_most <= limit.allowed(least):
            verdict = "within"
        change = f"{signed_size(new_least - least)}{share(least, new_least)}"
        reason = f"{where}: {amount} {size(least)} → {size(new_least)} ({change})"
        if verdict == "unknown":
            sides = {"baseline": before, "new recording": after}
            why = next(text for side, report in sides.items() for text in _inexact(side, report))
            reason = f"{where}: the {amount} is not known exactly: {why}"
        yield LimitCheck(verdict, reason, limit.text, amount, least, new_least)


def _amounts(report: DeviceReport) -> dict[str, tuple[int, float]]:
    """Return the bounds of amounts; the upper one is infinite if the ring lost events."""
    end = report.end.allocated_bytes
    peak, reserved = report.peak_allocated, report.peak_reserved
    is_complete = report.lost.overwritten == 0 and report.only_phase is None
    least = end if peak is None or report.only_phase is not None else peak.allocated_bytes
    is_certain = is_complete and report.is_peak_certain
    found = {
        "peak allocated": (least, least if is_certain else math.inf),
        "allocated at the end": (end, end),
    }
    if not report.is_cpu:
        highest = report.end.reserved_bytes if reserved is None else reserved.reserved_bytes
        is_known = is_complete and reserved is not None
        found["peak reserved"] = highest, highest if is_known else math.inf
    return found


def _inexact(side: str, report: DeviceReport) -> Iterator[str]:
    """Yield why the peaks of a device are not exact."""
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
