"""The words of the answer about a device, from its explanation.

`pytracer show`, the job's log, notebooks and the page render them. The sentences of a verdict are
in `oom/reasons.py`, those of leaks in `leaks/results.py`, and what to try is in `advice.py`.
"""

import shlex
from collections.abc import Iterator

from pytracer.analysis.advice import is_much_unallocated
from pytracer.analysis.alike_rows import AlikeSteps
from pytracer.analysis.answer import Answer, Line
from pytracer.analysis.explanation import Explanation
from pytracer.analysis.frame_text import chain_text, shown_callers
from pytracer.analysis.holder_names import BY_OTHERS, kept_by_text, tells_where
from pytracer.analysis.holders import Holder
from pytracer.analysis.host_growth import HostGrowth, pinned_text
from pytracer.analysis.leaks.results import (
    LEAST_STEPS,
    DeviceLeaks,
    leaks_of,
    rate_text,
    since_text,
    source_text,
)
from pytracer.analysis.life_rules import UNKNOWN as NO_CATEGORY
from pytracer.analysis.oom import reasons
from pytracer.analysis.stream_memory import idle_streams_text, waiting_text
from pytracer.reading.metadata import Killed
from pytracer.text import number, sentence, size, size_range

SHOWN_HOLDERS = 3
SHOWN_RUNS = 3  # the most runs of steps, and the most kinds of modules, that an answer names

REASONS = {
    reasons.LEAK: "a leak",
    reasons.KEPT_GROWING: "memory kept growing",
    reasons.GARBAGE: "garbage that gc.collect() would free",
    reasons.EXCEPTION: "an exception keeps a failed attempt's memory in use",
    reasons.FRAGMENTED: "fragmented",
    reasons.LIMIT: "the process's memory limit",
    reasons.OTHERS: "memory outside of torch's allocator",
    reasons.OTHER_POOL: "free memory in another pool",
    reasons.STREAMS: "memory of idle streams",
    reasons.WAITING: "freed memory waits for a stream",
    reasons.FREED: "memory became free too late",
    reasons.LIBRARY: "a library could not allocate device memory",
    reasons.LARGER_INPUT: "this step needs more than earlier ones",
    reasons.GROWING: "one line requests more in nearly every step",
    reasons.REPLACED: "one line's blocks become larger and larger",
    reasons.EXHAUSTED: "nearly all memory is in use",
    reasons.SHORT: "this step needs more memory than there is",
    reasons.TOO_LARGE: "the request is too large",
    reasons.UNKNOWN: "can't tell why",
}
"""The kinds of verdicts in the words of an answer."""

NO_STEPS = "can't tell, because the recording has no steps"

NO_PROBLEM = "NO PROBLEM FOUND"

LEAST_SHARE = 0.01  # the least part of the memory that an answer names a category for

MUCH_KEPT = 0.1
"""The least part of all memory, without a category, that an answer names the Python object for."""

_WITHOUT_PLURAL = ("communication", "mixed", "temporary")


def answer_of(explanation: Explanation, *, is_saved: bool = True) -> Answer:
    """Return the answer about a device.

    Args:
        is_saved: Whether commands can read the file.
    """
    leaks = explanation.leaks
    if explanation.oom is not None:
        answer = _of_oom(explanation)
    elif leaks is not None and leaks.matters:
        answer = Answer("leak", leak_verdict(leaks), "", leak_lines(leaks))
        answer.lines.append(_peak(explanation))
    elif explanation.why_unknown is not None:
        why = sentence(explanation.why_unknown)
        answer = Answer("unknown", "CAN'T TELL whether there was a problem", "", [Line("why", why)])
        answer.lines.append(_peak(explanation))
    else:
        verdict = _verdict_at_peak(explanation)
        if explanation.killed is not None:
            verdict = verdict.replace(NO_PROBLEM, _killed_verdict(explanation.killed))
        answer = Answer("none", verdict, "", [_peak(explanation), *_reserved(explanation)])
        if (growth := explanation.growth) is not None:
            frame = growth.frames[0] if growth.frames else None
            answer.lines.insert(0, Line("from", source_text([growth]), frame=frame))
        answer.lines.append(Line("leak", _no_leak(explanation)))
        if explanation.host is not None:
            answer.lines.append(_host(explanation.host))
    if explanation.pinned is not None:
        answer.lines.append(Line("host", pinned_text(explanation.pinned)))
    gaps = [] if explanation.oom is not None else explanation.gaps
    lost = [Line("lost", gap) for gap in gaps]
    if explanation.unsearched:
        lost.append(Line("lost", unsearched_text(explanation.unsearched)))
    if explanation.killed is not None:
        answer.lines.insert(0, _ended(explanation.killed))
    lines = [*answer.lines, *lost, *_held(explanation), *_alike(explanation)]
    for one in explanation.suggestions:
        if not one.command:
            lines.append(Line("do", one.why))
        elif is_saved:
            lines.append(Line("do", one.command, one.note(), is_command=True))
    if is_saved:
        path = shlex.quote(explanation.path)
        lines.append(Line("more", f"pytracer show {path} --all", is_command=True))
        lines.append(Line("more", f"pytracer view {path}", is_command=True))
    return Answer(answer.kind, answer.verdict, _where(explanation), lines)


