"""Why an allocation failed: the verdicts on an out-of-memory error, and their figures.

A verdict is given only if the figures prove it, whatever is unknown. What would have saved the
allocation is compared with `segment_bytes`, the memory that the allocator really needed. What could
not have saved it is compared with `requested_bytes`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytracer.analysis.allocator_rules import PAGE_BYTES
from pytracer.analysis.blocks import Blocks
from pytracer.analysis.categories import CategoryUsage
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.holder_names import is_garbage
from pytracer.analysis.holders import Holder, Keeper
from pytracer.analysis.leaks.results import (
    DeviceLeaks,
    Growth,
    keepers_text,
    leaks_of,
    rate_text,
    since_text,
    source_text,
    where_text,
)
from pytracer.analysis.oom.earlier_requests import EarlierRequests
from pytracer.analysis.oom.trials import JOINING, Simulation, Trial
from pytracer.analysis.oom.unfinished_pass import Unfinished
from pytracer.analysis.ooms import OutOfMemory, is_of_failure
from pytracer.analysis.stream_memory import StreamMemory, idle_streams_text, waiting_text
from pytracer.analysis.usage import UsageSample
from pytracer.text import number, sentence, size

LEAK = "leak"
KEPT_GROWING = "kept growing"
GARBAGE = "garbage"
EXCEPTION = "exception"
FRAGMENTED = "fragmented"
LIMIT = "limit"
OTHERS = "others"
LIBRARY = "library"
OTHER_POOL = "other pool"
STREAMS = "idle streams"
WAITING = "waits for a stream"
SHARED_POOL = "shared pool"  # no verdict, but another remedy
FREED = "freed meanwhile"
LARGER_INPUT = "larger input"
REPLACED = "replaced by larger"
GROWING = "grows from step to step"
EXHAUSTED = "nearly exhausted"
SHORT = "step needs more"
TOO_LARGE = "too large"
UNKNOWN = "can't tell"

NEARLY_ALL = 0.85
"""The part of the memory that the program has allocated when it is nearly exhausted."""

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

USUAL_CONTEXT_BYTES = 2**30
"""Memory of a process outside the allocator that is not counted: its context and its kernels.

