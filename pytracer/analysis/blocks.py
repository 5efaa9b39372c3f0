"""One row for each block that lived on a device, and every way to sum blocks up.

A block is held from its allocation until its memory can serve another one (`free_completed`), as in
memory_viz's timeline: the bytes of all blocks of a moment add up to its `active_bytes`.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from pytracer.analysis.block_categories import (
    BlockCategories,
    file_categories,
    has_categories,
    values_of,
)
from pytracer.analysis.call_sites import call_sites, texts_matching
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.history import Lifetimes
from pytracer.analysis.holder_names import BY_OTHERS, holder_names, is_variable, tells_where
from pytracer.analysis.life_rules import UNKNOWN
from pytracer.analysis.modules import PREFIXES, BlockModules, modules_of
from pytracer.analysis.releases import pool_fillers, releases
from pytracer.analysis.stack_places import BACKWARD
from pytracer.reading.snapshot import ALLOC, PENDING_FREE, Column, Stacks
from pytracer.reading.steps import step_at, steps_at

KEYS = (
    *("line", "caller", "stack", "category", "owner", "holder", "module"),
    *("phase", "step", "age", "stream", "pool"),
)
"""What memory can be grouped by; `groups` makes "line" and "caller" of the stacks."""

_SEVERAL = 3  # graphs of forward passes; two losses may be summed

_MOST_COUNTED = 2**20
"""Codes up to here are counted, which is faster than to sort them and takes 16 MB."""


class Coded(NamedTuple):
    """A column of values: a code for each block, which is an index in the values."""

    values: Sequence[Any]
    code: Column  # int64

    def unless(self, other: "Coded") -> "Coded":
        """Return these values, but another column's where it has one: where its code is not 0."""
        code = np.where(other.code > 0, len(self.values) + other.code, self.code)
        return Coded([*self.values, *other.values], code)


class Sum(NamedTuple):
    """The blocks that have the same values in some columns."""

    key: tuple[Any, ...]  # the values
    size_bytes: int  # the bytes that the allocator gave the blocks
    requested_bytes: int  # the bytes that the program requested
    blocks: int  # the number of blocks
    # The part of `size_bytes` in blocks that the program has freed, but that a stream still uses.
    # These bytes count in `active_bytes`, not in `allocated_bytes`.
    pending_bytes: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """`size_bytes`, `requested_bytes` and `blocks`."""
        return self[1:4]


