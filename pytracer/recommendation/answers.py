"""The answer of a recommendation in words."""

import re
from dataclasses import dataclass, field

import numpy as np

from pytracer.analysis.requests import FAIL, Recording
from pytracer.recommendation.results import (
    CHANGE,
    KEEP,
    LEAK,
    NO_SETTING,
    TOO_LARGE,
    UNKNOWN,
    TriedSetting,
)
from pytracer.simulator.deviation import Reference
from pytracer.text import number, size

WORTH = 0.02
"""The share of the peak that a change must save, if the recording's own settings fit."""

COMPLETE = (
    "Record from the beginning of the program, with a ring that keeps all events "
    "(PYTRACER_TRACE_ALLOC_MAX_ENTRIES): then the simulation is exact."
)


@dataclass(frozen=True)
class Facts:
    """What decides an answer.

    Attributes:
        recording: The recording, as it is.
        capacity_bytes: How much the allocator can reserve; None: unknown.
        needed_bytes: The most bytes that the program requested and held at one moment.
        own, best: The recording's own settings, and the best settings.
        tried: All simulated settings.
        is_search: Whether the settings were searched, and not given.
        reference: The simulation of the recording as it is, with the error bar.
        is_estimate: Whether the requests were changed.
    """

    recording: Recording
    capacity_bytes: int | None
    needed_bytes: int
    own: TriedSetting
    best: TriedSetting
    tried: list[TriedSetting]
    is_search: bool
    reference: Reference
    is_estimate: bool

    @property
    def others(self) -> list[TriedSetting]:
        """The simulated settings without the recording's own."""
        return [tried for tried in self.tried if tried.name != self.own.name]

    def none(self, verb: str, plain_verb: str) -> str:
        """Return a clause such as "none of 30 settings fits" or "a:1 does not fit"."""
        if self.is_search:
            return f"none of {number(len(self.tried), 'setting')} {verb}"
        if len(self.others) == 1:
            return f"{self.others[0].name} does not {plain_verb}"
        return f"none of the {len(self.others)} given settings {verb}"


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


def leak_first(answer: Answer, sentence: str) -> Answer:
    """Return an answer that begins with a leak, which no setting stops.

    Args:
        answer: The answer about settings.
        sentence: The sentence about the leak.
    """
    text = sentence if sentence.startswith("Leak") else f"Leak: {sentence}"
    why = f"No setting stops a leak. Apart from the leak: {answer.text} {answer.why}".rstrip()
    return Answer(LEAK, text, why, answer.notes)


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
    if facts.reference.why_unknown is not None:
        return _unknown(facts, facts.reference.why_unknown)
    if not best.fits:
        room = "any device" if capacity is None else size(capacity)
        none = re.sub("^none ", "None ", facts.none("fits", "fit"))
        return Answer(
            NO_SETTING,
            f"{none} into {room}, although the program itself never holds more than {needed}.",
            _smallest(own, best),
        )
    bar = abs(facts.reference.deviation.peak_bytes)
    saved = own.peak_reserved_bytes - best.peak_reserved_bytes
    helps = not own.fits or (own.retries > 0 and not best.retries)
    if own.settings == best.settings or not (helps or saved > WORTH * own.peak_reserved_bytes):
        return _keep(facts)
    if not helps and saved <= bar:
        return Answer(
            UNKNOWN,
            f"Can't tell whether {best.name} helps, because it saves {size(saved)} of the "
            f"{size(own.peak_reserved_bytes)} reserved at the peak, and the error bar is "
            f"{size(bar)}.",
            COMPLETE,
        )
    if (
        capacity is not None
        and not own.fits
        and best.smallest_device_bytes is not None
        and best.smallest_device_bytes + bar > capacity
        and bar > 0
    ):
        return Answer(
            UNKNOWN,
            f"Can't tell whether {best.name} would have fitted, because it needs a device of "
            f"{size(best.smallest_device_bytes)}, the error bar is {size(bar)}, and the allocator "
            f"can reserve {size(capacity)}.",
            COMPLETE,
        )
    return _change(facts, saved)


def _unknown(facts: Facts, why: str) -> Answer:
    recording, what = facts.recording, "which setting is best"
    if not facts.is_search:
        names = [tried.name for tried in facts.others]
        what = f"whether {names[0]} helps" if len(names) == 1 else "which of the settings helps"
    advice = COMPLETE
    if recording.starts_empty and np.any(recording.requests.kind == FAIL):
        advice = (
            "If you know how much the allocator could reserve in the recording, give --capacity."
        )
    return Answer(UNKNOWN, f"Can't tell {what}, because {why}.", advice)


def _keep(facts: Facts) -> Answer:
    own, needed = facts.own, size(facts.needed_bytes)
    peak = size(own.peak_reserved_bytes)
    begin = "Your settings are right" if facts.is_search else "Keep your settings"
    saves = f"more than {WORTH:.0%} of the {peak} reserved".replace("%", " %")
    none = facts.none(f"saves {saves}", f"save {saves}")
    if own.fits and not facts.is_search and not any(tried.fits for tried in facts.others):
        none = facts.none("fits", "fit")
    return Answer(
        KEEP,
        f"{begin}: {none}.",
        f"The program itself holds {needed} at its peak. To need less memory, it must hold less.",
    )


def _change(facts: Facts, saved: int) -> Answer:
    own, best = facts.own, facts.best
    failed = int(np.count_nonzero(facts.recording.requests.kind == FAIL))
    peak = size(best.peak_reserved_bytes)
    notes = []
    if not own.fits:
        fits = "the program would fit"
        if failed and not facts.is_estimate:
            fits = "the allocation that failed would have fitted"
        text = f"Use {best.name}: {fits}, with {peak} reserved at the peak."
        event = "" if own.failed_event is None else f" at event {own.failed_event:,}"
        why = (
            f"With its own settings, it runs out of memory for {size(own.failed_bytes or 0)}"
            f"{event}, with {size(own.waste_at_oom_bytes or 0)} reserved but not allocated at that "
            "moment."
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