def unsearched_text(tensors: int) -> str:
    """Return that the holders of so many tensors were not searched for."""
    return (
        "the search for the objects that keep memory was cut short: "
        f"{number(tensors, 'tensor')} may have no named holder"
    )


def _where(explanation: Explanation) -> str:
    oom, parts = explanation.oom, [explanation.name]
    if explanation.rank is not None:
        role = "" if explanation.role is None else f"{explanation.role} "
        parts.append(f"{role}rank {explanation.rank}")
    if oom is not None:
        if oom.step is not None and explanation.has_steps:
            parts.append(f"step {oom.step}")
        if oom.phase:
            parts.append(f"phase {oom.phase}")
    return ", ".join(parts)


def _of_oom(explanation: Explanation) -> Answer:
    oom, kinds = explanation.oom, [verdict.kind for verdict in explanation.verdicts]
    assert oom is not None
    verdict = f"OUT OF MEMORY: {'; '.join(REASONS[kind] for kind in kinds)}"
    asked = chain_text(oom.call_site, shown_callers(oom.call_site, oom.callers))
    if oom.library_error is None:
        requested, segment = oom.requested_bytes, oom.segment_bytes
        is_told = explanation.is_cpu or size(segment) == size(requested)
        needed = None if is_told else segment
        lines = [Line("asked", asked, "", requested, frame=oom.call_site, segment_bytes=needed)]
    else:
        lines = [Line("asked", f"by a library: {oom.library_error}")]
    place = "in the system" if explanation.is_cpu else "on the device"
    free = f"{size(oom.device_free_bytes)} {place}"
    if oom.available_bytes < oom.device_free_bytes:
        free += f" ({size(oom.available_bytes)} within the process's limit)"
    if oom.sample is not None and not explanation.is_cpu:
        bound = "" if oom.sample.is_exact else "up to "
        inside, segments = oom.sample.free_bytes, "segments"
        own, count = oom.own_pool_free_bytes, oom.own_pool_segments
        if reasons.FRAGMENTED in kinds and own is not None and count is not None:
            of = " of its pool" if own < inside else ""
            inside, segments = own, number(count, "segment") + of
        largest = min(oom.sample.largest_free_bytes, inside)
        free += f" + {bound}{size(inside)} inside {segments}"
        if inside:
            free += f", the largest piece {bound}{size(largest)}"
        if oom.limit_bytes is not None and oom.available_bytes == oom.device_free_bytes:
            free += f"; device {size(oom.limit_bytes)}"
    lines.append(Line("free", free))
    for one in explanation.verdicts:
        is_told = one.kind == reasons.FRAGMENTED
        why = "the free memory would be enough if it were in one piece" if is_told else one.text
        lines.append(Line("why", sentence(why)))
    if explanation.ooms > 1:
        text = f"This is the last of {explanation.ooms:,} such errors in the recording"
        if explanation.held_before_bytes:
            text += f"; at the previous one, {size(explanation.held_before_bytes)} were held"
        lines.append(Line("why", text))
    leaks = explanation.leaks
    if leaks is not None:
        lines.append(Line("why", "The program continued with further steps"))
        if leaks.matters:
            lines.append(Line("leak", leak_verdict(leaks).removeprefix("LEAK: ")))
            lines += leak_lines(leaks)
    elif explanation.ooms == 1 and oom.has_allocated_since and explanation.why_unknown is None:
        lines.append(Line("why", "the program continued afterwards"))
    return Answer("oom", verdict, "", lines)


def leak_verdict(leaks: DeviceLeaks) -> str:
    """Return the verdict on a leak, as in "LEAK: 8 MiB a step since step 1"."""
    return f"LEAK: {rate_text(leaks, leaks.bytes_per_step)}{since_text(leaks_of(leaks), leaks)}"


