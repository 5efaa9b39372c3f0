"""What the life of a block tells of what it was for (docs/explanation/owners.md has the rules)."""

from enum import Enum
from itertools import pairwise

import numpy as np

from pytracer.analysis.history import Lifetimes
from pytracer.analysis.stack_places import (
    BACKWARD,
    MODULE,
    OPTIMIZER,
    OUTSIDE,
    StackPlaces,
    stack_places,
)
from pytracer.reading.snapshot import ALLOC, FREE_REQUESTED, OOM, Column, Snapshot, Trace
from pytracer.reading.steps import step_boundaries

UNKNOWN = "unknown"


class Rule(Enum):
    """The rules by which the life of a block tells its category: the category, and the reason."""

    NO_FACT = UNKNOWN, "no_fact"
    PARAMETER = "parameter", "noted"
    BUFFER = "buffer", "noted"
    STATE = "optimizer_state", "noted"
    FREED_BY_NODE = "activation", "freed_by_node"
    COMPILED = "activation", "compiled_backward"
    WITHIN_FORWARD = "temporary", "within_forward"
    WITHIN_OPTIMIZER = "temporary", "within_optimizer"
    WITHIN_BACKWARD = "temporary", "within_backward"
    IN_EXPRESSION = "temporary", "in_expression"
    IN_OPERATOR = "temporary", "in_operator"
    IN_FORWARD = "temporary", "in_forward"
    IN_BACKWARD = "temporary", "in_backward"
    ZERO_GRAD = "gradient", "zero_grad"
    GATHER = "communication", "fsdp_gather"
    BUCKET = "communication", "ddp_bucket"
    BATCH = "input", "batch"
    FROM_FORWARD = UNKNOWN, "from_forward"
    REDUCED = "gradient", "fsdp_reduce"
    AUTOCAST = "temporary", "autocast_cache"
    ARGUMENT = "input", "argument"
    RESULT = "output", "result"
    RETURNED = "gradient", "autograd_grad"
    CHECKPOINT_STATE = "activation", "checkpoint_state"

    @property
    def number(self) -> int:
        """Return the rule's index in `BlockCategories.kinds`."""
        return _NUMBERS[self]


_NUMBERS = {rule: number for number, rule in enumerate(Rule)}


def shows_lives(snapshot: Snapshot) -> bool:
    """Return whether frees have the stacks of the threads that freed, and none is missing."""
    return snapshot.metadata.context == "all" and snapshot.metadata.only_phase is None


def kinds_by_life(snapshot: Snapshot, device: int, lives: Lifetimes) -> Column:
    """Return the number of the rule that holds for each block of a device; `shows_lives` has to."""
    trace, places = snapshot.traces[device], stack_places(snapshot)
    freed = np.clip(lives.free_requested_event, -1, len(trace))
    is_freed = (freed >= 0) & (freed < len(trace))
    is_in_trace, alloc_stack = lives.alloc_event >= 0, lives.stack
    free_stack = np.where(is_freed, trace.stack[np.where(is_freed, freed, 0)], 0)
    is_known = alloc_stack != 0
    place = places.place[alloc_stack]
    is_of_engine, is_recomputed = places.is_of_engine, places.is_recomputed
    by_forward = is_known & ((place != BACKWARD) | is_recomputed[alloc_stack])
    by_engine = is_of_engine[alloc_stack]
    freed_by_engine = is_freed & is_of_engine[free_stack]
    run = _runs(snapshot, device, places)
    both = np.flatnonzero(is_in_trace & is_known & (free_stack != 0))
    is_within = np.zeros(len(lives), bool)
    is_within[both] = run[lives.alloc_event[both]] == run[freed[both]]
    is_within &= place != OUTSIDE
    failed_stack, failed_run = _failed(snapshot, device, places, run)
    fails_in_backward = failed_stack >= 0 and places.place[failed_stack] == BACKWARD
    # The program has done nothing else since the operator that failed began.
    elsewhere = np.flatnonzero(_is_of_program(trace) & (trace.stack != failed_stack))
    last_other = int(elsewhere[-1]) if len(elsewhere) and failed_stack >= 0 else len(trace)
    is_left = is_in_trace & (lives.free_requested_event >= len(trace))
    is_in_pass = is_left & (run[lives.alloc_event] == failed_run)
    # A later pass freed what a pass with a graph of its own had kept for it.
    call = places.engine_call[alloc_stack]
    is_kept = (call != 0) & places.is_second[free_stack] & freed_by_engine
    is_kept &= (places.engine_call[free_stack] != 0) & (places.engine_call[free_stack] != call)
    # The threads of accelerators do not show the call. But while the main thread runs one, it does
    # nothing else. Other threads may do anything meanwhile.
    stacks = snapshot.stacks
    is_elsewhere = _is_of_program(trace) & places.is_of_main[trace.stack]
    is_elsewhere &= places.place[trace.stack] != BACKWARD
    calls = np.append(np.cumsum(is_elsewhere), 0)
    is_later = by_engine & freed_by_engine & places.is_of_main[stacks.forward[alloc_stack]]
    is_later &= calls[lives.alloc_event] != calls[freed]
    is_kept |= is_later & (stacks.node[free_stack] != 0) & ~places.accumulates[free_stack]
    is_by_compiled = is_known & is_freed & places.is_compiled[free_stack]
    is_by_compiled &= places.place[free_stack] == BACKWARD
    in_backward = by_engine & freed_by_engine
    in_backward |= is_recomputed[alloc_stack] & is_recomputed[free_stack]
    roles = ("argument", "result", "autograd_grad", "parameter", "buffer", "optimizer_state")
    is_argument, is_result, is_returned, *is_noted = (
        _used_blocks(snapshot, device, lives, role) for role in roles
    )
    # The first rule that holds decides.
    rules: list[tuple[Rule, Column]] = [
        *zip((Rule.PARAMETER, Rule.BUFFER, Rule.STATE), is_noted, strict=True),
        (Rule.GATHER, is_known & places.gathers[alloc_stack]),
        (Rule.BUCKET, is_known & places.makes_buckets[alloc_stack]),
        (Rule.BATCH, is_known & places.makes_inputs[alloc_stack]),
        (
            Rule.ZERO_GRAD,
            is_freed
            & places.is_zero_grad[free_stack]
            & ((place == BACKWARD) | ~(is_in_trace | is_known)),
        ),
        (Rule.REDUCED, by_engine & is_freed & places.reduces[free_stack]),
        (
            Rule.AUTOCAST,
            is_known & is_freed & places.leaves_autocast[free_stack] & (place != OPTIMIZER),
        ),
        (Rule.FREED_BY_NODE, (by_forward & freed_by_engine) | is_kept),
        (Rule.WITHIN_BACKWARD, is_within & (place == BACKWARD) & in_backward),
        (Rule.IN_BACKWARD, is_in_pass & by_engine & (place == BACKWARD)),
        (Rule.WITHIN_OPTIMIZER, is_within & (place == OPTIMIZER) & is_known),
        (Rule.WITHIN_FORWARD, is_within & (place == MODULE) & is_known),
        (Rule.ARGUMENT, is_argument & places.may_make_arguments[lives.stack] & (lives.stack != 0)),
        (Rule.RESULT, is_result & is_known & (place == MODULE)),
        (Rule.RETURNED, is_returned & by_engine),
        (Rule.CHECKPOINT_STATE, is_known & places.keeps_random_state[alloc_stack]),
        (
            Rule.IN_OPERATOR,
            is_left & np.isin(place, (OUTSIDE, OPTIMIZER)) & (lives.alloc_event > last_other),
        ),
        (Rule.IN_FORWARD, is_in_pass & (place == MODULE) & (lives.pool == 0)),
        (Rule.COMPILED, (place == MODULE) & (is_left & fails_in_backward | is_by_compiled)),
        (Rule.FROM_FORWARD, is_known & (place == MODULE)),
    ]
    numbers = [rule.number for rule, _ in rules]
    return np.select([holds for _, holds in rules], numbers, Rule.NO_FACT.number)


