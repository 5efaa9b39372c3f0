"""Why an allocation failed: the verdicts on an out-of-memory error, and their figures.

A verdict is given only if the figures prove it, whatever is unknown. What would have saved the
allocation is compared with `segment_bytes`, the memory that the allocator really needed. What could
not have saved it is compared with `requested_bytes`.
"""

from collections.abc import Iterator

from pytracer.analysis.allocator_rules import PAGE_BYTES
from pytracer.analysis.leaks.results import (
    leaks_of,
    rate_text,
    since_text,
    source_text,
)
from pytracer.analysis.oom import kinds as reasons
from pytracer.analysis.oom.earlier_requests import EarlierRequests
from pytracer.analysis.oom.kinds import Surroundings, Verdict
from pytracer.analysis.oom.outside_memory import held_outside, of_library, of_limit, of_others
from pytracer.analysis.oom.unusable_memory import of_idle_streams, of_other_pool
from pytracer.analysis.ooms import OutOfMemory
from pytracer.analysis.usage import UsageSample
from pytracer.text import number, sentence, size

MOST = 0.7
"""`NEARLY_ALL` where a forward pass or an optimizer is known to need more than all that is free."""

UNUSABLE_PART = 2**-10
"""The part of the device that its driver may refuse although it reports it as free.

An H200 refused 32 MiB of 41 MiB that were free of its 140 GiB.
"""

ALL_BUT_PIECES = 0.95
"""The part of the memory, the request included, from which the free pieces alone are no reason.

As much as a twentieth is lost in pieces under any settings.
"""

MUCH_UNUSED = 0.2
"""The part of the memory that garbage and exceptions hold at least, where they alone are a reason
although nearly all memory is in use."""

MUCH_IN_PIECES = 0.2
"""The part of the memory that is free in pieces if this alone is a reason, whatever comes next."""

SPARE_PAGES = 10  # how many pages of each stream must be to spare for a verdict of fragmentation


def verdicts(oom: OutOfMemory, around: Surroundings) -> list[Verdict]:
    """Return the verdicts on an out-of-memory error, at least one.

    A leak comes first: with it, the program runs out of memory whatever else is changed. The others
    follow, the cheapest remedy first.
    """
    kept, dropped = list(_leak(oom, around)), list(_dropped(oom, around))
    if around.is_cpu:
        return kept + dropped or [_of_cpu(oom, around)]
    sample = oom.sample
    if sample is None or around.why_no_history is not None:
        return [Verdict(reasons.UNKNOWN, f"{around.why_no_history}.")]
    if oom.library_error is not None:
        found = [of_library(oom, sample, around)]
        return found if found[0].kind == reasons.UNKNOWN else kept + dropped + found
    is_free = oom.segment_bytes <= oom.available_bytes
    if oom.segment_bytes + UNUSABLE_PART * (oom.limit_bytes or 0) <= oom.available_bytes:
        return [_of_enough_memory(oom)]
    if around.splits_all and (oom.own_pool_largest_bytes or 0) >= oom.requested_bytes:
        return [_of_freed_memory(oom)]
    exhausted = list(_exhausted(oom, sample, around))
    # If little of the memory is of no use, the program soon needs more than that.
    unused = around.garbage_bytes + around.exception_bytes
    if not exhausted or unused >= MUCH_UNUSED * sample.allocated_bytes:
        kept += dropped
    pieces = [] if exhausted or is_free else [*_fragmented(oom, around)]
    found = [*kept, *pieces]
    if pieces and around.earlier is not None and around.earlier.growing:
        # That a setting joins them does not help for long.
        found.append(Verdict(reasons.GROWING, _growing_text(oom, around.earlier)))
    if not is_free:
        found += [*of_limit(oom), *of_others(oom, around, is_exhausted=exhausted != [])]
        found += of_idle_streams(oom, around)
    if not is_free and not exhausted:
        found += of_other_pool(oom)
    if found:
        return found
    if not exhausted and oom.requested_bytes > _most_available(oom, sample):
        exhausted = [_too_large(oom, sample)]
    if exhausted:
        return [_with_growth(exhausted[0], oom, around)]
    if is_free:
        return [_of_enough_memory(oom)]
    # Also a program that has had as much before has hardly any pieces to lose.
    is_full = sample.allocated_bytes >= ALL_BUT_PIECES * oom.most_reserved_bytes
    kind = reasons.EXHAUSTED if is_full else reasons.UNKNOWN
    grown = _with_growth(Verdict(kind, _use_text(oom, sample, around)), oom, around)
    if grown.kind != reasons.UNKNOWN:
        return [grown]
    return [Verdict(reasons.UNKNOWN, _why_unknown(oom, sample, around))]


