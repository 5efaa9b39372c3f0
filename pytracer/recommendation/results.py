"""The results of a recommendation, and its answer in words.

`pytracer recommend --json` writes the dataclasses.
"""

import re
import shlex
from dataclasses import dataclass, replace

import numpy as np

from pytracer.analysis.answer_words import answer_of
from pytracer.analysis.explanation import Explanation
from pytracer.analysis.oom import reasons
from pytracer.analysis.requests import FAIL, Recording
from pytracer.simulator.deviation import Deviation
from pytracer.text import BriefRepr, number, size
from pytracer.variables import command_of

CHANGE = "change"
KEEP = "keep"
TOO_LARGE = "too large"
NO_SETTING = "no setting"
UNKNOWN = "can't tell"
LEAK = "leak"

_NO_SETTING = {
    *(reasons.GARBAGE, reasons.EXCEPTION, reasons.LIMIT, reasons.OTHERS, reasons.OTHER_POOL),
    *(reasons.STREAMS, reasons.FREED, reasons.LIBRARY, reasons.REPLACED, reasons.GROWING),
    reasons.WAITING,
}
"""The reasons of an out-of-memory error that are not of the allocator's settings."""

WORTH = 0.02  # the share of the peak that a change must save, if the recording's own settings fit

COMPLETE = (
    "Record from the beginning of the program, with a ring that keeps all events "
    "(PYTRACER_TRACE_ALLOC_MAX_ENTRIES): then the simulation is exact."
)


@dataclass(frozen=True)
class TriedSetting:
    """The simulation of a recording under one setting.

    Attributes:
        name: The placement settings alone, as in "expandable_segments:True"; "defaults" without
            any; "own settings (...)" for those of the recording. Given settings: as given.
        settings: All settings, in the form of the allocator's variable.
        fits: Whether every allocation found memory, also those that failed in the recording.
        ooms: The number of allocations that found no memory.
        failed_event: The event of the recording at which the simulation ended, because an
            allocation found no memory that found some in the recording; None: it did not end there.
        failed_bytes: The bytes that the last failed allocation requested; None: none failed.
        peak_reserved_bytes: The most bytes that the allocator had reserved.
        waste_bytes: The part of these bytes that was not allocated at that moment.
        waste_at_oom_bytes: The bytes that were reserved and not allocated when the last allocation
            failed; None: none failed.
        retries: How often the allocator gave its cache back in order to allocate.
        device_allocs, device_frees: How often segments were taken from the device and given back.
        maps, unmaps: How often memory of expandable segments was mapped and unmapped.
        smallest_device_bytes: The least memory with which every allocation finds memory, to
            `UNIT_BYTES`; None: not computed for this setting.
    """

    name: str
    settings: str
    fits: bool
    ooms: int
    failed_event: int | None
    failed_bytes: int | None
    peak_reserved_bytes: int
    waste_bytes: int
    waste_at_oom_bytes: int | None
    retries: int
    device_allocs: int
    device_frees: int
    maps: int
    unmaps: int
    smallest_device_bytes: int | None = None

    @property
    def device_calls(self) -> int:
        """The calls to the device, which are the price of a setting."""
        return self.device_allocs + self.device_frees + self.maps + self.unmaps

    @property
    def rank(self) -> tuple[int, int]:
        """The order of settings: those that fit without retries, with retries, and the others."""
        if not self.fits:
            return 2, -(1 << 62 if self.failed_event is None else self.failed_event)
        return int(self.retries > 0), self.peak_reserved_bytes


@dataclass(frozen=True)
class RankOutcome:
    """One file of a job with several.

    Attributes:
        path: The file.
        rank: The process's rank; None if unknown.
        own: The simulation under the recording's own settings.
        why_unknown: Why the file says nothing about other settings; None if it does.
        recommended: The simulation under the settings that are recommended for the job; None
            without a recommendation, or with `why_unknown`.
    """

    path: str
    rank: int | None
    own: TriedSetting
    why_unknown: str | None
    recommended: TriedSetting | None