@dataclass(frozen=True, eq=False)
class Blocks:
    """All blocks of a device, those of one moment (`at`), or some of them (`where`).

    A column is made when it is first asked for, for all blocks of the moment. It is one of
    `Lifetimes`, or one of these:

    - "stack", "site": The allocation's stack, an index in the snapshot's `stacks`; its call site, a
      number for `frame_at`. "own_site": the same without stacks of forward calls.
    - "kind", "category": What the blocks hold: a pair of a category and the rule that decided; the
      category alone, as in `CategoryUsage`. "shown_kind": the kind, with
      `BY_OTHERS` as the category of unknown blocks that an object keeps or kept.
    - "owner", "module": A name; None if none is known. "module_path": the same without its prefix;
      "" if none is known.
    - "kept_by": The Python object that keeps a block; "" for blocks that were freed before the end
      of the file. "unusual_holder": the same without what a forward pass keeps by itself.
      "released": what kept unknown blocks that no object keeps; "" for others.
    - "holder": `kept_by` or `released`, with items of the same container as one; None if none is
      known. "keeper": the same of `unusual_holder`.
    - "phase": That of the allocation; "" for no phase, None if unknown.
    - "step", "age": The step of the allocation, and how many steps ago this was; None if unknown.
    - "stream": As the allocator numbers it. "pool": as torch numbers it; None if unknown.
    """

    data: DeviceData
    lives: Lifetimes
    rows: Column  # int64, which blocks of `lives` are those of the moment
    entry: int | None  # the entry of the history's usage; None: only the state at the end is known
    chosen: Any = ...  # which of `rows`: int64, or all
    made: dict[str, Coded] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.numbers)

    @property
    def numbers(self) -> Column:
        """Which blocks of `lives` these are: int64."""
        found: Column = self.rows[self.chosen]
        return found

    @property
    def stacks(self) -> Stacks:
        """The stacks of the snapshot."""
        return self.data.snapshot.stacks

    def at(self, entry: int | None) -> "Blocks":
        """Return the blocks that are active at one moment.

        Args:
            entry: An entry of the history: 0 is before the first event, `i + 1` after event i.
                None: the end, of which no history is needed.
        """
        history = self.data.history
        if not history.is_known:
            return _at_end(self.data)
        entry = len(self.data.trace) if entry is None else entry
        active = np.flatnonzero(history.blocks.are_active_at(entry))
        return Blocks(self.data, history.blocks, active, entry)

    def where(self, is_chosen: Column) -> "Blocks":
        """Return some of the blocks; `is_chosen`: bool, or the numbers of those."""
        return replace(self, chosen=np.arange(len(self.rows))[self.chosen][is_chosen])

    def of_lives(self, name: str) -> Column:
        """Return a column of `Lifetimes`."""
        found: Column = getattr(self.lives, name)[self.numbers]
        return found

    def column(self, name: str) -> Coded:
        """Return a column of values."""
        if name not in self.made:
            self.made[name] = _COLUMNS[name](replace(self, chosen=...))
        values, code = self.made[name]
        return Coded(values, code[self.chosen])

    def __getitem__(self, name: str) -> Column:
        """Return a column's number for each block: of a column of values, the code."""
        return self.column(name).code if name in _COLUMNS else self.of_lives(name)

    def are(self, name: str, is_wanted: Callable[[Any], object]) -> Column:
        """Return for each block whether its value in a column is a wanted one: bool."""
        return texts_matching(is_wanted, *self.column(name))

    def is_in(self, name: str, *values: object) -> Column:
        """Return for each block whether its value in a column is one of some: bool."""
        return self.are(name, values.__contains__)

    def bytes_where(self, is_chosen: Column) -> int:
        """Return the bytes that the allocator gave some of the blocks; `is_chosen`: bool."""
        return int(self["size_bytes"][is_chosen].sum())

    def group(self, *names: str) -> list[Sum]:
        """Return the sums of the blocks by the values of columns, the largest first."""
        return self.sums(*map(self.column, names))

    def sums(self, *columns: Coded) -> list[Sum]:
        """Return the sums of the blocks by columns of one's own, the largest first."""
        group = np.zeros(len(self), np.int64)
        for _, code in columns:
            distinct, number = numbered(code)
            group = numbered(group * len(distinct) + number)[1]
        groups, size_bytes = int(group.max(initial=-1)) + 1, self["size_bytes"]
        pending = size_bytes * (self["free_requested_event"] < (self.entry or 0))
        sums = [
            sum_by_group(group, values, groups)
            for values in (size_bytes, self["requested_bytes"], 1, pending)
        ]
        order = np.argsort(-sums[0], kind="stable")
        member = np.zeros(groups, np.int64)
        member[group] = np.arange(len(group))  # one of each group: all have the same values
        keys = (map(values.__getitem__, code[member[order]].tolist()) for values, code in columns)
        sizes = (column[order].tolist() for column in sums)
        return [*map(Sum, zip(*keys, strict=True), *sizes)]

    def by_site(self, *names: str) -> list[tuple[Sum, list[Sum]]]:
        """Return the blocks by call site, and by other columns; the largest groups first.

        Returns:
            For each group the sums, whose first value is the "site"; and the sums of its stacks,
            the largest first, whose last value is the stack.
        """
        parts: dict[tuple[Any, ...], list[Sum]] = defaultdict(list)
        for part in self.group("site", *names, "stack"):
            parts[part.key[:-1]].append(part)
        found = [(total_of(key, of_stacks), of_stacks) for key, of_stacks in parts.items()]
        return sorted(found, key=lambda each: (-each[0].size_bytes, each[0].key[0]))

    @property
    def row_at_end(self) -> Column:
        """The row of each block in the snapshot's blocks; -1 if it was freed before the end."""
        data, is_end = self.data, self.entry is None
        rows = data.snapshot.blocks_in_use(data.device) if is_end else data.rows_at_end
        return rows[self.numbers]

    @property
    def categories(self) -> BlockCategories:
        """What the blocks hold, with the rule that decided."""
        found = None if self.entry is None else self.data.block_categories
        if found is None:
            return file_categories(self.data.snapshot, self.row_at_end)
        return BlockCategories(found.kind[self.numbers], found.kinds, found.owner[self.numbers])

    @property
    def modules(self) -> BlockModules:
        """The modules that the blocks belong to."""
        phase = np.where(self["alloc_event"] < 0, 0, self["user_metadata"])
        return modules_of(self.data.snapshot, self["stack"], phase, self.row_at_end)


