"""The search for leaks in the trace of one file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from typing import Literal

import numpy as np

from pytracer.analysis.block_categories import OF_MODEL, OF_NO_MODEL, values_of
from pytracer.analysis.call_sites import callers_of, frame_at, program_files, texts_matching
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.holder_names import bound_of, kept_by_text, tells_where
from pytracer.analysis.leaks.groups import joined, leaks_of_survivors, search
from pytracer.analysis.leaks.growth import LEAST_SLOTS, Lives, Observation
from pytracer.analysis.leaks.results import (
    DeviceLeaks,
    Growth,
    Release,
    Verdict,
    bytes_per_step,
    bytes_when_full,
    gradient_of,
)
from pytracer.analysis.life_rules import Rule
from pytracer.analysis.ooms import limit_bytes_of
from pytracer.analysis.stack_places import MODULE
from pytracer.reading.snapshot import ALLOC, OOM, Column, Frame, Snapshot, Trace, has_events
from pytracer.reading.steps import step_at, steps_at
from pytracer.text import size

SLICES = 24  # the number of slices of a file without steps

_GREW = 1.25
"""Memory has grown as a whole if the last third of the steps always had so many times the most of
the first third."""

_MOST_SLOTS = 2048  # of more steps, several consecutive ones are one slot

_MOST_SURVIVED = 256  # far fewer than steps whose blocks are told apart (`Blocks.birth_step`)

_LEAST_CHURN = 2  # so many times the growth was allocated: what only loads a model frees little

_STATE_PART = 4  # so many times the bytes of a parameter one state has, in float32 beside float8

_BOUNDED_STATES = ("old_dirs", "old_stps")  # LBFGS drops the oldest ones

NO_STEPS = "the file has no steps: call tracer.step() at the end of each step"


@dataclass(frozen=True, eq=False)
class Timeline:
    """The slots over which growth is observed."""

    unit: Literal["step", "second", "slice"]  # what a slot is: see `DeviceLeaks`
    edges: Column  # int64, the first event of each slot, and the event after the last slot
    position: Column  # float64, the step of each slot, or its time in seconds
    begins_late: bool  # whether steps before the first slot are missing

    @property
    def slots(self) -> int:
        """The number of slots."""
        return max(len(self.edges) - 1, 0)


def timeline(data: DeviceData) -> Timeline:
    """Return the complete steps of a trace, or equal numbers of its events if it has none."""
    steps: list[int] = []
    edges: list[int] = []
    for step, first in data.boundaries:
        if not steps or (step > steps[-1] and first > edges[-1]):
            steps.append(step)
            edges.append(first)
    if steps and _last_step_is_complete(data.snapshot, steps[-1]):
        edges.append(len(data.trace))
    if len(edges) < 2:  # no step has ended
        return _slices(data.trace, has_times=data.snapshot.has_times(data.device))
    stride = -(-len(edges) // _MOST_SLOTS)
    kept = np.array(edges, np.int64)[::stride]
    position = np.array(steps, np.float64)[stride - 1 :: stride][: len(kept) - 1]
    begins_late = steps[0] > 1 or data.metadata.overwritten != 0
    return Timeline("step", kept, position, begins_late)


def _slices(trace: Trace, has_times: bool) -> Timeline:
    # After the last allocation, a program that ends frees what it kept.
    allocs = np.flatnonzero(trace.action == ALLOC)
    events = int(allocs[-1]) + 1 if len(allocs) else len(trace)
    # Slices of equal time would depend on the speed of the machine.
    edges = np.linspace(0, events, min(SLICES, max(events, 1)) + 1).astype(np.int64)
    position = np.arange(1.0, len(edges))  # distinct, also where many events have one time
    if has_times:
        time_s = (np.maximum.accumulate(trace.time_us[:events]) - trace.time_us[0]) / 1e6
        if time_s[-1] > 0:
            return Timeline("second", edges, position * (time_s[-1] / len(position)), True)
    return Timeline("slice", edges, position, begins_late=True)


def _last_step_is_complete(snapshot: Snapshot, last: int) -> bool:
    window, current = snapshot.metadata.window, snapshot.metadata.current_step
    if window is not None:
        return window.complete is True and window.last == last
    return current is not None and current > last


def leaks_on_device(data: DeviceData) -> DeviceLeaks:
    """Search the trace of one device for leaks."""
    snapshot, device, history = data.snapshot, data.device, data.history
    if not has_events(data.trace):
        return unknown(snapshot, device, "the file has no events of the device")
    if (phase := snapshot.metadata.only_phase) is not None:
        return unknown(snapshot, device, f"the file has only the events of phase {phase!r}")
    if not history.is_known:
        return unknown(snapshot, device, data.contradiction or "")
    slots = timeline(data)
    has_steps = slots.unit == "step"
    if slots.slots >= 2:
        seen = _observe(data, slots)
        growths, releases = search(seen)
    if slots.slots < 2 or (has_steps and not any(each.verdict == "leak" for each in growths)):
        older = _observe_survivors(data, slots)
        leaks = [] if older is None else leaks_of_survivors(older)
        if older is not None and leaks:
            seen, growths, releases = older, leaks, []
        elif slots.slots < 2:
            reason = f"the file has {slots.slots or 'no'} complete step{'s' * (slots.slots != 1)}"
            return unknown(snapshot, device, f"{reason}; {LEAST_SLOTS} are needed")
    allocated = history.usage.allocated_bytes
    at_ends = allocated[slots.edges[1:]]
    limit = limit_bytes_of(snapshot, device, history) if has_steps else None

    def available_for(growths: list[Growth]) -> int | None:
        """Return the bytes that are left next to the peak of a step with these leaks."""
        per_step = bytes_per_step(growths)
        return None if limit is None else limit - _peak_of_last_step(allocated, slots, per_step)

    growths, bounded = _without_bounded(growths, available_for(growths))
    verdict, reason = judged(growths, [*bounded, *releases], seen, at_ends)
    if verdict == "none" and bounded:
        reason = f"the growth has a bound: {bounded[0].reason}"
    return replace(
        unknown(snapshot, device, reason),
        verdict=verdict,
        unit=slots.unit,
        first=int(seen.position[0]) if has_steps else None,
        last=int(slots.position[-1]) if has_steps else None,
        observed=seen.slots,
        begin_bytes=int(at_ends[0]) if seen.events_from == 0 else None,
        end_bytes=int(at_ends[-1]),
        releases=[*bounded, *releases],
        available_bytes=available_for(growths),
        oom_step=_oom_step(data, slots),
    ).with_growths(growths)


def steady_growth(data: DeviceData, *, is_short: bool) -> Growth | None:
    """Return the lines whose memory grew in most parts of the recording, to half of the peak, as
    one.

    Without steps, nobody can tell whether it would go on. None: there is none, the file has steps
    or no history, or the program did nothing else meanwhile.

    Args:
        is_short: Whether memory ran out. Then half of the parts are enough for a program that calls
            a model in them. One that calls none grows in all but one, and serves requests meanwhile
            or fails at a line that grew.
    """
    if data.has_marked_steps or not data.history.is_known:
        return None
    found = leaks_on_device(data)
    least = found.observed // 2 if is_short else found.observed - 1
    steady = [growth for growth in found.growths if growth.growths >= least]
    if found.unit == "step" or not steady:
        return None
    growth, allocated = reduce(joined, steady), data.history.usage.allocated_bytes
    allocs = np.flatnonzero(data.trace.action == ALLOC)
    is_module = data.stack_places.place[data.trace.stack[allocs]] == MODULE
    if not is_short:
        is_busy = data.trace.size_bytes[allocs].sum() >= _LEAST_CHURN * growth.held_bytes
    elif is_module.any():
        passes = allocs[np.flatnonzero(is_module[1:] & ~is_module[:-1])]
        is_busy = len(np.unique(np.searchsorted(timeline(data).edges, passes))) >= least
    else:
        is_served = len(allocs) >= _LEAST_CHURN * growth.blocks
        is_busy = growth.growths >= found.observed - 1 and (is_served or _fails_at(data, steady))
        is_busy = is_busy and allocated[0] == 0 and tells_where(growth.kept_by)
    is_kept = growth.kind == "kept" or not is_short
    return growth if is_busy and is_kept and 2 * growth.held_bytes >= allocated.max() else None


def _fails_at(data: DeviceData, growths: list[Growth]) -> bool:
    """Return whether the failed request was of a line that grew: what loads a model fails later."""
    frames = stack_frames(data.snapshot, data.chains.sites)
    stacks = data.trace.stack[data.trace.action == OOM]
    failed = {frame for stack in stacks[-1:] for frame in frames(int(stack))}
    return any(failed.issuperset(growth.frames) for growth in growths)


def _peak_of_last_step(allocated: Column, slots: Timeline, per_step: float) -> int:
    """Return the most bytes that a step like the observed ones allocates at the end of the file.

    Memory runs out at the peak of a step. The peaks of the second half of the steps count, each
    with the leak's growth since then: an evaluation may have a higher peak than other steps, and
    the first step a peak that does not return.
    """
    half = slots.slots // 2
    peaks = np.maximum.reduceat(allocated[: slots.edges[-1] + 1], slots.edges[half:-1])
    grown = (slots.position[-1] - slots.position[half:]) * per_step
    return int((peaks + grown).max())


def _oom_step(data: DeviceData, slots: Timeline) -> int | None:
    """Return the incomplete last step, if memory ran out in it."""
    ooms = np.flatnonzero(data.trace.action == OOM)
    if slots.unit != "step" or len(ooms) == 0 or ooms[-1] < slots.edges[-1]:
        return None
    return step_at(data.boundaries, int(ooms[-1]))


def judged(
    growths: Sequence[Growth], releases: Sequence[Release], seen: Observation, at_ends: Column
) -> tuple[Verdict, str]:
    """Return the verdict and its reason, from what was found.

    Args:
        growths, releases: As `search` returns them.
        at_ends: The allocated bytes at the end of each slot.
    """
    if any(growth.verdict == "leak" for growth in growths):
        return "leak", ""
    notable = [growth for growth in growths if growth.held_bytes >= at_ends[-1] / 100]
    if seen.doubt:
        return "unknown", seen.doubt
    if notable:
        return "unknown", notable[0].reason
    if seen.slots < LEAST_SLOTS:
        few = f"only {seen.slots} complete steps were observed; {LEAST_SLOTS} are needed"
        return "unknown", few
    third = len(at_ends) // 3
    least, most = int(at_ends[-third:].min()), int(at_ends[:third].max())
    between = int(at_ends[third:-third].max())
    lives = seen.lives
    is_made_late = seen.is_owned & ~seen.is_of_model & (lives.birth > 0)
    known = sum(each.most_bytes for each in releases) + int(lives.size_bytes[is_made_late].sum())
    # What is loaded once does not go on growing.
    goes_on = int(np.median(at_ends[-third:])) - between > (least - most) // 8
    if goes_on and least - known > _GREW * most:
        grew = f"memory grew from {size(most)} to {size(least)}"
        return "unknown", f"{grew}, but no single line kept growing"
    return "none", "no memory kept growing from step to step"


def unknown(snapshot: Snapshot, device: int, reason: str) -> DeviceLeaks:
    """Return that a file does not tell whether a device has leaks, and why."""
    return DeviceLeaks(
        verdict="unknown",
        reason=reason,
        device=snapshot.device_name(device),
        rank=snapshot.metadata.rank,
        pid=snapshot.metadata.pid,
        path=snapshot.path,
    )


def stack_frames(snapshot: Snapshot, sites: Column) -> Callable[[int], tuple[Frame, ...]]:
    """Return a function that returns the frames of a stack, from its call site outwards."""
    stacks = snapshot.stacks
    frame_of = cache(partial(frame_at, stacks))  # one object for each, not one in each stack

    @cache
    def frames(stack: int) -> tuple[Frame, ...]:
        site = int(sites[stack])
        indices = (site, *callers_of(stacks, stack, site))
        return tuple(frame for index in indices if (frame := frame_of(index)) is not None)

    return frames


def _observe(data: DeviceData, slots: Timeline) -> Observation:
    blocks = data.history.blocks
    birth, death = (
        np.searchsorted(slots.edges, event, "right") - 1
        for event in (blocks.alloc_event, blocks.free_requested_event)
    )
    return _observed(data, birth, death, slots)


def _observe_survivors(data: DeviceData, slots: Timeline) -> Observation | None:
    """Return what is to be seen of all steps; None if these are the steps of the events, or few.

    The slots are of equally many steps.
    """
    if slots.unit != "step" or slots.slots < 1 or not slots.begins_late:
        return None
    stride = int(slots.position[1] - slots.position[0]) if slots.slots > 1 else 1
    first, last = int(slots.position[0]) + 1 - stride, int(slots.position[-1])
    # Steps of a job that goes on do not begin at 1.
    blocks, host = data.history.blocks, data.snapshot.metadata.host_memory
    births = blocks.birth_step[blocks.birth_step > 0]
    earliest = min(host[0][0] if host else 1, int(births.min(initial=first)))
    steps = last + 1 - earliest
    if earliest >= first or steps < LEAST_SLOTS:
        return None
    edges = np.linspace(earliest, last + 1, min(steps, _MOST_SURVIVED) + 1).astype(np.int64)
    step_of = partial(steps_at, data.boundaries, before=data.boundaries[0][0] - 1)
    birth = np.where(blocks.alloc_event >= 0, step_of(blocks.alloc_event), blocks.birth_step)
    is_left = blocks.free_requested_event >= len(data.trace)
    death = np.where(is_left, edges[-1], step_of(blocks.free_requested_event))
    birth, death = (np.searchsorted(edges, step, "right") - 1 for step in (birth, death))
    position = replace(slots, position=edges[1:] - 1.0, begins_late=False)
    seen = _observed(data, birth, death, position)
    return replace(seen, events_from=first, volume_bytes=None)


def _observed(data: DeviceData, birth: Column, death: Column, slots: Timeline) -> Observation:
    blocks, count = data.history.blocks, len(slots.position)
    is_born = birth < count
    in_slot = is_born & (birth >= 0)
    volume = np.bincount(birth[in_slot], blocks.requested_bytes[in_slot], count).astype(np.int64)
    is_carried = is_born & (death > birth)
    # Blocks that are older than the first slot; the file may not say of which line.
    is_lost = is_carried & (blocks.alloc_event < 0) & (death < count)
    is_lost &= (birth < 0) | (blocks.stack == 0)
    is_left = blocks.free_requested_event >= len(data.trace)
    is_freed_later = (death == count) & ~is_left
    last = int(blocks.alloc_event.max(initial=0))
    found = np.flatnonzero((is_carried & ~is_lost) | (~is_born & is_left))
    row, at_end = data.rows_at_end[found], data.snapshot.blocks
    category, holder = (values_of(column, row) for column in (at_end.category, at_end.holder))
    is_of_model, is_not_owned, is_workspace = (
        texts_matching(names.__contains__, data.snapshot.strings, category)
        for names in (OF_MODEL, OF_NO_MODEL, {"workspace"})
    )
    outgrown, strings = _outgrown(
        data.snapshot.strings,
        values_of(at_end.owner, row),
        blocks.requested_bytes[found],
        is_of_model,
    )
    is_owned = ~is_not_owned & (outgrown == 0)
    if (categories := data.block_categories) is not None:
        # Of a program that has ended. New parameters bring new states.
        is_state, is_parameter = (
            categories.kind[found] == rule.number for rule in (Rule.STATE, Rule.PARAMETER)
        )
        of_states, bound = (
            blocks.size_bytes[found[each]].sum() for each in (is_state, is_parameter)
        )
        is_bounded = of_states <= 2 * _STATE_PART * bound
        if is_bounded and not (is_parameter & (birth[found] > 0)).any():
            is_owned |= is_state
    owner = np.where(is_owned, values_of(at_end.owner, row), outgrown)
    holder = _of_whole_chain(strings, holder, category, birth[found], blocks.stack[found])
    both = Lives(
        birth=birth[found],
        death=death[found],
        size_bytes=blocks.size_bytes[found].astype(np.int64),
        requested_bytes=blocks.requested_bytes[found].astype(np.int64),
        stack=blocks.stack[found].astype(np.int64),
        phase=blocks.user_metadata[found].astype(np.int64),
        is_freed_later=is_freed_later[found],
        is_freed_early=(is_freed_later & (blocks.free_requested_event < last))[found],
        holder=np.where(holder == 0, owner, holder),
        has_event=blocks.alloc_event[found] >= 0,
        birth_step=blocks.birth_step[found],
    )
    is_seen = both.birth < count
    has_steps = slots.unit == "step"
    return Observation(
        lives=both.of(is_seen),
        site=data.chains.sites,
        frames=stack_frames(data.snapshot, data.chains.sites),
        files=program_files(data.snapshot.stacks),
        is_owned=is_owned[is_seen],
        is_of_model=is_of_model[is_seen],
        is_workspace=is_workspace[is_seen],
        slots=count,
        position=slots.position,
        has_steps=has_steps,
        begins_late=slots.begins_late,
        doubt="" if has_steps else NO_STEPS,
        volume_bytes=volume,
        later=both.of(~is_seen),
        later_is_of_model=is_of_model[~is_seen],
        older_death=death[is_lost],
        older_bytes=blocks.size_bytes[is_lost],
        kept_before=[
            each for each in data.snapshot.metadata.kept_at_steps if each.device == data.device
        ],
        strings=strings,
    )


def _outgrown(
    strings: Sequence[str], owner: Column, requested_bytes: Column, is_of_model: Column
) -> tuple[Column, Sequence[str]]:
    """Return what keeps gradients and states that take more than their parameters account for.

    Returns:
        For each block what keeps it, an index in the texts; 0 for all others. And the texts.
    """
    sums = np.bincount(owner, requested_bytes, len(strings))
    bounds = {strings[index]: sums[index] for index in np.unique(owner[is_of_model]).tolist()}
    keeper, texts = np.zeros(len(strings), np.int64), [*strings]
    for index in np.unique(owner[~is_of_model]).tolist():
        what, _, parameter = strings[index].partition(" of ")
        is_gradient = what == "grad"
        most = bounds.get(parameter, np.inf) * (1 if is_gradient else _STATE_PART)
        if sums[index] > most and what not in _BOUNDED_STATES:
            keeper[index] = len(texts)
            texts.append(
                gradient_of(parameter) if is_gradient else f"state[{what!r}] of an optimizer"
            )
    return keeper[owner], texts


def _of_whole_chain(
    strings: Sequence[str], holder: Column, category: Column, birth: Column, stack: Column
) -> Column:
    """Return the holders, also of a chain of graphs that was too long to be read to its end.

    It is read from the newest steps on. Of earlier ones, the same lines made what it keeps, also
    what nobody is known to have.
    """
    is_saved = texts_matching("activation".__eq__, strings, category)
    is_named = texts_matching(tells_where, strings, holder) & (holder > 0)
    is_open = texts_matching({"", "unknown"}.__contains__, strings, category) & (holder == 0)
    for number in np.unique(holder[is_saved & is_named]).tolist():
        of_chain = is_saved & (holder == number)
        if len(np.unique(birth[of_chain])) > 2:
            is_rest = (is_open | (is_saved & ~is_named)) & (birth < birth[of_chain].max())
            return np.where(is_rest & np.isin(stack, stack[of_chain]), number, holder)
    return holder


def _without_bounded(
    growths: Sequence[Growth], available_bytes: int | None
) -> tuple[list[Growth], list[Release]]:
    """Return the growths that go on, and those of bounded containers as memory that is no leak.

    If the containers would not fit when they are full, theirs are growths like others.

    Args:
        available_bytes: What the process can still allocate; None if unknown.
    """
    bounded = [growth for growth in growths if bound_of(growth.kept_by)]
    more = sum(bytes_when_full(growth) - growth.held_bytes for growth in bounded)
    if available_bytes is not None and more > available_bytes:
        return list(growths), []
    releases = [
        Release(
            growth.frames,
            growth.held_bytes,
            f"it ends at about {size(bytes_when_full(growth))}, {kept_by_text(growth.kept_by)}",
        )
        for growth in bounded
        if growth.kept_by is not None
    ]
    return [growth for growth in growths if not bound_of(growth.kept_by)], releases
