"""The memory of one device at one moment: a table with a row for each block, and its groups.

A block is held from its allocation until its memory can serve another one (`free_completed`), as in
memory_viz's timeline: the bytes of all rows add up to the moment's `active_bytes`.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

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
from pytracer.analysis.holder_names import holder_names, is_variable, tells_where
from pytracer.analysis.life_rules import UNKNOWN, Rule
from pytracer.analysis.modules import PREFIXES, modules_of
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
"""Up to so many codes are counted, which is faster than to sort them and takes 16 MB."""

_Coded = tuple[int, Callable[[int], object], Column]
"""The values of a key: their number, a function from a code to its value, and a code a block."""


@dataclass(frozen=True)
class Sum:
    """The blocks that have the same keys."""

    key: tuple[Any, ...]  # the value of each key; see `HeldMemory.group`
    size_bytes: int  # the bytes that the allocator gave the blocks
    requested_bytes: int  # the bytes that the program requested
    # The part of `size_bytes` in blocks that the program has freed, but that a stream still uses.
    # These bytes count in `active_bytes`, not in `allocated_bytes`.
    pending_bytes: int
    count: int  # the number of blocks

    @property
    def sizes(self) -> tuple[int, int, int]:
        """`size_bytes`, `requested_bytes` and `count`."""
        return self.size_bytes, self.requested_bytes, self.count


@dataclass(frozen=True, eq=False)
class HeldMemory:
    """The blocks that are active on a device at one moment."""

    data: DeviceData
    stacks: Stacks
    entry: int | None  # the entry of the history's usage; None: only the state at the end is known
    blocks: Lifetimes
    rows: Column  # int64, which of them are active

    def column(self, name: str) -> Column:
        """Return a column of `blocks` for the active ones."""
        found: Column = getattr(self.blocks, name)[self.rows]
        return found

    @property
    def active_bytes(self) -> int:
        """Return the bytes of all blocks."""
        return int(self.column("size_bytes").sum())

    @property
    def forward_bytes(self) -> int:
        """Return the bytes of unknown blocks that modules allocated in the forward pass."""
        of_forward = self._categories.are(lambda *kind: kind == Rule.FROM_FORWARD.value)
        return int(self.column("size_bytes")[of_forward].sum())

    def bytes_older_than(self, event: int) -> int:
        """Return the bytes of blocks that were allocated before an event."""
        return int(self.column("size_bytes")[self.column("alloc_event") < event].sum())

    def requested_bytes_of(self, owner: str) -> Column:
        """Return the requested bytes of the blocks of one owner."""
        is_owners = texts_matching(owner.__eq__, self.data.snapshot.strings, self._categories.owner)
        found: Column = self.column("requested_bytes")[is_owners]
        return found

    def has_owner(self) -> Column:
        """Return for each block whether the name of its owner is known: bool."""
        found: Column = self._categories.owner != 0
        return found

    def is_in(self, categories: Collection[str]) -> Column:
        """Return for each block whether it has one of the categories: bool."""
        return self._categories.are(lambda category, _: category in categories)

    def unsized(self) -> "HeldMemory":
        """Return the blocks whose size is not exact."""
        return replace(self, rows=self.rows[~self.column("is_sized")])

    def group(self, *keys: str) -> list[Sum]:
        """Return the sums of the blocks by one or several keys, the largest first.

        Args:
            keys: "stack": an index in `stacks`. "site": a number for `frame_at`. "category": as in
                `CategoryUsage`. "owner", "holder" and "module": a name; None if none is known.
                "phase": that of the allocation; "" for no phase, None if unknown. "step" and "age":
                the step of the allocation, and how many steps ago this was; None if unknown.
                "stream": as the allocator numbers it. "pool": as torch numbers it; None if unknown.
        """
        size_bytes = self.column("size_bytes")
        is_pending = self.column("free_requested_event") < (self.entry or 0)
        code, codes = np.zeros(len(self.rows), np.int64), 1
        columns = []
        for key in keys:
            count, value_of, column = getattr(self, f"_by_{key}")()
            if codes * count >= 2**62:
                codes, code = _numbered(code, codes)
            code, codes = code * count + column, codes * count
            columns.append((value_of, column))
        groups, group = _numbered(code, codes)
        sizes = size_bytes, self.column("requested_bytes"), size_bytes * is_pending, 1
        sums = [sum_by_group(group, values, groups) for values in sizes]
        order = np.argsort(-sums[0], kind="stable")
        member = np.zeros(groups, np.int64)
        member[group] = np.arange(len(group))  # one of each group: all have the same keys
        keys_of = [map(value_of, column[member[order]].tolist()) for value_of, column in columns]
        totals = (column[order].tolist() for column in sums)
        return [
            Sum(key, *total)
            for key, *total in zip(zip(*keys_of, strict=True), *totals, strict=True)
        ]

    @cached_property
    def holder(self) -> Column:
        """The Python object that keeps each active block: int64, an index in the `strings`.

        Blocks that were freed before the end of the file have none, 0.
        """
        return values_of(self.data.snapshot.blocks.holder, self._row_at_end)

    @cached_property
    def keeper(self) -> tuple[list[str], Column]:
        """What kept unknown blocks that no Python object keeps: functions, and private pools.

        Texts, and for each active block an index in them, as of `releases`; 0 for other blocks.
        """
        is_open, found = self.is_in({UNKNOWN}), np.zeros(len(self.rows), np.int64)
        if self.entry is None or not has_categories(self.data.snapshot) or not is_open.any():
            return [""], found
        rows = self.rows[is_open]
        texts, text = releases(self.data, self.blocks, rows)
        pools, pool = pool_fillers(self.data, self.blocks, rows)
        # What a tensor keeps is not only its pool's.
        kept_by = self.data.snapshot.strings, self.holder[is_open]
        pool[texts_matching(tells_where, *kept_by) & (kept_by[1] != 0)] = 0
        found[is_open] = np.where((text == 0) & (pool > 0), len(texts) - 1 + pool, text)
        return [*texts, *pools[1:]], found

    @cached_property
    def unusual_holder(self) -> Column:
        """The same, without variables of functions that keep the graph of the current step.

        Those are what a forward pass keeps by itself. Without steps, all graphs count as such. One
        that keeps the graphs of several passes, as the sum of their losses or a hidden state, is
        unusual, too.
        """
        steps = [first for _, first in self.data.boundaries if first < (self.entry or 0)]
        is_new = self.column("alloc_event") >= (steps[-1] if len(steps) > 1 else 0)
        of_variable = texts_matching(is_variable, self.data.snapshot.strings, self.holder)
        of_variable &= self.is_in({"activation"})
        is_usual = np.zeros(len(self.rows), bool)
        backward = self._backward_passes_before() if of_variable.any() else is_usual
        for holder in np.unique(self.holder[is_new & of_variable]).tolist():
            of_holder = of_variable & (self.holder == holder)
            # Each pass has its own loss, if nothing else, which no loop over layers repeats; or it
            # has been followed by a backward pass.
            passes = np.unique(self.column("stack")[of_holder], return_counts=True)[1].min()
            if max(passes, len(np.unique(backward[of_holder]))) < _SEVERAL:
                is_usual |= of_holder
        return np.where(is_usual, 0, self.holder)

    def _backward_passes_before(self) -> Column:
        """Return for each block how many backward passes began before it was allocated."""
        trace = self.data.trace
        allocs = np.flatnonzero(trace.action == ALLOC)
        is_backward = self.data.stack_places.place[trace.stack[allocs]] == BACKWARD
        begins = allocs[is_backward & ~np.append(False, is_backward[:-1])]
        found: Column = np.searchsorted(begins, self.column("alloc_event"))
        return found

    @cached_property
    def _categories(self) -> BlockCategories:
        found = None if self.entry is None else self.data.block_categories
        if found is None:
            return file_categories(self.data.snapshot, self._row_at_end)
        return BlockCategories(found.kind[self.rows], found.kinds, found.owner[self.rows])

    @cached_property
    def _row_at_end(self) -> Column:
        """The row of each block in the snapshot's blocks; -1 if it was freed before the end."""
        if self.entry is None:
            return self.data.snapshot.blocks_in_use(self.data.device)[self.rows]
        return self.data.rows_at_end[self.rows]

    def _by_stack(self) -> _Coded:
        return len(self.stacks), int, self.column("stack").astype(np.int64)

    def _by_site(self) -> _Coded:
        sites, site_of = np.unique(call_sites(self.stacks), return_inverse=True)
        return len(sites), sites.tolist().__getitem__, site_of[self.column("stack")]

    def _by_category(self) -> _Coded:
        names, category = self._categories.categories()
        return len(names), names.__getitem__, category

    def _by_owner(self) -> _Coded:
        strings = self.data.snapshot.strings
        return len(strings), lambda text: strings[text] or None, self._categories.owner

    def _by_holder(self) -> _Coded:
        names, name = holder_names(self.data.snapshot.strings, self.holder)
        texts, text = self.keeper
        name = np.where(text > 0, len(names) + text, name)
        names = [*names, *texts]
        return len(names), names.__getitem__, name

    def _by_module(self) -> _Coded:
        phase = np.where(self.column("alloc_event") < 0, 0, self.column("user_metadata"))
        found = modules_of(self.data.snapshot, self.column("stack"), phase, self._row_at_end)
        names = [f"{prefix}{path}" if path else None for path in found.paths for prefix in PREFIXES]
        return len(names), names.__getitem__, found.path * len(PREFIXES) + found.role

    def _by_phase(self) -> _Coded:
        strings = self.data.snapshot.strings
        phase = self.column("user_metadata").astype(np.int64) + 1
        phase[self.column("alloc_event") < 0] = 0
        return len(strings) + 1, lambda text: strings[text - 1] if text else None, phase

    def birth_steps(self) -> Column:
        """Return the step in which each block was allocated; 0: unknown."""
        births = self.column("birth_step")
        return steps_at(self.data.boundaries, self.column("alloc_event"), births)

    def _by_step(self) -> _Coded:
        steps, code_of = np.unique(self.birth_steps(), return_inverse=True)
        return len(steps), lambda code: int(steps[code]) or None, code_of

    def _by_age(self) -> _Coded:
        now = None if self.entry is None else step_at(self.data.boundaries, self.entry - 1)
        count, step_of, step = self._by_step()

        def age_of(code: int) -> int | None:
            begun = step_of(code)
            return now - begun if isinstance(begun, int) and now is not None else None

        return count, age_of, step

    def _by_stream(self) -> _Coded:
        streams, stream = np.unique(self.column("stream"), return_inverse=True)
        return len(streams), streams.tolist().__getitem__, stream

    def _by_pool(self) -> _Coded:
        # The allocation of an older block is not in the trace, but its segment may be in the file.
        snapshot, row = self.data.snapshot, self._row_at_end
        pool = self.column("pool").astype(np.int64) + 1
        pool[self.column("alloc_event") < 0] = 0
        pool[row >= 0] = snapshot.segments.pool[snapshot.blocks.segment[row[row >= 0]]] + 1
        pools = [None, *((int(high), int(low)) for high, low in snapshot.pools.tolist())]
        return len(pools), pools.__getitem__, pool


