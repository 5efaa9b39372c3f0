"""The explanation of a file: what happened, why, who holds the memory, and what to try.

`answer_words.py` makes the words of it, which `pytracer show`, the log and the page have.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pytracer.analysis.advice import Suggestion, advise_after_oom, advise_at_peak
from pytracer.analysis.alike_rows import AlikeModules, AlikeSteps, alike_modules, alike_steps
from pytracer.analysis.block_categories import has_categories
from pytracer.analysis.blocks import Blocks, held_at
from pytracer.analysis.categories import CategoryUsage, categories_of
from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data, expands
from pytracer.analysis.holder_names import is_garbage
from pytracer.analysis.holders import (
    Holder,
    Keeper,
    bytes_of_keepers,
    carried_over,
    holders_of,
    keepers_of,
    releases_of,
)
from pytracer.analysis.host_growth import HostGrowth, PinnedMemory, host_growth, pinned_memory
from pytracer.analysis.leaks.one_file import leaks_on_device, steady_growth
from pytracer.analysis.leaks.results import LEAST_STEPS, DeviceLeaks, Growth, answer, is_named
from pytracer.analysis.oom.avoidable_memory import avoidable
from pytracer.analysis.oom.earlier_requests import earlier_requests
from pytracer.analysis.oom.reasons import LEAK, Facts, Verdict, proofs_of, verdicts
from pytracer.analysis.oom.savings import recomputed_bytes
from pytracer.analysis.oom.trials import Simulation, TrySettings
from pytracer.analysis.oom.unfinished_pass import unfinished
from pytracer.analysis.ooms import (
    OutOfMemory,
    is_of_failure,
    is_oom_snapshot,
    limit_bytes_of,
    out_of_memories,
    remainder,
)
from pytracer.analysis.steps_and_phases import steps
from pytracer.analysis.stream_memory import StreamMemory, stream_memory
from pytracer.analysis.usage import UsageSample, final_sample, sample_at
from pytracer.reading.metadata import Killed
from pytracer.reading.snapshot import Snapshot
from pytracer.text import BriefRepr, number

TOP = 5  # how many call sites an explanation has


@dataclass(frozen=True, repr=False)
class Explanation(BriefRepr):
    """The explanation of one device of a file.

    Attributes:
        path: The file's path.
        device: The index of the device in the file.
        name: The name of the device, as in "cuda:0".
        is_oom_file: Whether the file was written because this device ran out of memory.
        rank, role: The process that wrote the file; None if unknown.
        oom: The last out-of-memory error; None if the file has none.
        ooms: The number of out-of-memory errors in the file.
        verdicts: Why the allocation failed, the cheapest remedy first; [] without an out-of-memory
            error.
        held_at: The moment of `holders`: "oom", "peak", or "end" if the usage before the end is
            unknown.
        held_bytes: The active bytes at that moment, which the shares of `holders` refer to.
        held_before_bytes: The part of `held_bytes` that was held at the out-of-memory error before,
            too; None if there was none.
        holders: The call sites that held most at that moment, the largest first, at most `TOP`.
        keepers: The Python objects that kept memory at that moment, the largest first; [] if they
            are unknown.
        releases: What kept unknown memory that no object keeps, as in "until main() returned", and
            the bytes, the most first.
        carried: How many bytes were kept from one step to the next, and what keeps such memory;
            None if it was little, has no name, or `keepers` or `releases` have it, and after an
            out-of-memory error.
        categories: What the memory was for at that moment, the largest category first; [] if the
            file does not have the owners of blocks.
        suggestions: What to do next.
        sample: The usage at that moment.
        most_reserved: The usage when most memory was reserved, if that is far more than at that
            moment; else None, and after an out-of-memory error.
        of_streams: The memory that streams keep from each other; None if it is little, or unknown,
            and after an out-of-memory error.
        host: The growth of host memory, of which no recorded device has more than half; None if it
            does not grow, for further devices of a file, and after an out-of-memory error.
        pinned: Pinned host memory that torch took and the program did not request; None if it is
            little, or unknown, for further devices of a file, and after an out-of-memory error.
        killed: How the process ended, if it did not write the file itself; else None.
        limit_bytes: The bytes that the allocator could reserve at any time; None if unknown.
        why_unknown: Why the usage before the end is unknown; None if it is known.
        gaps: What the recording lacks, so that an earlier problem may be missing, as sentences.
        is_cpu: Whether the device is the CPU; None if unknown.
        has_steps: Whether the program marked steps.
        steps: The peaks of the steps; [] in a file without steps.
        modules: The modules that held memory at that moment; [] if no module was a phase.
        leaks: The search for memory that is kept from step to step; None in a file of few steps,
            and if the recording ends in the step that ran out of memory, where a leak is one of the
            verdicts.
        growth: In a file without steps, the memory that kept growing all the time, up to half of
            the peak; None if there is none.
        fitting_settings: The changes of the allocator's settings with which the allocation that
            failed would have found memory in a simulation, and so would the rest of the step, if it
            is known; []: with none of those tried; None: not simulated, because there was no
            out-of-memory, or because a simulation of the recording's own settings does not equal
            the recording.
        unsearched: For how many tensors the search for the objects that keep them was cut short.
    """

    path: str
    device: int
    name: str
    is_oom_file: bool
    rank: int | None
    role: str | None
    oom: OutOfMemory | None
    ooms: int
    verdicts: list[Verdict]
    held_at: str
    held_bytes: int
    held_before_bytes: int | None
    holders: list[Holder]
    keepers: list[Keeper]
    releases: list[tuple[str, int]]
    carried: tuple[int, str] | None
    categories: list[CategoryUsage]
    suggestions: list[Suggestion]
    sample: UsageSample
    most_reserved: UsageSample | None
    of_streams: StreamMemory | None
    host: HostGrowth | None
    pinned: PinnedMemory | None
    killed: Killed | None
    limit_bytes: int | None
    why_unknown: str | None
    gaps: list[str]
    is_cpu: bool | None
    has_steps: bool
    steps: list[AlikeSteps]
    modules: list[AlikeModules]
    leaks: DeviceLeaks | None
    growth: Growth | None
    fitting_settings: list[str] | None = None
    unsearched: int = 0

    @property
    def has_leak(self) -> bool:
        """Whether memory is kept from step to step, enough to matter."""
        return self.leaks is not None and self.leaks.matters

    def leak_sentence(self) -> str:
        """Return the sentence about memory that is kept from step to step; "" without a leak."""
        if self.leaks is not None and self.has_leak:
            return answer(self.leaks)
        return next((verdict.text for verdict in self.verdicts if verdict.kind == LEAK), "")


def explain(
    snapshot: Snapshot, device: int | None = None, try_settings: TrySettings | None = None
) -> list[Explanation]:
    """Explain a snapshot: its last out-of-memory error, or else its peak.

    Args:
        snapshot: The snapshot, as returned by `load`.
        device: The index of the only device to explain; None for all devices that were used.
        try_settings: Simulates settings, as `pytracer.simulator.trials.try_settings`; None: no
            setting is simulated.

    Returns:
        One explanation for each device; devices that ran out of memory come first.

    Raises:
        PytracerError: The snapshot has no such device.
    """
    data = (device_data(snapshot, index) for index in chosen_devices(snapshot, device))
    found = [explain_device(each, try_settings) for each in data]
    return sorted(found, key=lambda each: (each.oom is None, each.device))


def explain_device(
    data: DeviceData, try_settings: TrySettings | None = None, ooms: list[OutOfMemory] | None = None
) -> Explanation:
    """Explain a device: its last out-of-memory error, or else its peak.

    Args:
        try_settings: As `explain` takes it.
        ooms: The device's out-of-memory errors, if they are known already.
    """
    snapshot, history = data.snapshot, data.history
    ooms = out_of_memories(data) if ooms is None else ooms
    oom = ooms[-1] if ooms else None
    leaks = leaks_of(data) if oom is None or _is_survived(data, oom) else None
    moment, entry, simulation = "peak", history.peak, None
    if oom is not None:
        moment, entry = "oom", oom.event + 1 if history.is_known else None
        simulation = None if try_settings is None else try_settings(data)
    held = held_at(data, entry)
    sample = None if oom is None else oom.sample
    if sample is None:
        sample = final_sample(data) if entry is None else sample_at(data, entry)
    at = _most_reserved(data, sample) if oom is None else None
    has_streams = oom is None and history.is_known and not data.is_cpu
    fitting = None
    if simulation is not None and all(trial.is_exact for trial in simulation.trials):
        fitting = [trial.name for trial in simulation.trials if not trial.is_refuted]
    found = Explanation(
        path=snapshot.path,
        device=data.device,
        name=snapshot.device_name(data.device),
        is_oom_file=oom is not None and is_oom_snapshot(data),
        rank=snapshot.metadata.rank,
        role=snapshot.metadata.role,
        oom=oom,
        ooms=len(ooms),
        verdicts=[],
        held_at="end" if entry is None else moment,
        held_bytes=int(held["size_bytes"].sum()),
        held_before_bytes=held.bytes_where(held["alloc_event"] < ooms[-2].event)
        if len(ooms) > 1 and entry is not None
        else None,
        holders=holders_of(held, TOP),
        keepers=keepers_of(held),
        releases=releases_of(held),
        carried=carried_over(held) if oom is None and entry is not None else None,
        categories=categories_of(held) if has_categories(snapshot) else [],
        suggestions=[],
        sample=sample,
        most_reserved=None if at is None else sample_at(data, at),
        of_streams=stream_memory(data, at or entry or 0) if has_streams else None,
        host=host_growth(data) if oom is None else None,
        pinned=pinned_memory(data) if oom is None else None,
        killed=snapshot.metadata.killed,
        limit_bytes=_limit(data),
        why_unknown=_why_unknown(data),
        gaps=list(_gaps(data)),
        is_cpu=data.is_cpu,
        has_steps=data.has_marked_steps,
        steps=alike_steps(steps(data)) if history.is_known else [],
        modules=_modules(held),
        leaks=leaks,
        growth=steady_growth(data, is_short=oom is not None),
        fitting_settings=fitting,
        unsearched=_unsearched(snapshot, leaks),
    )
    if oom is None:
        return replace(found, suggestions=advise_at_peak(data, found, recomputed_bytes(held)))
    facts = _facts(oom, held, found, simulation)
    reasons = verdicts(facts)
    is_leak = any(verdict.kind == LEAK for verdict in reasons)
    to_mend = facts.leaks if is_leak else leaks if found.has_leak else None
    advice = advise_after_oom(data, reasons, facts, to_mend)
    return replace(found, verdicts=reasons, suggestions=advice)


def _unsearched(snapshot: Snapshot, leaks: DeviceLeaks | None) -> int:
    found = snapshot.metadata.tensors.unsearched or 0
    if leaks is not None and leaks.matters and not is_named(leaks):
        found = found or snapshot.metadata.unsearched_at_steps or 0
    return found


def _most_reserved(data: DeviceData, peak: UsageSample) -> int | None:
    """Return the entry with most reserved bytes; None if they are hardly more than at the peak."""
    if not data.history.is_known or data.is_cpu:
        return None
    reserved = data.history.usage.reserved_bytes
    entry = int(reserved.argmax())
    more = int(reserved[entry]) - peak.reserved_bytes
    return entry if more > max(int(reserved[entry]) // 5, 256 * 2**20) else None


def _limit(data: DeviceData) -> int | None:
    """Return how much the allocator could reserve; None if that is unknown, or changed.

    The memory of other processes changes it. If more was reserved at some time, it did change.
    """
    if not data.history.is_known:
        return None
    limit = limit_bytes_of(data.snapshot, data.device, data.history)
    most = int(data.history.usage.reserved_bytes.max())
    return None if limit is None or limit < most else limit


def _modules(held: Blocks) -> list[AlikeModules]:
    if not held.data.snapshot.metadata.module_phases.names:
        return []
    sums = [(module, found.size_bytes) for found in held.group("module") for module in found.key]
    return alike_modules([(module, size_bytes) for module, size_bytes in sums if module])


def _gaps(data: DeviceData) -> Iterator[str]:
    metadata = data.snapshot.metadata
    if overwritten := data.metadata.overwritten:
        yield (
            f"the ring overwrote its first {number(overwritten, 'event')}: earlier peaks are "
            "unknown. A larger trace_alloc_max_entries keeps more"
        )
    if metadata.untraced:
        yield f"not recorded: {metadata.untraced}"
    if metadata.waiting:
        yield "no events were recorded, because the step was not selected"


def _why_unknown(data: DeviceData) -> str | None:
    if (phase := data.snapshot.metadata.only_phase) is not None:
        return f"the file has the events of phase {phase!r} only"
    if not data.history.is_known:
        return data.contradiction or "the file has no events"
    return None


def leaks_of(data: DeviceData) -> DeviceLeaks | None:
    """Return the search for memory that is kept from step to step; None for a few steps."""
    if not data.history.is_known or len({step for step, _ in data.boundaries}) < LEAST_STEPS:
        return None
    return leaks_on_device(data)


def _facts(
    oom: OutOfMemory, held: Blocks, found: Explanation, simulation: Simulation | None
) -> Facts:
    data, sizes = held.data, {usage.category: usage.size_bytes for usage in found.categories}
    why, is_failed = found.why_unknown, is_of_failure(data)
    may_leak = why is None and len(data.boundaries) > 1 and not _is_survived(data, oom)
    has_step = sum(first <= oom.event for _, first in data.boundaries) > 1
    earlier = earlier_requests(data, oom.event) if why is None else None
    of_streams = stream_memory(data, oom.event + 1, at_once=True) if why is None else None
    growth = found.growth  # one long pass makes activations all the time
    if growth is not None and 2 * sizes.get("activation", 0) > growth.held_bytes:
        growth = None
    return Facts(
        oom=oom,
        is_cpu=data.is_cpu is True,
        expands=expands(data),
        outside_bytes=remainder(data.metadata.process_bytes, data.metadata.reserved_bytes),
        why_no_history=why,
        leaks=leaks_on_device(data) if may_leak else None,
        growth=growth,
        garbage_bytes=bytes_of_keepers(found.keepers, is_garbage),
        exception_bytes=bytes_of_keepers(found.keepers, is_failed),
        simulation=simulation,
        proofs={k: v for k, v in proofs_of(oom, held, of_streams, simulation) if v is not None},
        earlier=earlier,
        splits_all="max_split_size_mb" not in (data.snapshot.settings_text or ""),
        progress=unfinished(data, oom, found.categories) if why is None else None,
        of_streams=of_streams,
        is_first_backward=not has_step
        and "optimizer_state" not in sizes
        and 0 < sizes.get("gradient", 0) < sizes.get("parameter", 0),
        has_step=has_step,
        holders=found.holders,
        keepers=found.keepers,
        categories=found.categories,
        avoidable=avoidable(held),
        recomputed_bytes=recomputed_bytes(held),
    )


def _is_survived(data: DeviceData, oom: OutOfMemory) -> bool:
    """Return whether steps came after an out-of-memory error."""
    return bool(data.boundaries) and oom.event < data.boundaries[-1][1]