They take several hundred MiB on current devices, and the program cannot release them.
"""

LITTLE = 0.05
"""The part of the device up to which others are no reason if the program has nearly all of it."""


@dataclass(frozen=True)
class Verdict:
    """A reason why an allocation failed.

    Attributes:
        kind: "leak": memory that is kept from step to step, and the allocation would have fitted
            without it. "kept growing": the same in a file without steps, of memory that grew all
            the time. "garbage": objects that refer to each other keep memory that `gc.collect()`
            would free, and "exception": an exception keeps the functions that have failed; the
            allocation would have fitted without this memory. "fragmented": the allocation would
            have fitted if the free memory of its pool and of the device were one piece, and the
            rest of the step, too, in a simulation; or if nothing like it precedes, a step had ended
            before, or it had had as much memory, or much is in pieces. "limit": a limit of the
            process (`set_per_process_memory_fraction`) leaves memory of the device unused, and the
            allocation would have fitted without it. "others": memory outside the allocator, of
            other processes or of libraries, and the allocation would have fitted without it.
            "library": not the allocator, but a library such as cuBLAS got no memory of the device.
            "freed meanwhile": a piece of its pool that fits is free, although the allocator found
            none. "other pool": the same of the free memory of another memory pool, such as a CUDA
            graph's, or of several. "idle streams": the same of streams that are not used any more.
            "waits for a stream": the same of blocks that were freed while a stream used them.
            "nearly exhausted": the program had nearly all memory allocated, and more than ever
            before, so it may need more than this allocation. "step needs more": a simulation has
            shown that the rest of the step needs more, too. "too large": no allocator could have
            served the allocation next to the memory that the program held. In place of these two,
            and of "fragmented" and "can't tell", "larger input" if the line has requested less in
            each earlier step; "grows from step to step" if nearly each step has requested more than
            the one before; and in place of the two, "replaced by larger" if the line replaces its
            blocks by larger ones within the step. "can't tell": none of these is certain.
        text: The figures that decided, as sentences.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Facts:
    """An out-of-memory error, and what the file says about the device. None means unknown.

    Attributes:
        oom: The error.
        is_cpu: Whether the device is the CPU.
        expands: Whether expandable segments were on at the end.
        outside_bytes: The bytes that the process held on the device outside the allocator.
        why_no_history: Why the usage at the out-of-memory error is unknown; None if it is known.
        leaks: The leaks until the out-of-memory error; None if there was none, or if nobody looked.
        growth: In a file without steps, the memory that kept growing; None if there was none.
        garbage_bytes: The bytes that objects keep which `gc.collect()` would free.
        exception_bytes: The bytes that functions keep which have failed.
        simulation: Simulates changes; None: that is not possible, or the simulation of the
            recording's own settings does not equal the recording.
        proofs: By the kind of a verdict, what would have happened without this reason, in a
            simulation; "shared pool" if all private pools were one.
        of_streams: What streams keep from each other; None if it is little.
        splits_all: Whether the allocator may split free memory of any size.
        earlier: What the line of the allocation has requested before; None if it is unknown.
        progress: What was not finished; None if that is unknown.
        is_first_backward: Whether gradients are there, and no step nor states of an optimizer.
        has_step: Whether a step of the program had ended before.
        holders, keepers, categories: What held the memory when it ran out.
        avoidable: The changes that avoid some of it.
        recomputed_bytes: What the recomputation of a checkpoint kept.
    """

    oom: OutOfMemory
    is_cpu: bool = False
    expands: bool = False
    outside_bytes: int | None = None
    why_no_history: str | None = None
    leaks: DeviceLeaks | None = None
    growth: Growth | None = None
    garbage_bytes: int = 0
    exception_bytes: int = 0
    simulation: Simulation | None = None
    proofs: Mapping[str, Trial] = field(default_factory=dict)
    earlier: EarlierRequests | None = None
    progress: Unfinished | None = None
    of_streams: StreamMemory | None = None
    splits_all: bool = True
    is_first_backward: bool = False
    has_step: bool = False
    holders: Sequence[Holder] = ()
    keepers: Sequence[Keeper] = ()
    categories: Sequence[CategoryUsage] = ()
    avoidable: Sequence[str] = ()
    recomputed_bytes: int = 0

    @property
    def trials(self) -> Sequence[Trial]:
        """The simulated settings."""
        return () if self.simulation is None else self.simulation.trials

    @property
    def joined(self) -> Trial | None:
        """The simulation of an allocator that joins free memory; None if there is none."""
        return next((trial for trial in self.trials if trial.name == JOINING), None)

    @property
    def sample(self) -> UsageSample:
        """The usage at the error, which has to be known."""
        assert self.oom.sample is not None
        return self.oom.sample

    @property
    def total_bytes(self) -> int:
        """What the allocator could have."""
        return self.oom.most_reserved_bytes

    @property
    def free_bytes(self) -> int:
        """What was available to the allocator, and what was free in its segments."""
        inside = 0 if self.oom.sample is None else self.oom.sample.free_bytes
        return self.oom.available_bytes + inside

    @property
    def wanted_bytes(self) -> int:
        """What would have been allocated with the request."""
        return self.sample.allocated_bytes + self.oom.requested_bytes

    @property
    def missing_bytes(self) -> int:
        """How much more was needed than the allocator could have, or less: below 0. 0: unknown."""
        return 0 if self.oom.sample is None else self.wanted_bytes - self.total_bytes

    @property
    def is_short(self) -> bool:
        """Whether the forward pass or the optimizer needs more than all that is free."""
        return self.progress is not None and self.progress.more_bytes > self.free_bytes

    @property
    def is_nearly_all(self) -> bool:
        """Whether nearly all memory was allocated."""
        sample = self.oom.sample
        return sample is not None and sample.allocated_bytes >= NEARLY_ALL * self.total_bytes


def proofs_of(
    oom: OutOfMemory, held: Blocks, of_streams: StreamMemory | None, simulation: Simulation | None
) -> Iterator[tuple[str, Trial | None]]:
    """Yield the kinds of verdicts, and what would have happened without these reasons, if known."""
    if simulation is None:
        return
    for kind, is_holder in ((GARBAGE, is_garbage), (EXCEPTION, is_of_failure(held.data))):
        is_kept = held.are("unusual_holder", is_holder)
        if is_kept.any():
            yield kind, simulation.without(held.numbers[is_kept])
    if oom.device_free_bytes > oom.available_bytes:
        yield LIMIT, simulation.without_limit()
    if oom.other_pool is not None:
        yield OTHER_POOL, simulation.without_other_pools()
        yield SHARED_POOL, simulation.in_one_pool()
    if of_streams is not None and of_streams.kind != "waiting":
        yield STREAMS, simulation.on_same_streams(in_turn=of_streams.kind == "in turn")


