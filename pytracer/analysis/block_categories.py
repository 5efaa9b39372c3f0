"""What each block of a trace was for, with the rule that decided.

The file has the categories of the blocks that tensors and cuBLAS owned when it was written. The
categories of other blocks follow from when they were allocated and freed
(docs/explanation/owners.md has the rules). Without such a fact, a block is "unknown".
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pytracer.analysis.history import History, Lifetimes
from pytracer.analysis.stack_places import (
    BACKWARD,
    MODULE,
    OPTIMIZER,
    OUTSIDE,
    StackPlaces,
    stack_places,
)
from pytracer.reading.metadata import only_phase, read_number, step_boundaries, tensor_uses
from pytracer.reading.snapshot import ALLOC, FREE_REQUESTED, INACTIVE, Column, Snapshot

UNKNOWN = "unknown"
WORKSPACE = "workspace"
"""Blocks that torch keeps for cuBLAS. Only a file has this category, not the life of a block."""

_KINDS = (
    (UNKNOWN, "no_fact"),
    ("activation", "freed_by_node"),
    ("temporary", "within_forward"),
    ("temporary", "within_optimizer"),
    ("temporary", "within_backward"),
    ("gradient", "zero_grad"),
    ("communication", "fsdp_gather"),
    ("communication", "ddp_bucket"),
    ("input", "batch"),
    (UNKNOWN, "from_forward"),
    ("gradient", "fsdp_reduce"),
    ("temporary", "autocast_cache"),
    ("input", "argument"),
    ("output", "result"),
    ("gradient", "autograd_grad"),
    ("activation", "checkpoint_state"),
)
(
    _NO_FACT,
    _FREED_BY_NODE,
    _WITHIN_FORWARD,
    _WITHIN_OPTIMIZER,
    _WITHIN_BACKWARD,
    _BY_ZERO_GRAD,
    _GATHER,
    _BUCKET,
    _INPUT,
    FROM_FORWARD,
    _REDUCED,
    _CAST,
    _ARGUMENT,
    _RESULT,
    _RETURNED,
    _CHECKPOINT_STATE,
) = range(len(_KINDS))


@dataclass(frozen=True, eq=False)
class BlockCategories:
    """What the blocks of a `Lifetimes` were for; columns with a row for each block.

    Attributes:
        kind: int64, an index in `kinds`.
        kinds: Pairs of a category and the rule that decided, such as ("activation",
            "freed_by_node").
        owner: int64, the name of the largest tensor in the block, an index in the snapshot's
            `strings`; 0: no owner is known.
    """

    kind: Column
    kinds: tuple[tuple[str, str], ...]
    owner: Column

    def categories(self) -> tuple[tuple[str, ...], Column]:
        """Return the distinct categories, and for each block an index in them."""
        names = tuple(dict.fromkeys(category for category, _ in self.kinds))
        index = np.array([names.index(category) for category, _ in self.kinds], np.int64)
        return names, index[self.kind]


def block_categories(snapshot: Snapshot, device: int, history: History) -> BlockCategories:
    """Return what each block of a device's history was for."""
    lives, blocks, strings = history.blocks, snapshot.blocks, snapshot.strings
    kind, kinds = np.full(len(lives), _NO_FACT), list(_KINDS)
    if _shows_lives(snapshot):
        kind = _kinds_by_life(snapshot, device, lives)
    row = rows_at_end(snapshot, device, lives)
    found = np.flatnonzero(row >= 0)
    row = row[found]
    in_file, which = np.unique(
        blocks.category[row] * np.int64(len(strings)) + blocks.category_rule[row],
        return_inverse=True,
    )
    for category, rule in (divmod(pair, len(strings)) for pair in in_file.tolist()):
        kinds.append((strings[category], strings[rule]))
    # An owner decides. Why there is none is kept where the block's life does not decide either.
    categories = [category for category, _ in kinds[len(_KINDS) :]]
    has_owner = np.array([name not in ("", UNKNOWN) for name in categories], bool)[which]
    has_reason = np.array([name != "" for name in categories], bool)[which]
    decides = has_owner | (has_reason & (kind[found] == _NO_FACT))
    kind[found[decides]] = len(_KINDS) + which[decides]
    owner = np.zeros(len(lives), np.int64)
    owner[found] = blocks.owner[row]
    result = BlockCategories(kind, tuple(kinds), owner)
    return _by_call_site(snapshot, device, lives, result)