def _used_blocks(snapshot: Snapshot, device: int, lives: Lifetimes, role: str) -> Column:
    """Return for each block whether a tensor in it had a role, as in the file: bool."""
    is_used = np.zeros(len(lives), bool)
    uses = [use[:2] for use in snapshot.metadata.device(device).uses if use.role == role]
    if not uses or not len(lives):
        return is_used
    event, address = np.array(uses, np.int64).T
    # The block is the one that was allocated last at the address, if it was not freed by then.
    known, number = np.unique(address, return_inverse=True)
    rows = np.flatnonzero(np.isin(lives.address, known))
    which = np.searchsorted(known, lives.address[rows])
    span = np.int64(len(snapshot.traces[device]) + 2)
    begin = which * span + lives.alloc_event[rows] + 1
    order = np.argsort(begin, kind="stable")
    rows, which, begin = rows[order], which[order], begin[order]
    found = np.searchsorted(begin, number * span + np.minimum(event, span - 2), side="right") - 1
    is_there = found >= 0
    found, event, number = found[is_there], event[is_there], number[is_there]
    is_there = (which[found] == number) & (lives.free_requested_event[rows[found]] >= event)
    is_used[rows[found[is_there]]] = True
    return is_used


def _is_of_program(trace: Trace) -> Column:
    """Return for each event whether the program, and not the allocator, caused it: bool."""
    found: Column = (trace.action == ALLOC) | (trace.action == FREE_REQUESTED)
    return found


def _runs(snapshot: Snapshot, device: int, places: StackPlaces) -> Column:
    """Return for each event the number of its run: of events of the program in the same place."""
    trace = snapshot.traces[device]
    is_counted = _is_of_program(trace)
    # Without a stack are events of threads that run no Python code, such as those of Gloo, which
    # drop their reference to a tensor late; and those whose stack found no room.
    if snapshot.metadata.stacks.dropped == 0 and snapshot.metadata.killed is None:
        is_counted &= trace.stack != 0
    counts = np.flatnonzero(is_counted)
    place = places.place[trace.stack[counts]]
    begins = np.zeros(len(trace), np.int64)
    begins[counts[1:]] = place[1:] != place[:-1]
    # Between two steps that are not consecutive, there were events that were not recorded.
    steps = step_boundaries(snapshot, device)
    for (step, _), (following, first) in pairwise(steps):
        begins[first] |= following != step + 1
    runs: Column = np.cumsum(begins)
    return runs


def _failed(snapshot: Snapshot, device: int, places: StackPlaces, run: Column) -> tuple[int, int]:
    """Return the stack of the file's out-of-memory error and the run of its pass; -1: none."""
    trace = snapshot.traces[device]
    failed = np.flatnonzero(trace.action == OOM)[-1:]
    if snapshot.metadata.oom_of(device) is None or not len(failed):
        return -1, -1
    event = int(failed[0])
    stack = int(trace.stack[event])
    first = np.searchsorted(run, run[event])
    at, begin = places.place[stack], places.place[trace.stack[first]]
    # A loss is often computed right after the forward pass, in the same region of autocast.
    is_in_pass = at == begin or (at, begin) == (OUTSIDE, MODULE)
    return stack or -1, int(run[event]) if is_in_pass else -1