def verdicts(facts: Facts) -> list[Verdict]:
    """Return the verdicts on an out-of-memory error, at least one.

    A leak comes first: with it, the program runs out of memory whatever else is changed. The others
    follow, the cheapest remedy first.
    """
    oom, kept, dropped = facts.oom, list(_leak(facts)), list(_dropped(facts))
    if facts.is_cpu:
        return kept + dropped or [_of_cpu(facts)]
    if facts.why_no_history is not None:
        return [Verdict(UNKNOWN, f"{facts.why_no_history}.")]
    if oom.library_error is not None:
        found = [_of_library(facts)]
        return found if found[0].kind == UNKNOWN else kept + dropped + found
    is_free = oom.segment_bytes <= oom.available_bytes
    if oom.segment_bytes + UNUSABLE_PART * (oom.limit_bytes or 0) <= oom.available_bytes:
        return [_of_enough_memory(facts)]
    if facts.splits_all and (oom.own_pool_largest_bytes or 0) >= oom.requested_bytes:
        text = (
            f"{size(facts.oom.own_pool_largest_bytes or 0)} are free in one piece that the request "
            "could use. Another stream or thread released it while the allocator was searching. "
            "The allocator does not search again before it fails."
        )
        return [Verdict(FREED, text)]
    is_exhausted, held = _is_exhausted(facts), facts.sample.allocated_bytes
    proven = [facts.proofs[each] for each in (GARBAGE, EXCEPTION) if each in facts.proofs]
    # If little of the memory is of no use, the program soon needs more than that.
    is_much = facts.garbage_bytes + facts.exception_bytes >= MUCH_UNUSED * held
    if not is_exhausted or is_much or any(trial.is_proven for trial in proven):
        kept += dropped
    pieces = [] if is_exhausted or is_free else list(_fragmented(facts))
    joined, earlier = facts.joined, facts.earlier
    if joined is not None and joined.again and earlier is not None and earlier.replaced:
        pieces = []  # joined memory is enough for some larger blocks of the loop
    has_leak = any(verdict.kind in (LEAK, KEPT_GROWING) for verdict in kept)
    if has_leak and (oom.own_pool_free_bytes or 0) < MUCH_IN_PIECES * facts.total_bytes:
        pieces = []  # a leak soon takes what little a setting would join
    found = [*kept, *pieces]
    if pieces and not has_leak and earlier is not None and earlier.growing:
        # That a setting joins them does not help for long.
        found.append(Verdict(GROWING, _growing_text(facts, earlier)))
    if not is_free:
        found += [*_of_limit(facts), *_of_others(facts, is_exhausted=is_exhausted)]
        found += _of_streams(facts)
    if not is_free and not is_exhausted:
        found += _of_other_pool(facts)
    if found:
        return found
    if is_exhausted:
        kind = EXHAUSTED if facts.is_nearly_all or not _needs_more(joined) else SHORT
        return [_with_growth(Verdict(kind, _use_text(facts)), facts)]
    if oom.requested_bytes > _most_available(facts):
        return [_with_growth(Verdict(TOO_LARGE, _missing_text(facts)), facts)]
    if is_free:
        return [_of_enough_memory(facts)]
    # Also a program that has had as much before has hardly any pieces to lose.
    kind = EXHAUSTED if held >= ALL_BUT_PIECES * facts.total_bytes else UNKNOWN
    grown = _with_growth(Verdict(kind, _use_text(facts)), facts)
    return [grown if grown.kind != UNKNOWN else Verdict(kind, _why_unknown(facts))]