def leak_lines(leaks: DeviceLeaks) -> list[Line]:
    """Return the lines about a leak: from where it is, and when memory runs out."""
    found = leaks_of(leaks)
    frames = found[0].frames
    lines = [Line("from", source_text(found), frame=frames[0] if frames else None)]
    if leaks.oom_step is not None:
        lines.append(Line("from", f"memory ran out in step {leaks.oom_step:,}"))
    elif leaks.exhausted_step is not None:
        lines.append(Line("from", f"memory runs out at about step {leaks.exhausted_step:,}"))
    return lines


def _peak(explanation: Explanation) -> Line:
    sample, moment = explanation.sample, explanation.held_at
    bound = "" if sample.is_exact else "at least "
    text = f"{bound}{size(sample.allocated_bytes)}"
    text += " at the end" if moment == "end" else ""
    if sample.step is not None and explanation.has_steps:
        text += f" in step {sample.step}"
    if sample.phase:
        text += f", phase {sample.phase}"
    if explanation.is_cpu:
        return Line("peak", text)
    text += f"; reserved {size(sample.reserved_bytes)}"
    if explanation.limit_bytes is not None:
        text += f" of {size(explanation.limit_bytes)}"
    if is_much_unallocated(sample):
        text += f", of which {size(sample.fragmentation_bytes)} were cached or fragmented"
    return Line("peak", text)


def _reserved(explanation: Explanation) -> Iterator[Line]:
    """Yield what stays between steps, what was reserved far above the peak, on which streams."""
    if explanation.carried is not None:
        carried_bytes, name = explanation.carried
        text = f"{size(carried_bytes)} of it were kept from one step to the next"
        yield Line("peak", f"{text}, {kept_by_text(name)}")
    most, found = explanation.most_reserved, explanation.of_streams
    if most is not None:
        text = f"reserved {size(most.reserved_bytes)}"
        if most.step is not None and explanation.has_steps:
            text += f" in step {most.step}"
        text += f", of which {size(most.fragmentation_bytes)} were cached or fragmented"
        yield Line("peak", text)
    if found is None:
        return
    text = size(found.size_bytes)
    if found.kind != "waiting":
        text = idle_streams_text(found)
    else:
        if found.step is not None and explanation.has_steps:
            text = f"in step {found.step}, {text}"
        text += f" {waiting_text(found)}"
    yield Line("why", text, frame=found.call_site)


def _verdict_at_peak(explanation: Explanation) -> str:
    of_streams, host = explanation.of_streams, explanation.host
    if of_streams is not None and of_streams.kind != "waiting":
        return f"CACHED ON {of_streams.streams} IDLE STREAMS"
    if of_streams is not None:
        return "FREED MEMORY WAITS FOR A STREAM"
    if explanation.growth is not None:
        return f"MEMORY KEPT GROWING: by {size(explanation.growth.held_bytes)}"
    if host is not None:
        return f"HOST MEMORY GROWS: {size(host.bytes_per_step)} a step"
    return NO_PROBLEM


def _killed_verdict(killed: Killed) -> str:
    if killed.by_oom_killer:
        return "KILLED: host memory ran out"
    if killed.is_ray_worker:
        return f"{NO_PROBLEM}: ended by Ray, or crashed"
    return "KILLED OR CRASHED: no memory problem found before"


def _ended(killed: Killed) -> Line:
    text = "without writing a last snapshot: it was killed, crashed, or called os._exit()"
    if killed.is_ray_worker:
        text = (
            "without writing a last snapshot: Ray ends workers this way at the end of the job, by "
            "ray.kill(), or when host memory is short. A crash looks the same: see Ray's log"
        )
    if killed.by_oom_killer:
        text = "without writing a last snapshot, when the OOM killer ended a process in its cgroup"
    if killed.is_cut:
        text += ". Some of what it recorded is missing, because the disk was full"
    return Line("ended", text)


def _host(host: HostGrowth) -> Line:
    rise = f"{size(host.first_bytes)} in step {host.first}, {size(host.last_bytes)} in step"
    what = "not on the recorded devices"
    if host.is_cpu_recorded:
        what = "not tensors, but Python objects, numpy or libraries"
    return Line("host", f"{rise} {host.last}: {what}")


