"""What a replay comes to: its numbers, and what they do not tell by themselves."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from pytracer.comparison import Comparison, Setting
from pytracer.reading.snapshot import Column
from pytracer.reading.text import number, size


@dataclass(frozen=True)
class Deviation:
    """How far the recording's reserved bytes and those of its replay under its own settings differ.

    Attributes:
        requests: How many allocations and frees were compared.
        equal: After how many of them they are equal.
        missed: How many there are beside, which the replay did not get to.
        largest_bytes: The largest difference; more than 0: the replay has more reserved.
        largest_event: The event of the recording where that is; None: they are equal throughout.
        mean_bytes: The mean of the differences' absolute values.
        peak_bytes: The difference of the peaks.
        peak_share: The same, of the recording's peak.
    """

    requests: int
    equal: int
    missed: int
    largest_bytes: int
    largest_event: int | None
    mean_bytes: float
    peak_bytes: int
    peak_share: float


class Curve(NamedTuple):
    """How full a device was after each request that was met; int64 columns of equal length."""

    request: Column
    reserved_bytes: Column
    allocated_bytes: Column


@dataclass
class Replayed:
    """How the replay under one setting went.

    Attributes:
        setting: It, with its one outcome.
        curve: Its levels; None: it failed.
        failed_event: The event of the recording whose allocation found no memory, which ended the
            replay; None: there was some for all that had some in the recording.
        failed_bytes: What that asked for.
        end_reserved_bytes, end_allocated_bytes: The levels in the end.
        free_bytes: What was free on the device here before.
        limit_bytes: What the allocator could reserve, if that is less; None: all.
        fitted: For how many allocations that failed in the recording there was memory.
        freed_early: Blocks whose free waited for a stream, which was not waited for, since there
            was no other memory.
        asked_s: How long all requests took.
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

    def about(self) -> dict[str, Any]:
        """Its attributes but the setting, which the comparison has, and the curve."""
        names = {each.name for each in fields(self)} - {"setting", "curve"}
        return {name: getattr(self, name) for name in sorted(names)}

    def notes(self) -> Iterator[str]:
        """What its row does not tell, in sentences."""
        name, outcome = self.setting.name, self.setting.outcomes[0]
        if self.fitted:
            yield (
                f"{name}: there was memory for {number(self.fitted, 'allocation')} that failed in "
                "the recording; what the program would have asked for then is not known, and may "
                "have been too much"
            )
        if self.freed_early:
            yield (
                f"{name}: {number(self.freed_early, 'free')} that waited for streams took effect "
                "earlier than in the recording, since there was no other memory"
            )
        if "garbage_collection_threshold" in self.setting.settings:
            yield (
                f"{name}: garbage_collection_threshold acts only where a limit is set (a capacity "
                "that is less than the device has, a memory fraction); what was collected in the "
                "recording is taken for empty_cache()"
            )
        is_limited = self.limit_bytes is not None
        is_expandable = "expandable_segments:True" in self.setting.settings
        if is_limited and is_expandable and (outcome.retries or outcome.ooms):
            yield (
                f"{name}: with expandable segments a limit counts whole requests, and so is a "
                "little stricter than a device that is full"
            )
        if self.failed_event is not None:
            yield self._why_it_ended(self.failed_event)

    def _why_it_ended(self, event: int) -> str:
        when = f"at event {event:,} of the recording"
        if event < 0:
            when = "for the blocks that are older than the trace"
        return (
            f"{self.setting.name}: no memory for {size(self.failed_bytes or 0)} {when}, with "
            f"{size(self.end_reserved_bytes or 0)} reserved and "
            f"{size(self.end_allocated_bytes or 0)} allocated."
        )


@dataclass
class Replay:
    """What a recording comes to under each setting.

    Attributes:
        path: The snapshot.
        device: The device in it, as in "cuda:0".
        recorded: What the recording itself tells, as for one of the settings.
        recorded_curve: Its levels.
        requests: How many allocations, frees and other calls there are.
        older_blocks, older_freed: How many blocks are older than the trace, and how many of these
            are freed in it.
        capacity_bytes: How much the allocator could reserve; None: all of the device.
        deviation: How far a replay under the recording's own settings is from the recording, which
            is how much every answer here may be wrong; None: that replay failed.
        replayed: The recording's own settings, then the others.
        notes: What makes it inexact, a sentence each.
    """

    path: str
    device: str
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
        """For its table, report and plot."""
        about = {
            "path": self.path,
            "device": self.device,
            "capacity_bytes": self.capacity_bytes,
            "requests": self.requests,
            "older_blocks": self.older_blocks,
            "older_freed": self.older_freed,
            "recorded": self.recorded,
            "deviation": self.deviation,
            "replays": [each.about() for each in self.replayed],
        }
        notes = [*self.notes, *(note for each in self.replayed for note in each.notes())]
        return Comparison([each.setting for each in self.replayed], notes, about)

    @property
    def curves(self) -> dict[str, Curve]:
        """The levels of all, the recording's too, by name."""
        curves = {each.setting.name: each.curve for each in self.replayed}
        told = {name: curve for name, curve in curves.items() if curve is not None}
        return {"recorded": self.recorded_curve, **told}

    def fidelity(self) -> str:
        """How near a replay under the recording's own settings is to the recording, in words."""
        deviation = self.deviation
        if deviation is None:
            return "How near a replay is to this recording is not known."
        compared = number(deviation.requests, "allocation and free", "allocations and frees")
        if deviation.equal == deviation.requests and not deviation.missed:
            return (
                "Replayed under its own settings and limit, reserved bytes are the recording's "
                f"after each of its {compared}."
            )
        largest = ""
        if deviation.largest_event is not None:
            largest = f" (event {deviation.largest_event:,})"
        missed = ""
        if deviation.missed:
            missed = f"It ended with {deviation.missed:,} allocations and frees still to come. "
        return (
            "Replayed under its own settings and limit, reserved bytes differ from the "
            f"recording's by {size(round(deviation.mean_bytes))} on average, "
            f"{size(abs(deviation.largest_bytes))} at most{largest}; the peak by "
            f"{size(abs(deviation.peak_bytes))} "
            f"({deviation.peak_share:+.1%}). {missed}Every answer may be wrong by as much: smaller "
            "differences between settings are none."
        ).replace("%", " %")