def blocks_of(data: DeviceData) -> Blocks:
    """Return all blocks that lived on a device; without a history, those at the end."""
    blocks = data.history.blocks
    if not data.history.is_known:
        return _at_end(data)
    return Blocks(data, blocks, np.arange(len(blocks)), len(data.trace))


def held_at(data: DeviceData, entry: int | None) -> Blocks:
    """Return the blocks that a device holds at one moment, as `Blocks.at`."""
    return blocks_of(data).at(entry)


def _at_end(data: DeviceData) -> Blocks:
    """Return the blocks that the state at the end has, as blocks older than any event."""
    blocks, segments = data.snapshot.blocks, data.snapshot.segments
    rows = data.snapshot.blocks_in_use(data.device)
    segment, never = blocks.segment[rows], np.zeros(len(rows), np.int32)
    lives = Lifetimes(
        address=blocks.address[rows],
        stream=segments.stream[segment],
        size_bytes=blocks.size_bytes[rows],
        requested_bytes=blocks.requested_bytes[rows],
        pool=segments.pool[segment],
        stack=blocks.stack[rows],
        user_metadata=np.zeros(len(rows), np.uint32),
        birth_step=blocks.birth_step[rows],
        alloc_event=never - 1,
        free_requested_event=np.where(blocks.state[rows] == PENDING_FREE, -1, never),
        free_event=never,
        is_sized=np.ones(len(rows), bool),
    )
    return Blocks(data, lives, np.arange(len(rows)), None)


def _own_site(blocks: Blocks) -> Coded:
    nothing = np.zeros_like(blocks.stacks.forward)
    sites = call_sites(replace(blocks.stacks, forward=nothing, node=nothing))
    return _coded(sites[blocks["stack"]])


def _released(blocks: Blocks) -> Coded:
    data, is_open = blocks.data, blocks.is_in("category", UNKNOWN)
    found = np.zeros(len(blocks), np.int64)
    if blocks.entry is None or not has_categories(data.snapshot) or not is_open.any():
        return Coded([""], found)
    rows = blocks.rows[is_open]
    texts, text = releases(data, blocks.lives, rows)
    pools, pool = pool_fillers(data, blocks.lives, rows)
    # What a tensor keeps is not only its pool's.
    pool[blocks.are("kept_by", lambda holder: holder and tells_where(holder))[is_open]] = 0
    found[is_open] = np.where((text == 0) & (pool > 0), len(texts) - 1 + pool, text)
    return Coded([*texts, *pools[1:]], found)


def _unusual_holder(blocks: Blocks) -> Coded:
    """Leave out variables of functions that keep the graph of the current step.

    Those are what a forward pass keeps by itself. Without steps, all graphs count as such. One that
    keeps the graphs of several passes, as the sum of their losses or a hidden state, is unusual,
    too.
    """
    data, (strings, holder) = blocks.data, blocks.column("kept_by")
    of_variable = blocks.are("kept_by", is_variable) & blocks.is_in("category", "activation")
    if not of_variable.any():
        return Coded(strings, holder)
    steps = [first for _, first in data.boundaries if first < (blocks.entry or 0)]
    is_new = blocks["alloc_event"] >= (steps[-1] if len(steps) > 1 else 0)
    # How many backward passes began before each block was allocated.
    allocs = np.flatnonzero(data.trace.action == ALLOC)
    is_backward = data.stack_places.place[data.trace.stack[allocs]] == BACKWARD
    begins = allocs[is_backward & ~np.append(False, is_backward[:-1])]
    backward = np.searchsorted(begins, blocks["alloc_event"])
    found = holder.copy()
    for number in np.unique(holder[is_new & of_variable]).tolist():
        of_holder = of_variable & (holder == number)
        # Each pass has its own loss, if nothing else, which no loop over layers repeats; or it has
        # been followed by a backward pass.
        passes = np.unique(blocks["stack"][of_holder], return_counts=True)[1].min()
        if max(passes, len(np.unique(backward[of_holder]))) < _SEVERAL:
            found[of_holder] = 0
    return Coded(strings, found)


