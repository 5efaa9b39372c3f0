"""The answer of a recommendation in words."""

from dataclasses import dataclass, field

import numpy as np

from pytracer.analysis.requests import FAIL, Recording
from pytracer.experiments.replay_result import Deviation
from pytracer.recommendation.results import (
    CHANGE,
    KEEP,
    NO_SETTING,
    TOO_LARGE,
    UNKNOWN,
    TriedSetting,
)
from pytracer.text import number, size

WORTH = 0.02
"""The share of the peak that a change must save, if the recording's own settings fit."""


@dataclass(frozen=True)
class Facts:
    """What decides an answer.

    Attributes:
        recording: The recording, as it is.
        capacity_bytes: How much the allocator can reserve; None: unknown.
        needed_bytes: The most bytes that the program requested and held at one moment.
        own, best: The recording's own settings, and the best settings.
        settings: How many settings were simulated.
        deviation: The error bar.
        why_unknown: Why the recording says nothing about other settings; None if it does.
        is_estimate: Whether the requests were changed.
    """

    recording: Recording
    capacity_bytes: int | None
    needed_bytes: int
    own: TriedSetting
    best: TriedSetting
    settings: int
    deviation: Deviation
    why_unknown: str | None
    is_estimate: bool


@dataclass(frozen=True)
class Answer:
    """An answer: its kind (see `Recommendation`), the sentence, the reasons, and notes."""

    kind: str
    text: str
    why: str
    notes: list[str] = field(default_factory=list)

    @property
    def is_change(self) -> bool:
        """Whether other settings are recommended."""
        return self.kind == CHANGE


def answer_of(facts: Facts) -> Answer:
    """Return the answer that the facts allow."""
    own, best, capacity = facts.own, facts.best, facts.capacity_bytes
    needed = size(facts.needed_bytes)
    if capacity is not None and facts.needed_bytes > capacity:
        return Answer(
            TOO_LARGE,
            f"No setting helps: the program needs {needed} at one moment, and the allocator can "
            f"reserve {size(capacity)}.",
            "The program must hold less, or the device must be larger.",
        )
    if facts.why_unknown is not None:
        return Answer(
            UNKNOWN,
            f"Can't tell which setting is best, because {facts.why_unknown}.",
            "Record from the beginning of the program, with a ring that keeps all events "
            "(PYTRACER_TRACE_ALLOC_MAX_ENTRIES), and give --capacity.",
        )
    if not best.fits:
        assert capacity is not None
        return Answer(
            NO_SETTING,
            f"None of {number(facts.settings, 'setting')} fits into {size(capacity)}, although the "
            f"program itself never holds more than {needed}.",
            _smallest(own, best),
        )
    bar = abs(facts.deviation.peak_bytes)
    saved = own.peak_reserved_bytes - best.peak_reserved_bytes
    helps = not own.fits or (own.retries > 0 and not best.retries)
    if own.settings == best.settings or not (
        helps or saved > max(bar, WORTH * own.peak_reserved_bytes)
    ):
        return _keep(facts)
    if (
        capacity is not None
        and not own.fits
        and best.smallest_device_bytes is not None
        and best.smallest_device_bytes + bar > capacity
        and bar > 0
    ):
        return Answer(
            UNKNOWN,
            f"Can't tell whether {best.name} would have fitted: it needs a device of "
            f"{size(best.smallest_device_bytes)}, the error bar is {size(bar)}, and the allocator "
            f"can reserve {size(capacity)}.",
            "Record from the beginning of the program to make the simulation exact.",
        )
    return _change(facts, saved)


def _keep(facts: Facts) -> Answer:
    own, needed = facts.own, size(facts.needed_bytes)
    peak = size(own.peak_reserved_bytes)
    return Answer(
        KEEP,
        f"Your settings are right: none of {number(facts.settings, 'setting')} saves more than "
        f"{WORTH:.0%} of the {peak} reserved.".replace("%", " %"),
        f"The program itself holds {needed} at its peak. To need less memory, it must hold less.",
    )


def _change(facts: Facts, saved: int) -> Answer:
    own, best = facts.own, facts.best
    failed = int(np.count_nonzero(facts.recording.requests.kind == FAIL))
    peak = size(best.peak_reserved_bytes)
    notes = []
    if not own.fits:
        tense = "would fit" if facts.is_estimate or not failed else "would have fitted"
        text = f"Use {best.name}: the program {tense}, with {peak} reserved at the peak."
        event = "" if own.failed_event is None else f" at event {own.failed_event:,}"
        why = (
            f"With its own settings, it runs out of memory for {size(own.failed_bytes or 0)}"
            f"{event}, with {size(own.waste_bytes)} reserved but not allocated at the peak."
        )
        if failed:
            notes.append(
                "After an allocation that failed, what the program would have allocated next is "
                "unknown, and may not fit."
            )
    elif own.retries and not best.retries:
        text = (
            f"Use {best.name}: the allocator never has to give its cache back, with {peak} "
            "reserved at the peak."
        )
        why = (
            f"With the recording's own settings, it does so "
            f"{number(own.retries, 'time')}, and each time the device waits."
        )
    else:
        share = f"{saved / own.peak_reserved_bytes:.1%}".replace("%", " %")
        text = f"Use {best.name}: {size(saved)} ({share}) less are reserved at the peak, {peak}."
        why = (
            f"With its own settings, the program has {size(own.peak_reserved_bytes)} reserved at "
            f"the peak, of which {size(own.waste_bytes)} are not allocated."
        )
    more = best.device_calls - own.device_calls
    if own.fits and more > 0:
        why += f" The price are {more:,} more calls to the device."
    return Answer(CHANGE, text, f"{why}{_smallest(own, best)}", notes)


def _smallest(own: TriedSetting, best: TriedSetting) -> str:
    if best.smallest_device_bytes is None or own.smallest_device_bytes is None:
        return ""
    return (
        f" The smallest device on which the trace fits has {size(best.smallest_device_bytes)}, "
        f"with its own settings {size(own.smallest_device_bytes)}."
    )
