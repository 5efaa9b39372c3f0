"""The result of a replay: its numbers, and sentences about what the numbers alone do not show."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from pytracer.experiments.comparison import Comparison, Curve, Setting
from pytracer.text import number, size


@dataclass(frozen=True)
class Deviation:
    """How far the replay under the recording's own settings is from the recording.

    The deviation is the error bar of all replays of the recording. It compares reserved bytes.

    Attributes:
        requests: The number of compared allocations and frees.
        equal: After how many of them both have reserved the same.
        missed: The number of allocations and frees that the replay did not reach.
        largest_bytes: The largest difference; positive: the replay has reserved more.
        largest_event: The event of the recording with the largest difference; None: there is no
            difference.
        mean_bytes: The mean of the absolute differences.
        peak_bytes: The difference of the peaks.
        peak_share: The difference of the peaks as a share of the recording's peak.
    """

    requests: int
    equal: int
    missed: int
    largest_bytes: int
    largest_event: int | None
    mean_bytes: float
    peak_bytes: int
    peak_share: float


@dataclass
class Replayed:
    """The replay under one setting.

    Attributes:
        setting: The setting, with its one outcome.
        curve: The usage over the replay; None: the replay failed.
        failed_event: The event of the recording whose allocation found no memory here, which ended
            the replay; None: every allocation that succeeded in the recording succeeded here.
        failed_bytes: The bytes that this allocation requested.
        end_reserved_bytes: The reserved bytes at the end.
        end_allocated_bytes: The allocated bytes at the end.
        free_bytes: The free bytes of the device here before the replay.
        limit_bytes: What the allocator could reserve, if that is less; None: all free bytes.
        fitted: How many allocations that failed in the recording succeeded here.
        freed_early: Blocks that were freed earlier than in the recording, before the streams that
            they waited for, because there was no other memory.
        asked_s: The time that all requests took.
    """

    setting: Setting
    curve: Curve | None = None
    failed_event: int | None = None
    failed_bytes: int | None = None
    end_reserved_bytes: int | None = None
    end_allocated_bytes: int | None = None
    free_bytes: int | None = None
    limit_bytes: int | None = None
    fitted: int = 0
    freed_early: int = 0
    asked_s: float | None = None

    def numbers(self) -> dict[str, Any]:
        """Return all attributes but the setting, which the comparison has, and the curve."""
        names = {attribute.name for attribute in fields(self)} - {"setting", "curve"}
        return {name: getattr(self, name) for name in sorted(names)}

    def notes(self) -> Iterator[str]:
        """Yield what the row of this setting does not show, in sentences."""
        name, outcome = self.setting.name, self.setting.outcomes[0]
        if self.fitted:
            yield (
                f"{name}: {number(self.fitted, 'allocation')} that failed in the recording "
                "succeeded here. What the program would have allocated after that is unknown, and "
                "may not fit."
            )
        if self.freed_early:
            yield (
                f"{name}: {number(self.freed_early, 'free')} that waited for streams took effect "
                "earlier than in the recording, because there was no other memory."
            )
        if "garbage_collection_threshold" in self.setting.settings:
            yield (
                f"{name}: garbage_collection_threshold acts only below a limit (a --capacity that "
                "is less than the device has, or a memory fraction). Collections of the recording "
                "are replayed as empty_cache()."
            )
        is_limited = self.limit_bytes is not None
        is_expandable = "expandable_segments:True" in self.setting.settings
        if is_limited and is_expandable and (outcome.retries or outcome.ooms):
            yield (
                f"{name}: a limit is a little stricter than a full device, because with expandable "
                "segments the allocator counts complete requests against it."
            )
        if self.failed_event is not None:
            yield self._why_it_ended(self.failed_event)

    def _why_it_ended(self, event: int) -> str:
        when = f"at event {event:,} of the recording"
        if event < 0:
            when = "for the blocks that are older than the trace"
        return (
            f"{self.setting.name}: the replay ended, because there was no memory for "
            f"{size(self.failed_bytes or 0)} {when}, with {size(self.end_reserved_bytes or 0)} "
            f"reserved and {size(self.end_allocated_bytes or 0)} allocated."
        )


@dataclass(frozen=True)
class Answers:
    """The replays under all settings, by the simulator or by a device.

    Attributes:
        replayed: The replays: the recording's own settings, then the others.
        reference: The replay under the recording's own settings and limit; None: it failed.
        limit_bytes: How much the allocator could reserve; None: all of the device.
        why_unknown: Why there is no `reference`.
        notes: What makes these replays inexact, one sentence each.
    """

    replayed: list[Replayed]
    reference: Replayed | None
    limit_bytes: int | None
    why_unknown: str
    notes: list[str]


@dataclass
class Replay:
    """The replays of a recording under each setting.

    Attributes:
        path: The snapshot file of the recording.
        device: The device of the recording that is replayed, such as "cuda:0".
        is_simulated: Whether the simulator answered the requests, and not a real allocator.
        is_estimate: Whether allocations were left out or scaled, so that the replays are estimates
            of another program.
        recorded: The numbers of the recording itself, as those of a setting.
        recorded_curve: The usage in the recording.
        requests: The number of allocations, frees and other calls.
        older_blocks: The number of blocks that are older than the trace.
        older_freed: How many of these the trace frees.
        capacity_bytes: How much the allocator could reserve; None: all of the device.
        deviation: The error bar of all replays; None: unknown, because the replay under the
            recording's own settings failed.
        replayed: The replays: the recording's own settings, then the others.
        notes: What makes the replays inexact, one sentence each.
    """

    path: str
    device: str
    is_simulated: bool
    is_estimate: bool
    recorded: Setting
    recorded_curve: Curve
    requests: int
    older_blocks: int
    older_freed: int
    capacity_bytes: int | None
    deviation: Deviation | None
    replayed: list[Replayed]
    notes: list[str]

    @property
    def comparison(self) -> Comparison:
        """The comparison, for its table, JSON report and plot."""
        metadata = {
            "path": self.path,
            "device": self.device,
            "is_simulated": self.is_simulated,
            "is_estimate": self.is_estimate,
            "capacity_bytes": self.capacity_bytes,
            "requests": self.requests,
            "older_blocks": self.older_blocks,
            "older_freed": self.older_freed,
            "recorded": self.recorded,
            "deviation": self.deviation,
            "replays": [replayed.numbers() for replayed in self.replayed],
        }
        notes = [*self.notes, *(note for replayed in self.replayed for note in replayed.notes())]
        return Comparison([replayed.setting for replayed in self.replayed], notes, metadata)

    @property
    def curves(self) -> dict[str, Curve]:
        """The usage in the recording and in each replay that did not fail, by name."""
        curves = {replayed.setting.name: replayed.curve for replayed in self.replayed}
        known = {name: curve for name, curve in curves.items() if curve is not None}
        return {"recorded": self.recorded_curve, **known}

    def fidelity(self) -> str:
        """Return how near a replay is to the recording, in a few sentences."""
        return fidelity_text(self.deviation)


def fidelity_text(deviation: Deviation | None) -> str:
    """Return how near a replay is to the recording, in a few sentences."""
    if deviation is None:
        return "Error bar: unknown, because the recording's own settings were not replayed."
    compared = number(deviation.requests, "allocation and free", "allocations and frees")
    if deviation.equal == deviation.requests and not deviation.missed:
        return (
            "The replay is exact: under its own settings and limit, it reserves exactly "
            f"what the recording reserved, after each of its {compared}."
        )
    largest = ""
    if deviation.largest_event is not None:
        largest = f" (event {deviation.largest_event:,})"
    missed = ""
    if deviation.missed:
        missed = (
            f" That replay ended {deviation.missed:,} allocations and frees before the end of "
            "the recording."
        )
    share = f"{deviation.peak_share:+.1%}".replace("%", " %")
    return (
        f"Error bar: {size(abs(deviation.peak_bytes))} ({share}). A replay under the recording's "
        "own settings and limit reserves that much more or less at its peak than the recording; "
        f"after each request, {size(round(deviation.mean_bytes))} on average and "
        f"{size(abs(deviation.largest_bytes))} at most{largest}. Smaller differences between "
        "settings mean nothing."
        f"{missed}"
    )