def _leak(facts: Facts) -> Iterator[Verdict]:
    growth = facts.growth
    if growth is not None and _fits_without(facts, growth.held_bytes):
        yield Verdict(
            KEPT_GROWING,
            f"{size(growth.held_bytes)} of the available {size(facts.total_bytes)} are in "
            f"{number(growth.blocks, 'block')} that the program never freed. They come "
            f"from {source_text([growth])}.",
        )
    leaks = [] if facts.leaks is None else leaks_of(facts.leaks)
    if facts.leaks is None or not leaks:
        return
    held = sum(growth.held_bytes for growth in leaks)
    needed = 0 if facts.progress is None else facts.progress.more_bytes
    if not _fits_without(facts, held) or needed > facts.free_bytes + held:
        return
    yield Verdict(
        LEAK,
        f"{size(held)} have piled up, {rate_text(facts.leaks, facts.leaks.bytes_per_step)}"
        f"{since_text(leaks, facts.leaks)}{keepers_text(leaks)}. They come from "
        f"{where_text(leaks)}. Without this memory, {_fitted(facts)}",
    )


def _fitted(facts: Facts) -> str:
    is_librarys = facts.oom.library_error is not None
    what = "what the library needs" if is_librarys else f"the {size(facts.oom.requested_bytes)}"
    return f"{what} would have fitted."