def rows_at_end(snapshot: Snapshot, device: int, lives: Lifetimes) -> Column:
    """Return for each block its row in the snapshot's blocks; -1 if it was freed before the end."""
    blocks = snapshot.blocks
    active = np.flatnonzero(
        (blocks.state != INACTIVE) & (snapshot.segments.device[blocks.segment] == device)
    )
    row = np.full(len(lives), -1)
    exists = lives.free_event == len(snapshot.traces[device])
    by_address = active[np.argsort(blocks.address[active], kind="stable")]
    row[exists] = by_address[np.searchsorted(blocks.address[by_address], lives.address[exists])]
    return row


def _shows_lives(snapshot: Snapshot) -> bool:
    """Return whether frees have the stacks of the threads that freed, and none is missing."""
    return snapshot.metadata.get("context") == "all" and only_phase(snapshot) is None


def _kinds_by_life(snapshot: Snapshot, device: int, lives: Lifetimes) -> Column:
    depth = read_number(snapshot.metadata, "stack_depth") or 0
    trace, places = snapshot.traces[device], stack_places(snapshot.stacks, depth)
    freed = np.clip(lives.free_requested_event, -1, len(trace))
    is_freed = (freed >= 0) & (freed < len(trace))
    is_in_trace = lives.alloc_event >= 0
    alloc_stack = np.where(is_in_trace, lives.stack, 0)
    free_stack = np.where(is_freed, trace.stack[np.where(is_freed, freed, 0)], 0)
    is_known = is_in_trace & (alloc_stack != 0)
    place = places.place[alloc_stack]
    is_of_engine, is_recomputed = places.is_of_engine, places.is_recomputed
    by_forward = is_known & ((place != BACKWARD) | is_recomputed[alloc_stack])
    by_engine = is_in_trace & is_of_engine[alloc_stack]
    freed_by_engine = is_freed & is_of_engine[free_stack]
    run = _runs(snapshot, device, places)
    both = np.flatnonzero(is_known & is_freed | by_engine & is_freed)
    is_within = np.zeros(len(lives), bool)
    is_within[both] = run[lives.alloc_event[both]] == run[freed[both]]
    is_within &= place != OUTSIDE
    # A later pass freed what a pass with a graph of its own had kept for it.
    call = np.where(is_in_trace, places.engine_call[alloc_stack], 0)
    is_kept = (call != 0) & places.is_second[free_stack] & freed_by_engine
    is_kept &= (places.engine_call[free_stack] != 0) & (places.engine_call[free_stack] != call)
    in_backward = by_engine & freed_by_engine
    in_backward |= is_recomputed[alloc_stack] & is_recomputed[free_stack]
    is_argument, is_result, is_returned = (
        _used_blocks(snapshot, device, lives, role)
        for role in ("argument", "result", "autograd_grad")
    )
    return np.select(
        [
            is_known & places.gathers[alloc_stack],
            is_known & places.makes_buckets[alloc_stack],
            is_known & places.makes_inputs[alloc_stack],
            is_freed & places.is_zero_grad[free_stack] & (~is_in_trace | (place == BACKWARD)),
            by_engine & is_freed & places.reduces[free_stack],
            is_known & is_freed & places.leaves_autocast[free_stack] & (place != OPTIMIZER),
            (by_forward & freed_by_engine) | is_kept,
            is_within & (place == BACKWARD) & in_backward,
            is_within & (place != BACKWARD) & is_known,
            is_argument & places.may_make_arguments[lives.stack] & (lives.stack != 0),
            is_result & is_known & (place == MODULE),
            is_returned & by_engine,
            is_known & places.keeps_random_state[alloc_stack],
            is_known & (place == MODULE),
        ],
        [
            _GATHER,
            _BUCKET,
            _INPUT,
            _BY_ZERO_GRAD,
            _REDUCED,
            _CAST,
            _FREED_BY_NODE,
            _WITHIN_BACKWARD,
            np.where(place == OPTIMIZER, _WITHIN_OPTIMIZER, _WITHIN_FORWARD),
            _ARGUMENT,
            _RESULT,
            _RETURNED,
            _CHECKPOINT_STATE,
            FROM_FORWARD,
        ],
        _NO_FACT,
    )