def _shown_kind(blocks: Blocks) -> Coded:
    kinds, code = blocks.column("kind")
    is_kept = blocks.are("holder", tells_where) & blocks.is_in("category", UNKNOWN)
    return Coded([*kinds, (BY_OTHERS, "")], np.where(is_kept, len(kinds), code))


def _holder(blocks: Blocks) -> Coded:
    return Coded(*holder_names(*blocks.column("kept_by"))).unless(blocks.column("released"))


def _module(blocks: Blocks) -> Coded:
    found = blocks.modules
    names = [f"{prefix}{path}" if path else None for path in found.paths for prefix in PREFIXES]
    return Coded(names, found.path * len(PREFIXES) + found.role)


def _phase(blocks: Blocks) -> Coded:
    strings = blocks.data.snapshot.strings
    phase = np.where(blocks["alloc_event"] < 0, -1, blocks["user_metadata"].astype(np.int64))
    return _coded(phase, lambda text: strings[text] if text >= 0 else None)


def _age(blocks: Blocks) -> Coded:
    now = None if blocks.entry is None else step_at(blocks.data.boundaries, blocks.entry - 1)
    steps, code = blocks.column("step")
    return Coded([now - step if step and now is not None else None for step in steps], code)


def _pool(blocks: Blocks) -> Coded:
    # The allocation of an older block is not in the trace, but its segment may be in the file.
    snapshot, row = blocks.data.snapshot, blocks.row_at_end
    pool = np.where(blocks["alloc_event"] < 0, 0, blocks.of_lives("pool").astype(np.int64) + 1)
    pool[row >= 0] = snapshot.segments.pool[snapshot.blocks.segment[row[row >= 0]]] + 1
    return Coded([None, *map(tuple, snapshot.pools.tolist())], pool)


_COLUMNS: dict[str, Callable[[Blocks], Coded]] = {
    "stack": lambda blocks: Coded(
        range(len(blocks.stacks)), blocks.of_lives("stack").astype(np.int64)
    ),
    "site": lambda blocks: _coded(blocks.data.chains.sites[blocks["stack"]]),
    "own_site": _own_site,
    "kind": lambda blocks: Coded(blocks.categories.kinds, blocks.categories.kind),
    "category": lambda blocks: Coded(*blocks.categories.categories()),
    "shown_kind": _shown_kind,
    "owner": lambda blocks: _coded(
        blocks.categories.owner, lambda text: blocks.data.snapshot.strings[text] or None
    ),
    "kept_by": lambda blocks: Coded(
        blocks.data.snapshot.strings,
        values_of(blocks.data.snapshot.blocks.holder, blocks.row_at_end),
    ),
    "released": _released,
    "unusual_holder": _unusual_holder,
    "holder": _holder,
    "keeper": lambda blocks: Coded(*holder_names(*blocks.column("unusual_holder"))),
    "module": _module,
    "module_path": lambda blocks: Coded(blocks.modules.paths, blocks.modules.path),
    "phase": _phase,
    "step": lambda blocks: _coded(
        steps_at(blocks.data.boundaries, blocks["alloc_event"], blocks["birth_step"]),
        lambda step: step or None,
    ),
    "age": _age,
    "stream": lambda blocks: _coded(blocks.of_lives("stream")),
    "pool": _pool,
}
"""How each column is made of all blocks of a moment."""


def total_of(key: tuple[Any, ...], sums: Sequence[Sum]) -> Sum:
    """Return the sums of several groups as those of one, which gets a key."""
    return Sum(key, *map(sum, zip(*(one[1:] for one in sums), strict=True)))


def _coded(numbers: Column, value: Callable[[int], Any] = int) -> Coded:
    distinct, code = numbered(numbers)
    return Coded([*map(value, distinct.tolist())], code)


def numbered(code: Column) -> tuple[Column, Column]:
    """Return the distinct codes in their order, and for each element an index in them."""
    if code.min(initial=0) < 0 or code.max(initial=0) >= _MOST_COUNTED:
        return np.unique(code, return_inverse=True)
    present = np.flatnonzero(np.bincount(code))
    numbers = np.zeros(int(code.max(initial=0)) + 1, np.int64)
    numbers[present] = np.arange(len(present))
    return present, numbers[code]


def sum_by_group(group: Column, values: Column | int, groups: int) -> Column:
    """Return the sum of the values of each group, 0 to `groups - 1`: int64, exact."""
    result = np.zeros(groups, np.int64)
    np.add.at(result, group, values)
    return result