def _no_leak(explanation: Explanation) -> str:
    leaks = explanation.leaks
    if not explanation.has_steps:
        return NO_STEPS
    if leaks is None:
        return f"can't tell, because the recording has fewer than {LEAST_STEPS} steps"
    if leaks.verdict == "leak":
        kept, source = leak_verdict(leaks).removeprefix("LEAK: "), source_text(leaks_of(leaks))
        return f"harmless: {kept}, from {source}"
    if leaks.verdict == "none":
        return f"none in steps {leaks.first} to {leaks.last}"
    return f"can't tell, because {leaks.reason}"


def _held(explanation: Explanation) -> Iterator[Line]:
    """Yield what the memory was for, and the lines that held most."""
    total = explanation.held_bytes
    text = f"{size(total)} {_MOMENTS[explanation.held_at]}"
    if waiting := explanation.sample.waiting_bytes:
        text += f", of which {size(waiting)} are freed and wait for a stream"
    parts: list[tuple[int, str]] = []
    for one in explanation.categories:
        if one.category == NO_CATEGORY:
            parts += _unknown(explanation, one.size_bytes)
        else:
            name = one.category.replace("_", " ")
            parts.append((one.size_bytes, name if name in _WITHOUT_PLURAL else f"{name}s"))
    if any(name != NO_CATEGORY for _, name in parts):
        parts.sort(key=lambda part: -part[0])
        shown = [part for part in parts if part[0] >= LEAST_SHARE * total]
        if others := sum(part[0] for part in parts) - sum(part[0] for part in shown):
            shown.append((others, "other"))
        text += ": " + " · ".join(f"{name} {size(size_bytes)}" for size_bytes, name in shown)
    yield Line("held", text)
    for holder in explanation.holders[:SHOWN_HOLDERS]:
        site = holder.site
        where = chain_text(site.call_site, holder.callers)
        notes = age_text(holder), holder.kept_by and kept_by_text(holder.kept_by)
        note = ", ".join(filter(None, notes))
        yield Line("lines", where, note, site.size_bytes, site.call_site)


def _unknown(explanation: Explanation, unknown_bytes: int) -> list[tuple[int, str]]:
    """Return the parts of unknown memory: what objects keep or kept, and the rest."""
    kept = [
        (each.unknown_bytes, each.name)
        for each in explanation.keepers
        if each.unknown_bytes and tells_where(each.name)
    ]
    kept += ((size_bytes, name) for name, size_bytes in explanation.releases)
    named = [
        (size_bytes, f"{kept_by_text(name)}:")
        for size_bytes, name in kept
        if size_bytes >= MUCH_KEPT * explanation.held_bytes
    ]
    by_others = sum(part[0] for part in kept) - sum(part[0] for part in named)
    rest = unknown_bytes - sum(part[0] for part in kept)
    return [*named, (by_others, BY_OTHERS), (rest, NO_CATEGORY)]


_MOMENTS = {"oom": "at that moment", "peak": "at the peak", "end": "at the end"}


def _alike(explanation: Explanation) -> Iterator[Line]:
    for one in explanation.modules[:SHOWN_RUNS]:
        name = one.name
        if one.modules > 1:
            each = size_range(one.least_bytes, one.most_bytes)
            name += f" ({one.modules} \N{MULTIPLICATION SIGN}, {each} each)"
        yield Line("modules", name, size_bytes=one.size_bytes)
    runs = explanation.steps
    if len(runs) > SHOWN_RUNS:
        most = max(runs, key=lambda run: run.most_bytes)
        yield Line(
            "steps",
            f"{_run(runs[0])} … {_run(runs[-1])}"
            + ("" if most in (runs[0], runs[-1]) else f"; the highest {_run(most)}"),
        )
    elif len(runs) > 1 or any(run.first < run.last for run in runs):
        yield Line("steps", " · ".join(map(_run, runs)))


def _run(run: AlikeSteps) -> str:
    name = f"{run.first}" if run.first == run.last else f"{run.first} to {run.last} alike"
    return f"{name}: peak {size_range(run.least_bytes, run.most_bytes)}"


def age_text(holder: Holder) -> str:
    """Return how old the blocks of a holder are, as in "2-7 steps old"; "" if it is unknown."""
    oldest, newest = holder.oldest_age, holder.newest_age
    if newest is None:
        return ""
    if oldest is None:
        return f"at least {number(newest, 'step')} old" if newest else "of this and earlier steps"
    if oldest == newest:
        return "of this step" if oldest == 0 else f"{number(oldest, 'step')} old"
    return f"{newest}-{oldest} steps old"