def _fits_without(facts: Facts, held: int, kind: str = "") -> bool:
    """Return whether the allocation would have fitted if some bytes had not been held.

    `kind`: the verdict that this would be, which may be simulated.
    """
    oom, available = facts.oom, facts.oom.available_bytes
    if not held:
        return False
    if facts.is_cpu and oom.segment_bytes <= available:
        return oom.segment_bytes <= held  # an unknown limit left less than the request
    if oom.library_error is not None and oom.sample is not None:  # how much it asked is unknown
        return held >= MUCH_UNUSED * oom.sample.allocated_bytes
    if oom.segment_bytes <= available:  # the driver has refused a part of it
        available -= int(UNUSABLE_PART * (oom.limit_bytes or 0))
    # Freed blocks may leave free memory in pieces.
    return helps(facts, oom.segment_bytes <= available + held // 2, kind)


def _dropped(facts: Facts) -> Iterator[Verdict]:
    fitted = _fitted(facts)
    if _fits_without(facts, facts.garbage_bytes, GARBAGE):
        yield Verdict(
            GARBAGE,
            f"Unreachable objects that refer to each other keep "
            f"{size(facts.garbage_bytes)}. After gc.collect(), {fitted}",
        )
    if _fits_without(facts, facts.exception_bytes, EXCEPTION):
        yield Verdict(
            EXCEPTION,
            f"The failed functions' local variables, kept by an exception, hold "
            f"{size(facts.exception_bytes)}. Without this memory, {fitted}",
        )


def _of_cpu(facts: Facts) -> Verdict:
    asked, free = size(facts.oom.requested_bytes), size(facts.oom.device_free_bytes)
    if facts.oom.requested_bytes > facts.oom.device_free_bytes:
        text = f"{asked} were requested, and {free} were free in the system."
        return _with_growth(Verdict(TOO_LARGE, text), facts)
    return Verdict(
        UNKNOWN,
        f"the system refused {asked}, although {free} were free. A limit of the process or of its "
        "container (ulimit -v, cgroup), or the kernel's overcommit policy, may be the reason.",
    )


def _of_enough_memory(facts: Facts) -> Verdict:
    return Verdict(
        UNKNOWN,
        f"the allocator needed {size(facts.oom.segment_bytes)} from the device, and "
        f"{size(facts.oom.available_bytes)} were free. It may have failed because of a limit "
        "that is not in the file, a graph capture, or another process that briefly held the "
        "memory.",
    )


def _fragmented(facts: Facts) -> Iterator[Verdict]:
    oom, own, streams = facts.oom, facts.oom.own_pool_free_bytes, facts.oom.own_pool_streams
    if own is None or streams is None or facts.expands or not _is_known(facts):
        return
    if facts.is_short and not (facts.joined is not None and facts.joined.is_proven):
        return
    joined, is_much = facts.joined, own >= MUCH_IN_PIECES * facts.total_bytes
    if joined is not None and joined.is_refuted and (joined.fits or not is_much):
        return
    # Expandable segments join free memory only as far as no block in use is in the same page.
    lost = max(own // 2, SPARE_PAGES * PAGE_BYTES * max(streams, 1))
    is_short = oom.segment_bytes + lost > oom.available_bytes + own
    if is_short and (joined is None or joined.is_refuted):
        return
    in_streams = "" if streams < 2 else f" of {streams} streams"
    yield Verdict(
        FRAGMENTED,
        f"{size(oom.requested_bytes)} would fit into the {size(oom.available_bytes + own)} of "
        f"free memory ({size(oom.available_bytes)} on the device and {size(own)} inside "
        f"segments{in_streams}) if it were one piece. The largest free block has "
        f"{size(facts.sample.largest_free_bytes)}.",
    )


def _is_known(facts: Facts) -> bool:
    """Return whether what the program needs next is known, or so much is free that it may need it.

    A first step may need any amount, and so may one that needs more than those before.
    """
    own, joined = facts.oom.own_pool_free_bytes, facts.joined
    if joined is not None and joined.is_proven:
        return True
    if _had_as_much(facts) or own is None or (facts.has_step and not _is_larger_input(facts)):
        return True
    return own >= MUCH_IN_PIECES * facts.total_bytes


def _had_as_much(facts: Facts) -> bool:
    """Return whether the program has had as much memory as with the allocation that failed.

    A first backward pass has less than the forward pass before it, but gradients and the states of
    an optimizer are to come.
    """
    peak = facts.oom.earlier_peak_bytes
    return peak is not None and not facts.is_first_backward and facts.wanted_bytes <= peak


def _is_larger_input(facts: Facts) -> bool:
    """Return whether the line has requested less in each step before."""
    return facts.earlier is not None and facts.earlier.are_smaller(facts.oom.requested_bytes)


def _is_exhausted(facts: Facts) -> bool:
    total, wanted, unsure = facts.total_bytes, facts.wanted_bytes, facts.sample.uncertain_bytes or 0
    joined = facts.joined
    if joined is not None and (joined.is_proven or _needs_more(joined)):
        return not joined.is_proven
    # A program that has had as much before can go on, if only the memory were in one piece. And a
    # request for more than half of the memory is too large by itself.
    if _had_as_much(facts) or facts.oom.requested_bytes > total // 2:
        return False
    least = (MOST if facts.is_short else NEARLY_ALL) * total
    is_all = wanted <= total and wanted - unsure >= ALL_BUT_PIECES * total
    return is_all or facts.sample.allocated_bytes - unsure >= least


def _needs_more(joined: Trial | None) -> bool:
    """Return whether all memory is enough for the request, and not for the rest of the step."""
    if joined is None or not joined.fits or not joined.is_refuted:
        return False
    return joined.peak_bytes >= ALL_BUT_PIECES * (joined.limit_bytes or 0)


def _use_text(facts: Facts) -> str:
    """Return how much of the memory was allocated, and what was still needed, if that is known."""
    total, held, wanted = facts.total_bytes, facts.sample.allocated_bytes, facts.wanted_bytes
    text = f"{size(held)} of the available {size(total)} were allocated ({100 * held // total} %)"
    if facts.progress is not None:
        return f"{text}. {facts.progress.text}.{_held_outside(facts)}"
    text += f", or {size(wanted)} with this request"
    if wanted > total:
        text += f": at least {size(wanted - total)} are missing"
    elif facts.sample.free_bytes:
        text += f"; {size(facts.sample.free_bytes)} were free in pieces"
    more = "The program's later needs are unknown."
    if facts.joined is not None and facts.joined.again and wanted <= total:
        more = facts.joined.failure()
    if facts.is_first_backward:
        more = "Other gradients and optimizer states need memory, too."
    return f"{text}. {more}{_held_outside(facts)}"


def _with_growth(verdict: Verdict, facts: Facts) -> Verdict:
    """Return a verdict on too little memory as one on the growth of the line's requests, if any."""
    earlier, asked, text = facts.earlier, size(facts.oom.requested_bytes), sentence(verdict.text)
    if earlier is None:
        return verdict
    if _is_larger_input(facts):
        return Verdict(
            LARGER_INPUT,
            f"In the {number(earlier.steps, 'step')} before, this line requested at most "
            f"{size(earlier.most_bytes)} at once. Now it requested {asked}, perhaps for a longer "
            f"sequence or a larger batch. {text}",
        )
    if earlier.growing:
        return Verdict(GROWING, f"{_growing_text(facts, earlier)} {text}")
    if earlier.replaced:
        span = "in this step" if earlier.has_steps else "since the recording began"
        return Verdict(
            REPLACED,
            f"This line replaced {number(earlier.replaced, 'block')} with larger ones {span}, from "
            f"{size(earlier.first_bytes)} to {asked}, as `torch.cat` in a loop does. {text}",
        )
    return verdict


def _growing_text(facts: Facts, earlier: EarlierRequests) -> str:
    return (
        f"This line requested more in nearly every step: from {size(earlier.least_bytes)} to "
        f"{size(facts.oom.requested_bytes)} in {number(earlier.growing, 'step')}."
    )


def _most_available(facts: Facts) -> int:
    """Return the memory that an ideal allocator would have had: no rounding, no unusable piece."""
    waiting = facts.sample.waiting_bytes + (facts.sample.uncertain_bytes or 0)
    return facts.total_bytes - facts.sample.requested_bytes + waiting


def _missing_text(facts: Facts) -> str:
    asked, free = facts.oom.requested_bytes, facts.free_bytes
    return (
        f"{size(asked)} is more than all the free memory ({size(free)} on the device and inside "
        f"segments): at least {size(asked - free)} is missing.{_held_outside(facts)}"
    )


def _why_unknown(facts: Facts) -> str:
    """Return why an allocation failed that was not larger than what an ideal allocator has."""
    oom, sample, own = facts.oom, facts.sample, facts.oom.own_pool_free_bytes
    asked, available = size(oom.requested_bytes), size(oom.available_bytes)
    if own is None or oom.own_pool_streams is None:
        return (
            f"{available} were free on the device and up to {size(sample.free_bytes)} inside "
            "segments. The file does not show which of these the request could use, because it "
            "does not have the exact sizes of all blocks at that moment."
        )
    usable = size(oom.available_bytes + own)
    if oom.requested_bytes > facts.free_bytes:
        text = f"{asked} is more than all the free memory ({usable}), but the "
        if sample.waiting_bytes:
            return (
                f"{text}program has freed {size(sample.waiting_bytes)} more, which a stream still "
                "uses."
            )
        return (
            f"{text}allocator has rounded the program's blocks up by {size(sample.rounding_bytes)}."
            " Less rounding might have left enough."
        )
    if facts.expands:
        return (
            f"{available} were free on the device and {size(own)} in the segments of the request's "
            "pool, between blocks in use. Expandable segments are on, but cannot give back pages "
            "that blocks still use."
        )
    if oom.requested_bytes > oom.available_bytes + own:
        pools = "" if oom.is_one_pool else "in other memory pools, such as a CUDA graph's, or "
        return (
            f"{available} were free on the device and {size(own)} in the segments that the "
            f"request could use. {size(sample.free_bytes - own)} more were free {pools}in segments "
            "for blocks of other sizes."
        )
    doubt = "the margin is too small to be sure that expandable segments would join enough memory."
    if not _is_known(facts):
        doubt = "the program never held this much before, and may need even more later."
    return (
        f"{asked} would fit into the {usable} of free memory ({available} on the device and "
        f"{size(own)} inside segments) if it were one piece. But {doubt}"
    )


def _of_library(facts: Facts) -> Verdict:
    """Return the verdict on a library that got no memory of the device."""
    oom, free = facts.oom, size(facts.oom.device_free_bytes)
    if oom.device_free_bytes > USUAL_CONTEXT_BYTES:
        why = f"a library could not allocate device memory, although {free} were free"
        return Verdict(UNKNOWN, f"{why}: {oom.library_error}.")
    _, others = _elsewhere(facts)
    elsewhere = _held_outside(facts)
    if others is not None and others > USUAL_CONTEXT_BYTES:
        elsewhere = f" Other processes hold {size(others)} of it."
    return Verdict(
        LIBRARY,
        f"A library such as cuBLAS asked the device itself for memory when {free} were free. The "
        f"allocator has reserved {size(facts.sample.reserved_bytes)} of the device, and "
        f"{size(facts.sample.fragmentation_bytes)} of that are not in use.{elsewhere}",
    )


def _of_limit(facts: Facts) -> Iterator[Verdict]:
    """Yield the verdict on a limit of the process."""
    oom, unused = facts.oom, facts.oom.device_free_bytes - facts.oom.available_bytes
    if unused > 0 and helps(facts, oom.segment_bytes <= oom.device_free_bytes, LIMIT):
        yield Verdict(
            LIMIT,
            f"The limit of the process (set_per_process_memory_fraction) leaves {size(unused)} of "
            f"the device unused. Without it, {_fitted(facts)}",
        )


def helps(facts: Facts, is_likely: bool, *kinds: str) -> bool:
    """Return whether a remedy for one of these reasons helps; without a simulation, `is_likely`."""
    proofs = [facts.proofs[kind] for kind in kinds if kind in facts.proofs]
    return any(not trial.is_refuted for trial in proofs) if proofs else is_likely


def _of_others(facts: Facts, *, is_exhausted: bool) -> Iterator[Verdict]:
    """Yield the verdict on what others hold of the device."""
    (own, others), oom = _elsewhere(facts), facts.oom
    if own is None:
        return
    extra, reserved = max(own - USUAL_CONTEXT_BYTES, 0) + (others or 0), facts.sample.reserved_bytes
    room = oom.device_free_bytes + extra
    if oom.limit_bytes is not None:
        room = min(room, oom.limit_bytes - reserved)
    total = reserved + oom.device_free_bytes + (oom.elsewhere_bytes or 0)
    # A program that has nearly all memory soon needs more than a little that others have.
    if extra <= (LITTLE * total if is_exhausted else 0) or oom.segment_bytes > room:
        return
    parts = [f"other processes hold {size(others)} of device memory"] if others else []
    if others is None:
        parts.append(
            f"{size(own)} of the device are held outside this process's allocator, by other "
            "processes or by this process's context and libraries (the driver did not report which)"
        )
    elif own > USUAL_CONTEXT_BYTES or not others:
        parts.append(f"this process's context and libraries hold {size(own)} outside the allocator")
    held = sentence(", and ".join(parts))
    yield Verdict(OTHERS, f"{held}. Without this memory, {_fitted(facts)}")


def _elsewhere(facts: Facts) -> tuple[int | None, int | None]:
    """Return the bytes outside the allocator, of this process and of other processes.

    The second number is None if the two are not known apart: then the first is their sum.
    """
    elsewhere = facts.oom.elsewhere_bytes
    if elsewhere is None or facts.outside_bytes is None or not facts.oom.is_at_end:
        return elsewhere, None
    own = min(facts.outside_bytes, elsewhere)
    return own, elsewhere - own


def _held_outside(facts: Facts) -> str:
    """Return a sentence about the memory outside the allocator; "" if there is none."""
    held = facts.oom.elsewhere_bytes
    if held is None:
        return " The memory outside the allocator is unknown."
    return f" {size(held)} on the device are held outside this process's allocator." if held else ""


def _of_streams(facts: Facts) -> Iterator[Verdict]:
    """Yield the verdict on what streams keep from each other, of which one has to be used."""
    found = facts.of_streams
    if found is None:
        return
    if found.kind == "waiting":
        if _fits_without(facts, found.size_bytes):
            text = f"{size(found.size_bytes)} {waiting_text(found)}"
            yield Verdict(WAITING, f"{text} Without them, {_fitted(facts)}")
        return
    others = found.size_bytes // found.streams * (found.streams - 1)
    if helps(facts, facts.oom.segment_bytes <= facts.oom.available_bytes + others, STREAMS):
        yield Verdict(STREAMS, f"{idle_streams_text(found)} With one stream, {_fitted(facts)}")


def _of_other_pool(facts: Facts) -> Iterator[Verdict]:
    """Yield the verdict on memory that is free in a pool that the request cannot use."""
    oom, pool = facts.oom, facts.oom.other_pool
    # Other segments of a pool cannot be given back, and have their free memory in pieces.
    if pool is None or not helps(
        facts, oom.segment_bytes <= oom.available_bytes + pool.all_bytes, *(OTHER_POOL, SHARED_POOL)
    ):
        return
    by = "" if pool.call_site is None else f", which {call_site_text(pool.call_site)} filled"
    if pool.streams > 1:
        by += f" on {pool.streams} streams" if by else f", of {pool.streams} streams"
    if oom.segment_bytes <= oom.available_bytes + pool.segment_bytes:
        where = f"{size(pool.segment_bytes)} are free in the memory pool {pool.name}{by}"
    else:
        where = f"{size(pool.all_bytes)} are free in {pool.pools} other memory pools, "
        where += f"{size(pool.segment_bytes)} of them in {pool.name}{by}"
    stream = ", and on the same stream," if pool.streams > 1 else ""
    text = f"{where}. Only allocations in the same pool{stream} can use them. With them, "
    yield Verdict(OTHER_POOL, f"{text}{_fitted(facts)}")
