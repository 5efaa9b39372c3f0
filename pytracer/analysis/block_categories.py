"""What each block of a trace was for, with the rule that decided.

The file has the categories of the blocks that tensors and cuBLAS owned when it was written. The
categories of other blocks follow from when they were allocated and freed
(docs/explanation/owners.md has the rules). Without such a fact, a block is "unknown".
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np

from pytracer.analysis.call_sites import texts_matching
from pytracer.analysis.history import History, Lifetimes
from pytracer.analysis.holder_names import NO_TENSOR, tells_where
from pytracer.analysis.stack_places import (
    BACKWARD,
    MODULE,
    OPTIMIZER,
    OUTSIDE,
    StackPlaces,
    stack_places,
)
from pytracer.reading.snapshot import ALLOC, FREE_REQUESTED, OOM, Column, Snapshot
from pytracer.reading.steps import step_boundaries

UNKNOWN = "unknown"
OF_MODEL = ("parameter", "buffer")
OF_NO_MODEL = ("", UNKNOWN, "workspace", "activation")
"""The categories in a file of blocks that no model and no optimizer has: those that torch keeps for
cuBLAS, those that a node keeps, and others."""


class Rule(Enum):
    """The rules by which the life of a block tells its category: the category, and the reason."""

    NO_FACT = UNKNOWN, "no_fact"
    PARAMETER = "parameter", "noted"
    BUFFER = "buffer", "noted"
    STATE = "optimizer_state", "noted"
    FREED_BY_NODE = "activation", "freed_by_node"
    WITHIN_FORWARD = "temporary", "within_forward"
    WITHIN_OPTIMIZER = "temporary", "within_optimizer"
    WITHIN_BACKWARD = "temporary", "within_backward"
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


_UNSAID = UNKNOWN, ""
"""The kind of blocks of which the file says nothing."""

_NUMBERS = {rule: number for number, rule in enumerate(Rule)}

# A rule of the file: a node of one of autograd's graphs kept the block. These come before it.
_SAVED = "saved_by_node"
_BEFORE_SAVED = [rule.number for rule in (Rule.GATHER, Rule.BUCKET, Rule.BATCH)]


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

    def are(self, holds: Callable[[str, str], bool]) -> Column:
        """Return for each block whether this holds for its category and its rule: bool."""
        return np.array([holds(*kind) for kind in self.kinds], bool)[self.kind]


def _is_saved(_category: str, rule: str) -> bool:
    return rule == _SAVED


def has_categories(snapshot: Snapshot) -> bool:
    """Return whether a file says what blocks were for; files of other recorders do not."""
    was_read = snapshot.metadata.tensors.unread is not None  # and no block may be left
    return was_read or bool(snapshot.blocks.category.any())


def block_categories(snapshot: Snapshot, device: int, history: History) -> BlockCategories:
    """Return what each block of a device's history was for."""
    lives = history.blocks
    kind, kinds = np.full(len(lives), Rule.NO_FACT.number), [rule.value for rule in Rule]
    if _shows_lives(snapshot):
        kind = _kinds_by_life(snapshot, device, lives)
    row = rows_at_end(snapshot, device, lives)
    found = np.flatnonzero(row >= 0)
    # What a Python object keeps may outlive the pass. In the forward pass, it is one in most cases.
    for rule, may_have, otherwise in (
        (Rule.IN_BACKWARD, lambda text: not tells_where(text), Rule.NO_FACT),
        (Rule.IN_FORWARD, lambda text: text == NO_TENSOR, Rule.FROM_FORWARD),
    ):
        may_be = texts_matching(may_have, snapshot.strings, snapshot.blocks.holder[row[found]])
        kind[found[~may_be & (kind[found] == rule.number)]] = otherwise.number
    of_file = file_categories(snapshot, row[found])
    # An owner decides. Why there is none is kept where the block's life does not decide either.
    # A node that keeps a block does not tell what came from the program, or from other ranks.
    has_owner = of_file.are(lambda category, _: category != UNKNOWN)
    has_reason = of_file.are(lambda *kind: kind != _UNSAID)
    has_owner &= ~(of_file.are(_is_saved) & np.isin(kind[found], _BEFORE_SAVED))
    decides = has_owner | (has_reason & (kind[found] == Rule.NO_FACT.number))
    kind[found[decides]] = len(kinds) + of_file.kind[decides]
    owner = np.zeros(len(lives), np.int64)
    owner[found] = of_file.owner
    result = BlockCategories(kind, (*kinds, *of_file.kinds), owner)
    return _by_call_site(snapshot, device, lives, result)