def _used_blocks(snapshot: Snapshot, device: int, lives: Lifetimes, role: str) -> Column:
    """Return for each block whether a tensor in it had a role: bool.

    Args:
        snapshot: The snapshot.
        device: The device.
        lives: The device's blocks.
        role: "argument", "result" or "autograd_grad", as in the file.
    """
    is_used = np.zeros(len(lives), bool)
    uses = [use[:2] for use in tensor_uses(snapshot, device) if use.role == role]
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


def _runs(snapshot: Snapshot, device: int, places: StackPlaces) -> Column:
    """Return for each event the number of its run: of events of the program in the same place."""
    trace = snapshot.traces[device]
    counts = np.flatnonzero((trace.action == ALLOC) | (trace.action == FREE_REQUESTED))
    place = places.place[trace.stack[counts]]
    begins = np.zeros(len(trace), np.int64)
    begins[counts[1:]] = place[1:] != place[:-1]
    # Between two steps that are not consecutive, there were events that were not recorded.
    steps = step_boundaries(snapshot, device)
    for (step, _), (following, first) in pairwise(steps):
        begins[first] |= following != step + 1
    runs: Column = np.cumsum(begins)
    return runs


def _by_call_site(
    snapshot: Snapshot, device: int, lives: Lifetimes, found: BlockCategories
) -> BlockCategories:
    """Decide blocks of the last step that still exist, by earlier blocks with the same stack.

    All other blocks with the stack and the size, at least one, have to be activations, or copies of
    parameters that autocast dropped at the end of its region. Others decide nothing: of the blocks
    of one line, the temporary ones are freed first.
    """
    steps, end = step_boundaries(snapshot, device), len(snapshot.traces[device])
    if not steps or not len(lives):
        return found
    names, category = found.categories()
    # Autograd may keep an argument or a result, and alone: the free will show it.
    is_open = (category == names.index(UNKNOWN)) | np.isin(found.kind, (_ARGUMENT, _RESULT))
    is_open &= lives.free_requested_event >= end
    is_open &= (lives.alloc_event >= steps[-1][1]) & (lives.stack != 0)
    uses = np.zeros(len(snapshot.stacks), bool)
    uses[lives.stack[is_open]] = True
    rows = np.flatnonzero(uses[lives.stack] & (lives.alloc_event >= 0))
    rows = rows[np.lexsort((lives.requested_bytes[rows], lives.stack[rows]))]
    if not len(rows):
        return found
    stack, size = lives.stack[rows], lives.requested_bytes[rows]
    begins = np.flatnonzero(np.append(True, (stack[1:] != stack[:-1]) | (size[1:] != size[:-1])))
    is_peer = ~is_open[rows]
    kind = found.kind.copy()
    for decisive, is_of_kind in (
        ("activation", category[rows] == names.index("activation")),
        ("temporary", kind[rows] == _CAST),
    ):
        has_peer = np.logical_or.reduceat(is_peer, begins)
        is_sure = has_peer & np.logical_and.reduceat(is_of_kind | ~is_peer, begins)
        of_row = np.repeat(is_sure, np.diff(np.append(begins, len(rows))))
        kind[rows[~is_peer & of_row]] = len(found.kinds) + (decisive == "temporary")
    kinds = (*found.kinds, ("activation", "call_site"), ("temporary", "call_site"))
    return BlockCategories(kind, kinds, found.owner)