def held_memory(data: DeviceData, entry: int | None) -> HeldMemory:
    """Return the memory that a device holds at one moment.

    Args:
        entry: An entry of the history: 0 is before the first event, `i + 1` after event i.
            None: the end, of which no history is needed.
    """
    snapshot, history = data.snapshot, data.history
    if history.is_replayed or (history.is_known and entry is not None):
        entry = len(data.trace) if entry is None else entry
        active = np.flatnonzero(history.blocks.are_active_at(entry))
        return HeldMemory(data, snapshot.stacks, entry, history.blocks, active)
    blocks = blocks_at_end(data)
    return HeldMemory(data, snapshot.stacks, None, blocks, np.arange(len(blocks)))


def blocks_at_end(data: DeviceData) -> Lifetimes:
    """Return the blocks that the state at the end has, as blocks older than any event."""
    blocks, segments = data.snapshot.blocks, data.snapshot.segments
    rows = data.snapshot.blocks_in_use(data.device)
    segment, never = blocks.segment[rows], np.zeros(len(rows), np.int32)
    return Lifetimes(
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


def total_of(key: tuple[Any, ...], sums: Sequence[Sum]) -> Sum:
    """Return the sums of several groups as those of one, which gets a key."""
    return Sum(
        key,
        sum(one.size_bytes for one in sums),
        sum(one.requested_bytes for one in sums),
        sum(one.pending_bytes for one in sums),
        sum(one.count for one in sums),
    )


def _numbered(code: Column, codes: int) -> tuple[int, Column]:
    """Return how many different codes there are, and the number of each in their order.

    Args:
        code: int64, from 0 to `codes - 1`.
    """
    if codes > _MOST_COUNTED:
        distinct, number = np.unique(code, return_inverse=True)
        return len(distinct), number
    present = np.flatnonzero(np.bincount(code, minlength=codes))
    numbers = np.zeros(codes, np.int64)
    numbers[present] = np.arange(len(present))
    return len(present), numbers[code]


def sum_by_group(group: Column, values: Column | int, groups: int) -> Column:
    """Return the sum of the values of each group, 0 to `groups - 1`: int64, exact."""
    result = np.zeros(groups, np.int64)
    np.add.at(result, group, values)
    return result