def file_categories(snapshot: Snapshot, rows: Column) -> BlockCategories:
    """Return what the file itself says about blocks, given as rows of the snapshot's blocks.

    Blocks that are not in the file, with the row -1, and blocks without a category are unknown.
    """
    strings, blocks = snapshot.strings, snapshot.blocks
    exists, pair, owner = rows >= 0, np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    row = rows[exists]
    pair[exists] = blocks.category[row] * np.int64(len(strings)) + blocks.category_rule[row]
    owner[exists] = blocks.owner[row]
    pairs, kind = np.unique(pair, return_inverse=True)
    texts = (divmod(both, len(strings)) for both in pairs.tolist())
    kinds = tuple((strings[category] or UNKNOWN, strings[rule]) for category, rule in texts)
    return BlockCategories(kind, kinds, owner)


def rows_at_end(snapshot: Snapshot, device: int, lives: Lifetimes) -> Column:
    """Return for each block its row in the snapshot's blocks; -1 if it was freed before the end."""
    address, row = snapshot.blocks.address, np.full(len(lives), -1)
    rows = snapshot.blocks_in_use(device)
    if len(rows):
        exists = np.flatnonzero(lives.free_event == len(snapshot.traces[device]))
        rows = rows[np.argsort(address[rows], kind="stable")]
        place = np.searchsorted(address[rows], lives.address[exists])
        found = rows[np.minimum(place, len(rows) - 1)]
        row[exists] = np.where(address[found] == lives.address[exists], found, -1)
    return row


def are_of_category(snapshot: Snapshot, row: Column, is_wanted: Callable[[str], object]) -> Column:
    """Return for each block whether its category in the file is a wanted one: bool.

    The blocks are given as rows of the snapshot's blocks, -1 for those freed before the end, which
    have none.
    """
    category, found = snapshot.blocks.category[row[row >= 0]], np.zeros(len(row), bool)
    found[row >= 0] = texts_matching(is_wanted, snapshot.strings, category)
    return found


def _shows_lives(snapshot: Snapshot) -> bool:
    """Return whether frees have the stacks of the threads that freed, and none is missing."""
    return snapshot.metadata.context == "all" and snapshot.metadata.only_phase is None


def _kinds_by_life(snapshot: Snapshot, device: int, lives: Lifetimes) -> Column:
    depth = snapshot.metadata.stack_depth or 0
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
    is_in_pass = is_in_trace & (lives.free_requested_event >= len(trace))
    is_in_pass &= run[lives.alloc_event] == _failed_run(snapshot, device, places, run)
    # A later pass freed what a pass with a graph of its own had kept for it.
    call = np.where(is_in_trace, places.engine_call[alloc_stack], 0)
    is_kept = (call != 0) & places.is_second[free_stack] & freed_by_engine
    is_kept &= (places.engine_call[free_stack] != 0) & (places.engine_call[free_stack] != call)
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
            is_freed & places.is_zero_grad[free_stack] & (~is_in_trace | (place == BACKWARD)),
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
        (Rule.IN_FORWARD, is_in_pass & (place == MODULE) & (lives.pool == 0)),
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


def _failed_run(snapshot: Snapshot, device: int, places: StackPlaces, run: Column) -> int:
    """Return the run of the pass that an out-of-memory error has ended; else -1."""
    trace = snapshot.traces[device]
    failed = np.flatnonzero(trace.action == OOM)[-1:]
    if snapshot.metadata.oom_of(device) is None or not len(failed):
        return -1
    event = int(failed[0])
    first = np.flatnonzero(run[: event + 1] == run[event])[0]
    at, begin = places.place[trace.stack[[event, first]]].tolist()
    # A loss is often computed right after the forward pass, in the same region of autocast.
    return int(run[event]) if at == begin or (at, begin) == (OUTSIDE, MODULE) else -1


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
    is_open = (category == names.index(UNKNOWN)) | np.isin(
        found.kind, (Rule.ARGUMENT.number, Rule.RESULT.number)
    )
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
    # That a node keeps a block now says nothing of others: a layer keeps some copies of parameters.
    is_peer = ~(is_open | found.are(_is_saved))[rows]
    kind = found.kind.copy()
    for decisive, is_of_kind in (
        ("activation", category[rows] == names.index("activation")),
        ("temporary", kind[rows] == Rule.AUTOCAST.number),
    ):
        has_peer = np.logical_or.reduceat(is_peer, begins)
        is_sure = has_peer & np.logical_and.reduceat(is_of_kind | ~is_peer, begins)
        of_row = np.repeat(is_sure, np.diff(np.append(begins, len(rows))))
        kind[rows[is_open[rows] & of_row]] = len(found.kinds) + (decisive == "temporary")
    kinds = (*found.kinds, ("activation", "call_site"), ("temporary", "call_site"))
    return BlockCategories(kind, kinds, found.owner)