def _leak(oom: OutOfMemory, around: Surroundings) -> Iterator[Verdict]:
    leaks = [] if around.leaks is None else leaks_of(around.leaks)
    if around.leaks is None or not leaks:
        return
    held = sum(growth.held_bytes for growth in leaks)
    free = oom.available_bytes + (oom.sample.free_bytes if oom.sample is not None else 0)
    needed = 0 if around.progress is None else around.progress.more_bytes
    if not _fits_without(oom, around, held) or needed > free + held:
        return
    yield Verdict(
        reasons.LEAK,
        f"{rate_text(around.leaks, around.leaks.bytes_per_step)} are kept"
        f"{since_text(leaks, around.leaks)}, from {source_text(leaks)}, {size(held)} in all. "
        f"Without this memory, {_asked(oom)} would have fitted.",
    )


def _asked(oom: OutOfMemory) -> str:
    asked = f"the {size(oom.requested_bytes)}"
    return asked if oom.library_error is None else "what the library needs"


def _fits_without(
    oom: OutOfMemory, around: Surroundings, held: int, is_known: bool | None = None
) -> bool:
    """Return whether the allocation would have fitted if some bytes had not been held.

    `is_known`: the answer by the addresses of the blocks; None: where they were is unknown.
    """
    if not held:
        return False
    if around.is_cpu and oom.segment_bytes <= oom.available_bytes:
        return oom.segment_bytes <= held  # an unknown limit left less than the request
    if oom.library_error is not None and oom.sample is not None:  # how much it asked is unknown
        return held >= MUCH_UNUSED * oom.sample.allocated_bytes
    available = oom.available_bytes
    if is_known is not None and oom.segment_bytes > available:
        return is_known
    if oom.segment_bytes <= available:  # the driver has refused a part of it
        available -= int(UNUSABLE_PART * (oom.limit_bytes or 0))
    # Freed blocks may leave free memory in pieces.
    return oom.segment_bytes <= available + held // 2


def _dropped(oom: OutOfMemory, around: Surroundings) -> Iterator[Verdict]:
    asked = _asked(oom)
    if _fits_without(oom, around, around.garbage_bytes, around.fits_without_garbage):
        yield Verdict(
            reasons.GARBAGE,
            f"objects that refer to each other, and that nothing else refers to, keep "
            f"{size(around.garbage_bytes)}. After gc.collect(), {asked} would have fitted.",
        )
    if _fits_without(oom, around, around.exception_bytes, around.fits_without_exception):
        yield Verdict(
            reasons.EXCEPTION,
            f"an exception keeps the functions that have failed, and they keep "
            f"{size(around.exception_bytes)}. Without this memory, {asked} would have fitted.",
        )


def _of_cpu(oom: OutOfMemory, around: Surroundings) -> Verdict:
    asked, free = size(oom.requested_bytes), size(oom.device_free_bytes)
    if oom.requested_bytes > oom.device_free_bytes:
        text = f"{asked} were requested, and {free} were free in the system."
        return _with_growth(Verdict(reasons.TOO_LARGE, text), oom, around)
    return Verdict(
        reasons.UNKNOWN,
        f"the system refused {asked}, although {free} were free. A limit of the process or of its "
        "container (ulimit -v, cgroup), or the kernel's overcommit policy, may be the reason.",
    )


def _of_enough_memory(oom: OutOfMemory) -> Verdict:
    needs = size(oom.segment_bytes)
    return Verdict(
        reasons.UNKNOWN,
        f"the allocator needed {needs} from the device, and {size(oom.available_bytes)} were free. "
        "A limit that is not in the file, a capture of a graph, or another process that held the "
        "memory for a moment may have prevented the allocation.",
    )


def _of_freed_memory(oom: OutOfMemory) -> Verdict:
    return Verdict(
        reasons.FREED,
        f"{size(oom.own_pool_largest_bytes or 0)} are free in one piece that the request could "
        "use. They became free while the allocator looked for memory, as what another stream still "
        "used, or what another thread freed: it does not look there again before it fails.",
    )


