"""What each block of a trace was for, with the rule that decided.

The file has the categories of the blocks that tensors and cuBLAS owned when it was written. The
categories of other blocks follow from when they were allocated and freed
(docs/explanation/owners.md has the rules). Without such a fact, a block is "unknown".
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pytracer.analysis.call_sites import texts_matching
from pytracer.analysis.history import History, Lifetimes
from pytracer.analysis.holder_names import COMPILED, NO_TENSOR, TEMPORARY, tells_where
from pytracer.analysis.life_rules import UNKNOWN, Rule, kinds_by_life, shows_lives
from pytracer.reading.snapshot import Column, Snapshot
from pytracer.reading.steps import step_boundaries

OF_MODEL = ("parameter", "buffer")
OF_NO_MODEL = ("", UNKNOWN, "workspace", "activation")
"""The categories in a file of blocks that no model and no optimizer has: those that torch keeps for
cuBLAS, those that a node keeps, and others."""

_UNSAID = UNKNOWN, ""  # the kind of blocks of which the file says nothing

# A rule of the file: a node of one of autograd's graphs kept the block. These come before it.
_SAVED = "saved_by_node"
_BEFORE_SAVED = [rule.number for rule in (Rule.GATHER, Rule.BUCKET, Rule.BATCH)]


@dataclass(frozen=True, eq=False)
class BlockCategories:
    """What the blocks of a `Lifetimes` were for; columns with a row for each block."""

    kind: Column  # int64, an index in `kinds`
    # Pairs of a category and the rule that decided, such as ("activation", "freed_by_node").
    kinds: tuple[tuple[str, str], ...]
    # int64, the name of the largest tensor in the block, an index in the snapshot's `strings`; 0:
    # no owner is known.
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
    was_noted = snapshot.metadata.killed is not None  # what the process read while it ran
    return was_read or was_noted or bool(snapshot.blocks.category.any())


def block_categories(snapshot: Snapshot, device: int, history: History) -> BlockCategories:
    """Return what each block of a device's history was for."""
    lives = history.blocks
    kind, kinds = np.full(len(lives), Rule.NO_FACT.number), [rule.value for rule in Rule]
    if shows_lives(snapshot):
        kind = kinds_by_life(snapshot, device, lives)
    row = rows_at_end(snapshot, device, lives)
    found = np.flatnonzero(row >= 0)
    kind[found] = _with_holders(snapshot, device, kind[found], row[found])
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
    category, rule = (values_of(column, rows) for column in (blocks.category, blocks.category_rule))
    pairs, kind = np.unique(category * len(strings) + rule, return_inverse=True)
    texts = (divmod(both, len(strings)) for both in pairs.tolist())
    kinds = tuple((strings[category] or UNKNOWN, strings[rule]) for category, rule in texts)
    return BlockCategories(kind, kinds, values_of(blocks.owner, rows))


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


def values_of(column: Column, rows: Column) -> Column:
    """Return a column of the snapshot's blocks at the `rows_at_end`: int64; 0 for the row -1."""
    found = np.zeros(len(rows), np.int64)
    found[rows >= 0] = column[rows[rows >= 0]]
    return found


def _with_holders(snapshot: Snapshot, device: int, kind: Column, row: Column) -> Column:
    """Return the kinds of blocks that still exist, with what their holders tell.

    What a Python object keeps may outlive the pass that an out-of-memory error has ended.
    """
    holder, strings, kind = snapshot.blocks.holder[row], snapshot.strings, kind.copy()

    def has(is_wanted: Callable[[str], object]) -> Column:
        return texts_matching(is_wanted, strings, holder)

    is_of_no_object = has(lambda text: text.startswith(NO_TENSOR))
    for rule, holds, otherwise in (
        (Rule.IN_BACKWARD, ~has(tells_where), Rule.NO_FACT),
        (Rule.IN_OPERATOR, is_of_no_object, Rule.NO_FACT),
        (Rule.IN_FORWARD, is_of_no_object, Rule.FROM_FORWARD),
        (Rule.COMPILED, has(lambda text: text.endswith(COMPILED)), Rule.FROM_FORWARD),
    ):
        kind[~holds & (kind == rule.number)] = otherwise.number
    if snapshot.metadata.oom_of(device) is not None:
        is_open = np.isin(kind, [Rule.NO_FACT.number, Rule.FROM_FORWARD.number])
        kind[is_open & has(lambda text: text.startswith(TEMPORARY))] = Rule.IN_EXPRESSION.number
    return kind


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