@dataclass(frozen=True, repr=False)
class Recommendation(BriefRepr):
    """The settings that a recorded program needs.

    Attributes:
        path: The file that decides: of several ranks, that of the worst.
        rank: The rank of the process that wrote it; None if unknown.
        device: The device, as in "cuda:0".
        torch_version: The version of torch (of torch_npu on an NPU); None if unknown.
        capacity_bytes: How much the allocator can reserve; None: unknown, so that no allocation can
            fail in the simulation.
        requests: The number of recorded requests. After an out-of-memory, the rest of its step is
            simulated, too.
        kind: "change": the recommended settings are better. "keep": no setting is much better than
            the recording's own. "too large": the program holds more than the capacity, so that no
            setting helps. "no setting": none of the settings fits, but another allocator might.
            "can't tell": a simulation of the recording's own settings does not reproduce the
            recording, or the difference is within the error bar. "leak": memory is kept from step
            to step, or grew all the time, which no setting stops.
        answer: The answer, in a sentence.
        command: The line to paste into a shell; "" without a change.
        why: The figures that decided, in sentences.
        needed_bytes: The most bytes that the program requests and holds at one moment, with the
            allocation that failed, and with the rest of its step by estimate.
        deviation: How far a simulation of the recording's own settings is from the recording.
        own: The simulation under the recording's own settings.
        recommended: The simulation under the recommended settings; None without a change.
        settings: The given settings, which were simulated and no others; []: many were searched.
        tried: All simulated settings, the best first.
        ranks: The files of a job with several; [] for one file.
        notes: What makes the answer inexact, or what could not be judged.
    """

    path: str
    rank: int | None
    device: str
    torch_version: str | None
    capacity_bytes: int | None
    requests: int
    kind: str
    answer: str
    command: str
    why: str
    needed_bytes: int
    deviation: Deviation
    own: TriedSetting
    recommended: TriedSetting | None
    settings: list[str]
    tried: list[TriedSetting]
    ranks: list[RankOutcome]
    notes: list[str]


def answered(
    found: Recommendation,
    best: TriedSetting,
    recording: Recording,
    why_unknown: str | None,
    like: str,
    recorded_bytes: int,
) -> Recommendation:
    """Return a recommendation with the answer that its figures allow.

    Args:
        why_unknown: Why the recording says nothing about other settings; None if it does.
        like: The step that the rest of the last one is taken from, if it ran out of memory.
        recorded_bytes: What the program needed until then.
    """
    own, capacity, needed = found.own, found.capacity_bytes, size(found.needed_bytes)
    rest, about = "", ""
    if found.needed_bytes > recorded_bytes:
        rest, about = f" for the rest of a step like {like}", "about "
    if capacity is not None and found.needed_bytes > capacity:
        return _answer(
            found,
            TOO_LARGE,
            f"No setting helps: the program needs {about}{needed} at one moment{rest}, and the "
            f"allocator can reserve {size(capacity)}.",
            "The program must hold less, or the device must be larger.",
        )
    if why_unknown is not None:
        return _unknown(found, recording, why_unknown)
    if not best.fits:
        room = "any device" if capacity is None else size(capacity)
        none = re.sub("^none ", "None ", _none(found, "fits", "fit"))
        most = f"although the program itself never holds more than {about}{needed}{rest}"
        text = f"{none} into {room}, {most}."
        return _answer(found, NO_SETTING, text, _smallest(own, best))
    bar = abs(found.deviation.peak_bytes)
    saved = own.peak_reserved_bytes - best.peak_reserved_bytes
    helps = not own.fits or (own.retries > 0 and not best.retries)
    if own.settings == best.settings or not (helps or saved > WORTH * own.peak_reserved_bytes):
        return _keep(found)
    if not helps and saved <= bar:
        text = (
            f"Can't tell whether {best.name} helps, because it saves {size(saved)} of the "
            f"{size(own.peak_reserved_bytes)} reserved at the peak, and the error bar is "
            f"{size(bar)}."
        )
        return _answer(found, UNKNOWN, text, COMPLETE)
    least = best.smallest_device_bytes
    if least and capacity is not None and not own.fits and bar > max(capacity - least, 0):
        text = (
            f"Can't tell whether {best.name} would have fitted: it needs a device of "
            f"{size(least)}, give or take {size(bar)}, and the allocator can reserve "
            f"{size(capacity)}."
        )
        return _answer(found, UNKNOWN, text, COMPLETE)
    return _change(found, best, recording, like)


def ran_out(recording: Recording) -> bool:
    """Return whether an allocation failed in a recording."""
    return bool(np.any(recording.requests.kind == FAIL))


def reason_first(found: Recommendation, explanation: Explanation) -> Recommendation:
    """Return a recommendation that begins with the reason which `pytracer show` names.

    That is a leak, or what no setting mends.
    """
    answer, leak = answer_of(explanation, is_saved=False), explanation.leak_sentence()
    kinds = {each.kind for each in explanation.verdicts}
    is_growth = bool(leak) or reasons.KEPT_GROWING in kinds
    is_growth |= explanation.oom is None and explanation.growth is not None
    is_named = bool(_NO_SETTING & kinds) or explanation.of_streams is not None
    whys, remedies = answer.texts("why") or answer.texts("from"), answer.texts("do")[:1]
    if not is_growth and (not is_named or not whys or found.kind == CHANGE):
        return found
    text, command = f"{answer.verdict}: {' '.join(whys[:1])}", ""
    if leak:
        text = leak if leak.startswith("Leak") else f"Leak: {leak}"
        command = f"pytracer show {shlex.quote(found.path)} --leaks"
        remedies = []
    if is_growth:
        remedies += ["No setting stops the growth. Apart from that:"]
    found = _answer(found, found.kind, text, " ".join([*remedies, found.answer, found.why]).strip())
    return replace(found, kind=LEAK, command=command, recommended=None) if is_growth else found


