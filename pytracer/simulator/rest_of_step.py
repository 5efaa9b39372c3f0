"""What a program would have requested after the allocation that failed, as an earlier step did.

The simulator continues with these requests, so that an answer holds for the rest of a step.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from pytracer.analysis.blocks import blocks_of
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.requests import (
    ALLOCATE,
    FAIL,
    FREE,
    LEAVE,
    REQUEST_COLUMNS,
    Recording,
    Requests,
    block_order,
)
from pytracer.reading.snapshot import Column

_LEAST_MATCHED = 0.6  # the least part of the allocations of a step that a similar step has, too

_STEPS_BACK = 5  # how many steps are compared, the last ones

_AGREE, _LOOK, _MOST_DIFFERENCES = 6, 4_000, 100
"""After a difference, so many requests in a row are the same again, at most so many further on; and
after so many differences, the rest is different."""

_MIX = 1_000_003  # a prime number, by which the hashes of runs of requests are made

_TURNS_BACK = 200  # how many earlier requests of a line are compared, to find a loop

_MOST_FURTHER, _MOST_ROWS = 32, 20_000
"""The most further steps that are simulated, and the most requests that they add."""

_ONCE = ("optimizer_state", "workspace")
_OWNED = (*_ONCE, "parameter", "gradient", "buffer")


@dataclass(frozen=True, eq=False)
class Continued:
    """The requests of a recording, of the rest of its last step, and of further such steps.

    Attributes:
        requests: The requests. The one that failed is an `ALLOCATE`.
        stack: int64, the stack of each request; 0 for frees.
        failing: The request that failed.
        ends: The end of its step among the requests, and of each further step; [] if nothing like
            it precedes.
        like: The step that the rest is taken from, as in "step 3"; "" for the turns of a loop; None
            if nothing like it precedes.
        begin: Where the step begins that failed, or the loop's last turn.
        smaller: int64, the sizes from there to its end if its input were that of `like`.
    """

    requests: Requests
    stack: Column
    failing: int
    ends: list[int]
    like: str | None
    begin: int
    smaller: Column

    def at(self, part: float) -> "Continued":
        """Return the requests with an input between two sizes.

        This is exact for requests that grow with a power of the input, and too much for sums of
        such powers.

        Args:
            part: 0 for the input of the step that the rest is taken from, 1 for that which failed.
        """
        step, small = slice(self.begin, self.ends[0]), self.smaller
        sizes = self.requests.size_bytes.copy()
        ratio = np.maximum(sizes[step], 1) / np.maximum(small, 1)
        sizes[step] = np.ceil(small * ratio**part).astype(np.int64)
        return replace(self, requests=replace(self.requests, size_bytes=sizes))

    def without(self, blocks: Column) -> "Continued":
        """Return the requests with these blocks freed just before the request that failed."""
        count = len(blocks)

        def inserted(column: Column, values: Column | int) -> Column:
            parts = np.split(column, [self.failing])
            new = np.broadcast_to(np.asarray(values, column.dtype), count)
            return np.concatenate((parts[0], new, parts[1]))

        requests = replace(
            self.requests,
            kind=inserted(self.requests.kind, FREE),
            block=inserted(self.requests.block, blocks),
            size_bytes=inserted(self.requests.size_bytes, 0),
            stream=inserted(self.requests.stream, 0),
            pool=inserted(self.requests.pool, 0),
            event=inserted(self.requests.event, -1),
        )
        return replace(
            self,
            requests=requests,
            stack=inserted(self.stack, 0),
            failing=self.failing + count,
            ends=[end + count for end in self.ends],
        )


@dataclass(frozen=True, eq=False)
class _Rows:
    """Some requests in their order: columns of equal length."""

    columns: dict[str, Column]

    def __len__(self) -> int:
        return len(self["kind"])

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def chosen(self, rows: Column | slice) -> "_Rows":
        return _Rows({name: column[rows] for name, column in self.columns.items()})

    def having(self, **columns: Column) -> "_Rows":
        return _Rows(self.columns | columns)

    @property
    def asks(self) -> Column:
        """The allocations: int64, their rows."""
        found: Column = np.flatnonzero(self["kind"] == ALLOCATE)
        return found


def _joined(*parts: _Rows) -> _Rows:
    names = parts[0].columns
    return _Rows({name: np.concatenate([part[name] for part in parts]) for name in names})


def continued(data: DeviceData, recording: Recording) -> Continued:
    """Return the requests of a recording that ran out of memory, with the rest of its last step."""
    requests = recording.requests
    failed = np.flatnonzero(requests.kind == FAIL)
    end = int(failed[-1]) + 1  # what follows is how the program dealt with the error
    rows = _with_tokens(recording, end)
    blocks = blocks_of(data)
    order = block_order(recording.history.blocks)
    steps = [step for step, first in data.boundaries if first <= requests.event[end - 1]]
    begins = [first for _, first in data.boundaries[: len(steps)]]
    edges = [*np.searchsorted(rows["event"], begins).tolist(), end]
    is_kept = np.ones(len(order) + 2, bool)  # the last: the request that failed, and no block
    is_kept[rows["block"][rows["kind"] == FREE]] = False
    last = len(steps) - 1
    for categories, chosen in (
        (_ONCE, range(max(last - _STEPS_BACK, 1), last)),
        (_OWNED, range(1)),
    ):
        # What the optimizer and libraries keep is made once, and in the first step, the rest too.
        is_once = is_kept & np.append(blocks.is_in("category", *categories)[order], [False, False])
        units = [
            unit.chosen(~is_once[unit["block"]])
            for unit in (rows.chosen(slice(*pair)) for pair in pairwise(edges))
        ]
        if last > 0 and (found := _nearest(units, chosen)) is not None:
            repeats = ~is_once[rows["block"][edges[-2] :]]
            name = f"step {steps[found[0]]}"
            return _continued(rows, units, *found, requests, name, edges[-2], repeats)
    turns = _turns(rows, edges[-2] if steps else 0)
    if turns is None:
        alone = _recorded(requests, rows)
        return Continued(alone, rows["stack"], end - 1, [], None, end, alone.size_bytes[:0])
    first = np.zeros(1, np.int64)
    return _continued(
        rows, turns, len(turns) - 2, (first, first), requests, "", end - 1, np.ones(1, bool)
    )


def _recorded(requests: Requests, rows: _Rows) -> Requests:
    return replace(
        requests,
        kind=rows["kind"].astype(np.uint8),
        block=rows["block"],
        size_bytes=rows["size_bytes"],
        stream=rows["stream"],
        pool=rows["pool"],
        event=rows["event"],
    )


def _with_tokens(recording: Recording, end: int) -> _Rows:
    """Return the requests until the failing one, each with a number of what it does.

    Frees have that of their block's allocation, so that the order of frees shows what is equal.
    """
    requests = recording.requests
    names = (*REQUEST_COLUMNS, "event")
    rows = _Rows({name: getattr(requests, name)[:end].astype(np.int64) for name in names})
    is_ask = np.isin(rows["kind"], (ALLOCATE, FAIL)) & (rows["event"] >= 0)
    stack = np.where(is_ask, recording.trace.stack[np.maximum(rows["event"], 0)], 0)
    token = 2 * stack.astype(np.int64) + (rows["stream"] != 0)
    of_block = np.zeros(int(rows["block"].max(initial=0)) + 1, np.int64)
    is_made = rows["kind"] == ALLOCATE
    of_block[rows["block"][is_made]] = token[is_made]
    kind, block = rows["kind"].copy(), rows["block"].copy()
    kind[-1], block[-1] = ALLOCATE, requests.block.max(initial=-1) + 1  # the one that failed
    is_given = np.isin(kind, (FREE, LEAVE))
    token[is_given] = of_block[rows["block"][is_given]]
    return rows.having(kind=kind, block=block, stack=stack.astype(np.int64), token=8 * token + kind)


def _nearest(units: list[_Rows], chosen: range) -> tuple[int, tuple[Column, Column]] | None:
    """Return the step that has requested most nearly what the last one has, and their pairs.

    The pairs are rows of the same allocations, the last of that which failed.
    """
    last = units[-1]
    found = []
    for step in reversed(chosen):
        pairs = _pairs(units[step], last, to_end=True)
        if pairs is None:
            continue
        share = len(pairs[1]) / len(last.asks)
        if share < _LEAST_MATCHED:
            continue
        ratio = last["size_bytes"][pairs[1]] / np.maximum(units[step]["size_bytes"][pairs[0]], 1)
        change = float(np.abs(np.log(np.maximum(ratio, 1e-9))).mean())
        found.append((share < 0.9, round(change, 2), -step, pairs))
    if not found:
        return None
    _, _, step, pairs = min(found, key=lambda each: each[:3])
    return -step, pairs


def _turns(rows: _Rows, begin: int) -> list[_Rows] | None:
    """Return the turns of the loop that the failing request is in, from each such request on."""
    last, token = len(rows) - 1, rows["token"]
    earlier = np.flatnonzero(token[begin:last] == token[last])[::-1][:_TURNS_BACK] + begin
    for before in earlier.tolist():
        period = last - before
        first = before - period
        if first < begin:
            return None
        if np.array_equal(token[first:before], token[before:last]):
            edges = [first, before, last, last + 1]
            while (first := edges[0] - period) >= begin and np.array_equal(
                token[first : edges[0]], token[before:last]
            ):
                edges.insert(0, first)
            return [rows.chosen(slice(*pair)) for pair in pairwise(edges)]
    return None


def _pairs(one: _Rows, two: _Rows, *, to_end: bool = False) -> tuple[Column, Column] | None:
    """Return the rows of the same allocations of two steps, in their order.

    Args:
        to_end: Whether the last request of `two` has to be among them.
    """
    i, j = _aligned(one["token"], two["token"])
    is_ask = one["kind"][i] == ALLOCATE
    i, j = i[is_ask], j[is_ask]
    end = len(two) - 1
    if to_end and (not len(j) or j[-1] != end):
        after = int(i[-1]) + 1 if len(i) else 0
        next_one = np.flatnonzero(one["token"][after:] == two["token"][end])
        if not len(next_one):
            return None
        i, j = np.append(i, after + next_one[0]), np.append(j, end)
    return i, j


def _aligned(first: Column, second: Column) -> tuple[Column, Column]:
    """Return the elements of two sequences that are the same, in their order.

    After a difference, elements are left out until the next `_AGREE` are the same.
    """
    runs, other_runs = _runs(first, -1), _runs(second, -2)
    pairs = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    i = j = 0
    for _ in range(_MOST_DIFFERENCES):
        length = min(len(first) - i, len(second) - j)
        differs = first[i : i + length] != second[j : j + length]
        same = int(differs.argmax()) if differs.any() else length
        pairs.append((np.arange(i, i + same), np.arange(j, j + same)))
        i, j = i + same, j + same
        ahead = runs[i : i + _LOOK], other_runs[j : j + _LOOK]
        _, x, y = np.intersect1d(*ahead, return_indices=True)
        if not len(x):  # also at the end
            break
        nearest = int((x + y).argmin())
        i, j = i + int(x[nearest]), j + int(y[nearest])
    in_first, in_second = zip(*pairs, strict=True)
    return np.concatenate(in_first), np.concatenate(in_second)


def _runs(elements: Column, end: int) -> Column:
    """Return a hash of each element with those behind it: int64; `end` follows the last one."""
    padded = np.append(elements, np.full(_AGREE, end))
    found = np.zeros(len(elements), np.int64)
    for place in range(_AGREE):
        found = found * _MIX + padded[place : place + len(elements)]
    return found


def _continued(
    rows: _Rows,
    units: list[_Rows],
    base: int,
    pairs: tuple[Column, Column],
    requests: Requests,
    name: str,
    begin: int,
    repeats: Column,
) -> Continued:
    """Return the requests with the rest of the step, taken from the step `units[base]`.

    Args:
        rows: All requests.
        pairs: The rows of the same allocations in that step and in the last one.
        begin: Where the last step begins among all requests.
        repeats: Which of its requests are in its unit, and not made once.
    """
    last, like = units[-1], units[base]
    fresh = int(last["block"][-1])
    # The event of a failed request has the rounded size.
    asked, before = int(last["size_bytes"][-1]), int(like["size_bytes"][pairs[0][-1]])
    sizes = last["size_bytes"].copy()
    sizes[-1] = before if -(-before // 512) * 512 == asked else asked
    last = last.having(size_bytes=sizes)
    # The blocks of this step, and of those before it, that stand for those of the other step.
    lookup = np.full(fresh + 1, -1)
    for back in range(1, 4):
        if base - back < 0:
            break
        there, here = units[base - back], units[-1 - back]
        i, j = _pairs(there, here) or pairs
        lookup[there["block"][i]] = here["block"][j]
    lookup[like["block"][pairs[0]]] = last["block"][pairs[1]]
    at = int(pairs[0][-1])
    rest = like.chosen(slice(at + 1, None))
    new = rest["block"][rest.asks]
    lookup[new] = fresh + 1 + np.arange(len(new))
    grown = rest["size_bytes"].copy()
    grown[rest.asks] = _sizes(units, base, pairs, last, rest.asks + at + 1)
    small = rest["size_bytes"]
    block = np.where(rest["block"] >= 0, lookup[rest["block"]], -1)
    rest = rest.having(block=block, size_bytes=grown, event=np.full(len(rest), -1))
    # The frees of what has no counterpart are left out.
    is_known = (block >= 0) | ~np.isin(rest["kind"], (ALLOCATE, FREE, LEAVE))
    whole = _joined(last, rest.chosen(is_known))
    further = _further(units[-2], whole, fresh + 1 + len(new), len(requests), grows=not name)
    all_rows = _joined(
        rows.chosen(slice(0, len(rows) - 1)), whole.chosen(slice(len(last) - 1, None)), *further
    )
    ends = np.cumsum([len(rows) - 1 + len(whole) - len(last) + 1, *map(len, further)])
    # The sizes of the other step, for all rows of this one.
    smaller = all_rows["size_bytes"][begin : int(ends[0])].copy()
    smaller[np.flatnonzero(repeats)[pairs[1]]] = like["size_bytes"][pairs[0]]
    smaller[len(rows) - begin :] = small[is_known]
    return Continued(
        requests=_recorded(requests, all_rows),
        stack=all_rows["stack"],
        failing=len(rows) - 1,
        ends=ends.tolist(),
        like=name,
        begin=begin,
        smaller=smaller,
    )


def _sizes(
    units: list[_Rows], base: int, pairs: tuple[Column, Column], last: _Rows, rows: Column
) -> Column:
    """Return the sizes that the other step's allocations would have in this one.

    Of two steps that differ, a law follows: the growth with the largest request that grows. Of one,
    the sizes do that both steps have so far.
    """
    like = units[base]
    was, now = like["size_bytes"][pairs[0]], last["size_bytes"][pairs[1]]
    size = like["size_bytes"][rows]
    if np.array_equal(was, now):
        return size
    largest = int(np.where(was != now, now, 0).argmax())
    length, other_length = int(now[largest]), int(was[largest])
    known: list[tuple[int, Column]] = []
    for step in range(max(0, base - 4), len(units) - 1):
        if step == base:
            continue
        found = _pairs(like, units[step])
        sizes = np.full(len(like), -1)
        if found is not None:
            sizes[found[0]] = units[step]["size_bytes"][found[1]]
        there = int(sizes[pairs[0][largest]])
        if there > 0 and there != other_length:
            known.append((there, sizes[rows]))
    known.sort(key=lambda each: -abs(each[0] - other_length))
    by_size: dict[int, set[int]] = {}
    for one, two in zip(was.tolist(), now.tolist(), strict=True):
        by_size.setdefault(one, set()).add(two)
    grown = size * (length / other_length)
    for n, own in enumerate(size.tolist()):
        others = [(there, int(sizes[n])) for there, sizes in known if sizes[n] >= 0]
        likely = by_size.get(own, set())
        if others and all(other == own for _, other in others):
            grown[n] = own
        elif len(likely) == 1:
            grown[n] = min(likely)
        elif others:
            there, other = others[0]
            grown[n] = own + (own - other) * (length - other_length) / (other_length - there)
        elif likely:
            grown[n] = max(likely)
    rounded: Column = np.maximum(np.rint(grown), 1).astype(np.int64)
    return rounded


def _further(before: _Rows, whole: _Rows, fresh: int, rows: int, *, grows: bool) -> list[_Rows]:
    """Return further steps that request what this one does: what it keeps, they keep too.

    Args:
        before: The step before it, whose blocks it frees.
        whole: This step.
        fresh: The first block that is none of the requests yet.
        rows: The number of recorded requests.
        grows: Whether each requests as much more than the one before as this one does.
    """
    found = _pairs(before, whole)
    more = np.zeros(len(whole), np.int64)
    if grows and found is not None:
        more[found[1]] = whole["size_bytes"][found[1]] - before["size_bytes"][found[0]]
    is_own = np.zeros(fresh, bool)
    is_own[whole["block"][whole.asks]] = True
    number = np.full(fresh, -1)  # of each block of this step, in each further one
    own = np.flatnonzero(is_own)
    number[own] = np.arange(len(own))
    of_before = np.full(fresh, -1)
    if found is not None:
        of_before[before["block"][found[0]]] = whole["block"][found[1]]
    block = whole["block"]
    earlier = np.where(is_own[np.maximum(block, 0)], -1, of_before[np.maximum(block, 0)])
    is_copied = (block < 0) | is_own[np.maximum(block, 0)] | (earlier >= 0)
    is_copied &= whole["kind"] != FAIL
    copied = whole.chosen(is_copied)
    block, earlier, more = block[is_copied], earlier[is_copied], more[is_copied]
    made: list[_Rows] = []
    event = np.full(len(copied), -1)
    most = min(_MOST_FURTHER, _MOST_ROWS // max(len(copied), 1))
    for n in range(most):
        new = fresh + n * len(own) + number[np.maximum(block, 0)]
        of_last = earlier if n == 0 else fresh + (n - 1) * len(own) + number[np.maximum(earlier, 0)]
        numbers = np.where(block < 0, -1, np.where(earlier >= 0, of_last, new))
        sizes = np.maximum(copied["size_bytes"] + (n + 1) * more, 0)
        made.append(copied.having(block=numbers, size_bytes=sizes, event=event))
    return made