def _fragmented(oom: OutOfMemory, around: Surroundings) -> Iterator[Verdict]:
    own, streams = oom.own_pool_free_bytes, oom.own_pool_streams
    if own is None or streams is None or around.expands:
        return
    if not _is_known(oom, around):
        return
    # Expandable segments join free memory only as far as no block in use is in the same page.
    lost = max(own // 2, SPARE_PAGES * PAGE_BYTES * max(streams, 1))
    if oom.segment_bytes + lost > oom.available_bytes + own:
        return
    largest = 0 if oom.sample is None else oom.sample.largest_free_bytes
    in_streams = "" if streams < 2 else f" of {streams} streams"
    yield Verdict(
        reasons.FRAGMENTED,
        f"{size(oom.requested_bytes)} would fit into the {size(oom.available_bytes + own)} that "
        f"are free, {size(oom.available_bytes)} on the device and {size(own)} inside segments"
        f"{in_streams}, if they were one piece. The largest free block has {size(largest)}.",
    )


def _is_known(oom: OutOfMemory, around: Surroundings) -> bool:
    """Return whether what the program needs next is known, or so much is free that it may need it.

    A first step may need any amount, and so may one that needs more than those before.
    """
    own, sample = oom.own_pool_free_bytes, oom.sample
    if _had_as_much(oom, around) or own is None or sample is None:
        return True
    if around.has_step and not _is_larger_input(oom, around):
        return True
    return own >= MUCH_IN_PIECES * oom.most_reserved_bytes


def _had_as_much(oom: OutOfMemory, around: Surroundings) -> bool:
    """Return whether the program has had as much memory as with the allocation that failed.

    A first backward pass has less than the forward pass before it, but gradients and the states of
    an optimizer are to come.
    """
    if oom.sample is None or oom.earlier_peak_bytes is None or around.is_first_backward:
        return False
    return oom.sample.allocated_bytes + oom.requested_bytes <= oom.earlier_peak_bytes


def _is_larger_input(oom: OutOfMemory, around: Surroundings) -> bool:
    """Return whether the line has requested less in each step before."""
    return around.earlier is not None and around.earlier.are_smaller(oom.requested_bytes)


def _exhausted(oom: OutOfMemory, sample: UsageSample, around: Surroundings) -> Iterator[Verdict]:
    total, held = oom.most_reserved_bytes, sample.allocated_bytes
    wanted = held + oom.requested_bytes
    # A program that has had as much before can go on, if only the memory were in one piece. And a
    # request for more than half of the memory is too large by itself.
    if _had_as_much(oom, around) or oom.requested_bytes > total // 2:
        return
    unsure = sample.uncertain_bytes
    progress = around.progress
    is_short = (
        progress is not None and progress.more_bytes > oom.available_bytes + sample.free_bytes
    )
    is_full = held - unsure >= (MOST if is_short else reasons.NEARLY_ALL) * total
    if not is_full and not (wanted <= total and wanted - unsure >= ALL_BUT_PIECES * total):
        return
    yield Verdict(reasons.EXHAUSTED, _use_text(oom, sample, around))


def _use_text(oom: OutOfMemory, sample: UsageSample, around: Surroundings) -> str:
    """Return how much of the memory was allocated, and what was still needed, if that is known."""
    total, held = oom.most_reserved_bytes, sample.allocated_bytes
    wanted, pieces = held + oom.requested_bytes, sample.free_bytes
    text = (
        f"{size(held)} of the {size(total)} that the allocator could have were allocated "
        f"({100 * held // total} %)"
    )
    if around.progress is not None:
        text += f". {around.progress.text}."
    else:
        text += f", and with this request it would be {size(wanted)}"
        if wanted > (oom.earlier_peak_bytes or 0):
            text += ", more than ever before in the recording"
        if wanted > total:
            text += f": at least {size(wanted - total)} are missing"
        elif pieces:
            text += f"; {size(pieces)} were free in pieces"
        text += ". "
        if around.is_first_backward:
            text += "Other gradients, and the states of an optimizer, are to come."
        else:
            text += "What the program needs after this is unknown."
    return text + held_outside(oom)


def _with_growth(verdict: Verdict, oom: OutOfMemory, around: Surroundings) -> Verdict:
    """Return a verdict on too little memory as one on the growth of the line's requests, if any."""
    earlier, asked = around.earlier, size(oom.requested_bytes)
    if earlier is None:
        return verdict
    if _is_larger_input(oom, around):
        return Verdict(
            reasons.LARGER_INPUT,
            f"this line has requested at most {size(earlier.most_bytes)} at once in the "
            f"{number(earlier.steps, 'step')} before, and {asked} now, as for a longer sequence or "
            f"a larger batch. {sentence(verdict.text)}",
        )
    if earlier.growing:
        return Verdict(reasons.GROWING, f"{_growing_text(oom, earlier)} {sentence(verdict.text)}")
    if earlier.replaced:
        span = "in this step" if earlier.has_steps else "since the recording began"
        return Verdict(
            reasons.REPLACED,
            f"this line has replaced {number(earlier.replaced, 'block')} by larger ones {span}, "
            f"from {size(earlier.first_bytes)} to {asked}, as `torch.cat` in a loop does. "
            f"{sentence(verdict.text)}",
        )
    return verdict


def _growing_text(oom: OutOfMemory, earlier: EarlierRequests) -> str:
    return (
        f"this line has requested more from step to step: from {size(earlier.least_bytes)} to "
        f"{size(oom.requested_bytes)} in {number(earlier.growing, 'step')}."
    )


def _most_available(oom: OutOfMemory, sample: UsageSample) -> int:
    """Return the memory that an ideal allocator would have had: no rounding, no unusable piece."""
    waiting = sample.active_bytes - sample.allocated_bytes + sample.uncertain_bytes
    return oom.most_reserved_bytes - sample.requested_bytes + waiting


def _too_large(oom: OutOfMemory, sample: UsageSample) -> Verdict:
    missing = oom.requested_bytes - oom.available_bytes - sample.free_bytes
    free = size(oom.available_bytes + sample.free_bytes)
    text = (
        f"{size(oom.requested_bytes)} are more than all free memory, {free} on the device and "
        f"inside segments: at least {size(missing)} are missing."
    )
    return Verdict(reasons.TOO_LARGE, text + held_outside(oom))


def _why_unknown(oom: OutOfMemory, sample: UsageSample, around: Surroundings) -> str:
    """Return why an allocation failed that was not larger than what an ideal allocator has."""
    asked, available = size(oom.requested_bytes), size(oom.available_bytes)
    own = oom.own_pool_free_bytes
    if own is None or oom.own_pool_streams is None:
        return (
            f"{available} were free on the device and up to {size(sample.free_bytes)} inside "
            "segments. Which of these the request could use is unknown, because the file does not "
            "have the exact sizes of all blocks at that moment."
        )
    if oom.requested_bytes > oom.available_bytes + sample.free_bytes:
        if waiting := sample.active_bytes - sample.allocated_bytes:
            return (
                f"{asked} are more than all free memory, {size(oom.available_bytes + own)}, but "
                f"the program has freed {size(waiting)} more, which a stream still uses."
            )
        lost_bytes = sample.active_bytes - sample.requested_bytes
        return (
            f"{asked} are more than all free memory, {size(oom.available_bytes + own)}, but the "
            f"allocator has rounded the program's blocks up by {size(lost_bytes)}. Another "
            "rounding might have left enough."
        )
    if around.expands:
        return (
            f"{available} were free on the device and {size(own)} in the segments of the request's "
            "pool, although expandable segments are on. They lie between blocks in use, in pages "
            "that cannot be given back."
        )
    if oom.requested_bytes > oom.available_bytes + own:
        other, pools = size(sample.free_bytes - own), ""
        if not oom.is_one_pool:
            pools = "in other memory pools, such as a CUDA graph's, or "
        return (
            f"{available} were free on the device and {size(own)} in the segments that the "
            f"request could use. {other} more were free {pools}in segments for blocks of other "
            "sizes."
        )
    doubt = "too little is to spare to be sure that expandable segments would join enough of it."
    if not _is_known(oom, around):
        doubt = "the program has never had as much before, and may need more than this allocation."
    return (
        f"{asked} would fit into the {size(oom.available_bytes + own)} that are free, "
        f"{available} on the device and {size(own)} inside segments, if they were one piece. But "
        f"{doubt}"
    )