def _answer(found: Recommendation, kind: str, text: str, why: str) -> Recommendation:
    return replace(found, kind=kind, answer=text, why=why)


def _others(found: Recommendation) -> list[TriedSetting]:
    return [tried for tried in found.tried if tried.name != found.own.name]


def _none(found: Recommendation, verb: str, plain_verb: str) -> str:
    """Return a clause such as "none of 30 settings fits" or "a:1 does not fit"."""
    others = _others(found)
    if not found.settings:
        return f"none of {number(len(found.tried), 'setting')} {verb}"
    if len(others) == 1:
        return f"{others[0].name} does not {plain_verb}"
    return f"none of the {len(others)} given settings {verb}"


def _unknown(found: Recommendation, recording: Recording, why: str) -> Recommendation:
    what = "which setting is best"
    if found.settings:
        names = [tried.name for tried in _others(found)]
        what = f"whether {names[0]} helps" if len(names) == 1 else "which of the settings helps"
    advice = COMPLETE
    if recording.starts_empty and ran_out(recording):
        advice = (
            "If you know how much the allocator could reserve in the recording, give --capacity."
        )
    return _answer(found, UNKNOWN, f"Can't tell {what}, because {why}.", advice)


def _keep(found: Recommendation) -> Recommendation:
    own, needed = found.own, size(found.needed_bytes)
    begin = "Keep your settings" if found.settings else "Your settings are right"
    peak = size(own.peak_reserved_bytes)
    saves = f"more than {WORTH:.0%} of the {peak} reserved".replace("%", " %")
    none = _none(found, f"saves {saves}", f"save {saves}")
    if own.fits and found.settings and not any(tried.fits for tried in _others(found)):
        none = _none(found, "fits", "fit")
    why = f"The program itself holds {needed} at its peak. To need less memory, it must hold less."
    return _answer(found, KEEP, f"{begin}: {none}.", why)


def _change(
    found: Recommendation, best: TriedSetting, recording: Recording, like: str
) -> Recommendation:
    own, peak = found.own, size(best.peak_reserved_bytes)
    failed = ran_out(recording)
    notes = [*found.notes]
    if not own.fits:
        fits = "the program would fit"
        if failed:
            fits = "the allocation that failed would have fitted"
            fits += f", as would the rest of a step like {like}" if like else ""
        text = f"Use {best.name}: {fits}, with {peak} reserved at the peak."
        event = "" if own.failed_event is None else f" at event {own.failed_event:,}"
        why = (
            "With its own settings, it runs out of memory at a request for "
            f"{size(own.failed_bytes or 0)}{event}, with {size(own.waste_at_oom_bytes or 0)} "
            "reserved but not allocated at that moment."
        )
        if failed and not like:
            notes.append(
                "The program's allocations after the one that failed are unknown, and may not fit."
            )
    elif own.retries and not best.retries:
        text = (
            f"Use {best.name}: the allocator never has to give its cache back, with {peak} "
            "reserved at the peak."
        )
        why = (
            "With the recording's own settings, the allocator returns its cache to the device "
            f"{number(own.retries, 'time')}. The device waits each time."
        )
    else:
        saved = own.peak_reserved_bytes - best.peak_reserved_bytes
        share = f"{saved / own.peak_reserved_bytes:.1%}".replace("%", " %")
        text = f"Use {best.name}: it reserves {size(saved)} ({share}) less at the peak, {peak}."
        why = (
            f"With its own settings, the program has {size(own.peak_reserved_bytes)} reserved at "
            f"the peak, of which {size(own.waste_bytes)} are not allocated."
        )
    more = best.device_calls - own.device_calls
    if own.fits and more > 0:
        why += f" This costs {more:,} more calls to the device."
    own_settings, version = recording.settings, recording.torch_version
    command = command_of(best.settings, recording.backend, version, own_settings)
    answer = _answer(found, CHANGE, text, f"{why}{_smallest(own, best)}")
    return replace(answer, command=command, recommended=best, notes=notes)


def _smallest(own: TriedSetting, best: TriedSetting) -> str:
    if best.smallest_device_bytes is None or own.smallest_device_bytes is None:
        return ""
    return (
        f" The trace would then fit on a device of {size(best.smallest_device_bytes)}; with its "
        f"own settings, it needs {size(own.smallest_device_bytes)}."
    )
