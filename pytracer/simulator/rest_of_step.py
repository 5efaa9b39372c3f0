"""What a program would have requested after the allocation that failed, as an earlier step did.

The simulator continues with these requests, so that an answer holds for the rest of a step.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

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

_MOST_STEPS_BACK = 5  # how many steps are compared, the last ones

_AGREE, _LOOK, _MOST_DIFFERENCES = 6, 4_000, 100
"""After a difference, so many requests in a row are the same again, at most so many further on; and
after so many differences, the rest is different."""

_MIX = 1_000_003  # a prime number, by which the hashes of runs of requests are made

_MOST_TURNS_BACK = 200  # how many earlier requests of a line are compared, to find a loop

_MOST_POWER = 3  # volumes have the third power of their side

_MOST_FURTHER, _MOST_ROWS = 32, 20_000
"""The most further steps that are simulated, and the most requests that they add."""

_MOST_BYTES = 2.0**50

_ONCE = ("optimizer_state", "workspace")
_OWNED = (*_ONCE, "parameter", "gradient", "buffer")

_COLUMNS = (*REQUEST_COLUMNS, "event", "stack", "token", "small_bytes")


@dataclass(frozen=True, eq=False)
class Continued:
    """The requests of a recording, of the rest of its last step, and of further such steps.

    Attributes:
        rows: A structured array with the columns of `Requests`, and for each request its "stack",
            which is 0 for frees, and the "small_bytes" that it would have if the step's input were
            that of `like`.
        failing: The row of the request that failed. It is an `ALLOCATE`.
        ends: The end of its step among the rows, and of each further step; [] if nothing like it
            precedes.
        like: The step that the rest is taken from, as in "step 3"; "" for the turns of a loop; None
            if nothing like it precedes.
    """

    recorded: Requests
    rows: Column
    failing: int
    ends: list[int]
    like: str | None
    is_growth_known: bool = False  # whether a third step shows how requests grow with the input

    def requests(self, part: float = 1.0, end: int | None = None) -> Requests:
        """Return the requests, with an input between that of `like` (0) and that of the step (1).

        This is exact for requests that grow with a power of the input, and too much for sums of
        such powers.
        """
        rows = self.rows[:end]
        small, sizes = (np.maximum(rows[name], 1) for name in ("small_bytes", "size_bytes"))
        columns: dict[str, Any] = {name: rows[name].copy() for name in _COLUMNS[:6]}
        columns |= {"kind": columns["kind"].astype(np.uint8)}
        columns |= {"size_bytes": _whole(small * (sizes / small) ** part)}
        return replace(self.recorded, **columns)

    def after(self, kind: int, **columns: Column) -> "Continued":
        """Return the same after further requests, just before the one that failed."""
        ((name, values),) = columns.items()
        more = np.zeros(len(values), self.rows.dtype)
        more["kind"], more["block"], more[name] = kind, -1, values
        rows = np.concatenate((self.rows[: self.failing], more, self.rows[self.failing :]))
        ends = [end + len(more) for end in self.ends]
        return replace(self, rows=rows, failing=self.failing + len(more), ends=ends)


def continued(data: DeviceData, recording: Recording) -> Continued:
    """Return the requests of a recording that ran out of memory, with the rest of its last step."""
    rows = _rows(recording)
    steps = [step for step, first in data.boundaries if first <= rows["event"][-1]]
    begins = [first for _, first in data.boundaries[: len(steps)]]
    edges = [*np.searchsorted(rows["event"], begins).tolist(), len(rows)]
    blocks, order = blocks_of(data), block_order(recording.history.blocks)
    is_kept = ~np.isin(np.arange(len(order)), rows["block"][rows["kind"] == FREE])
    last = len(steps) - 1
    others = range(max(last - _MOST_STEPS_BACK, 1), last)
    for categories, chosen in ((_ONCE, others), (_OWNED, range(min(last, 1)))):
        # What the optimizer and libraries keep is made once; in the first step, gradients too.
        is_made_once = is_kept & blocks.is_in("category", *categories)[order]
        # The last two are the request that failed, and no block.
        is_repeated = ~np.append(is_made_once, [False, False])[rows["block"]]
        units = [rows[a:b][is_repeated[a:b]] for a, b in pairwise(edges)]
        if (base := _nearest(units, chosen)) is not None:
            return _continued(recording.requests, rows, units, base, f"step {steps[base]}")
    turns = _turns(rows, edges[-2] if steps else 0)
    if turns is None:
        return Continued(recording.requests, rows, len(rows) - 1, [], None)
    return _continued(recording.requests, rows, turns, len(turns) - 2, "")


def _rows(recording: Recording) -> Column:
    """Return the requests until the last that failed, each with a number of what it does.

    Frees have that of their block's allocation, so that the order of frees shows what is equal.
    """
    requests = recording.requests
    end = int(np.flatnonzero(requests.kind == FAIL)[-1]) + 1  # then the program copes with it
    rows = np.zeros(end, [(name, np.int64) for name in _COLUMNS])
    for name in _COLUMNS[:6]:
        rows[name] = getattr(requests, name)[:end]
    is_ask = np.isin(rows["kind"], (ALLOCATE, FAIL)) & (rows["event"] >= 0)
    rows["stack"][is_ask] = recording.trace.stack[rows["event"][is_ask]]
    rows["kind"][-1], rows["block"][-1] = ALLOCATE, requests.block.max(initial=-1) + 1
    of_block = np.zeros(rows["block"][-1] + 1, np.int64)
    token = 2 * rows["stack"] + (rows["stream"] != 0)
    is_made, is_given = rows["kind"] == ALLOCATE, np.isin(rows["kind"], (FREE, LEAVE))
    of_block[rows["block"][is_made]] = token[is_made]
    token[is_given] = of_block[rows["block"][is_given]]
    rows["token"], rows["small_bytes"] = 8 * token + rows["kind"], rows["size_bytes"]
    return rows


def _asked(unit: Column) -> Column:
    found: Column = unit[unit["kind"] == ALLOCATE]
    return found


def _freed(rows: Column) -> Column:
    found: Column = rows["block"][rows["kind"] == FREE]
    return found


def _nearest(units: list[Column], chosen: range) -> int | None:
    """Return the step that has requested most nearly what the last one has; None: none has."""
    found = []
    for step in chosen:
        one, last = _asked(units[step])["size_bytes"], _asked(units[-1])["size_bytes"]
        i, j = _pairs(units[step], units[-1])
        share = len(j) / len(last)
        if share >= _LEAST_MATCHED and j[-1] == len(last) - 1:
            growth = np.log(np.maximum(last[j], 1) / np.maximum(one[i], 1))
            found.append((share < 0.9, round(float(np.abs(growth).mean()), 2), -step))
    return -min(found)[2] if found else None


def _turns(rows: Column, begin: int) -> list[Column] | None:
    """Return the turns of the loop that the failing request is in, from each such request on."""
    last, token = len(rows) - 1, rows["token"]
    if rows["stack"][last] == 0:  # of no known line
        return None
    earlier = np.flatnonzero(token[begin:last] == token[last])[::-1][:_MOST_TURNS_BACK] + begin
    for before in earlier.tolist():
        edges, turn = [before, last, last + 1], token[before:last]
        for first in range(before - len(turn), begin - 1, -len(turn))[:_MOST_STEPS_BACK]:
            if not np.array_equal(token[first : edges[0]], turn):
                break
            edges.insert(0, first)
        if len(edges) > 3:
            return [rows[a:b] for a, b in pairwise(edges)]
    return None


def _pairs(one: Column, two: Column) -> tuple[Column, Column]:
    """Return which allocations of two steps are the same, in their order.

    After a difference, requests are left out until the next `_AGREE` are the same. The last request
    of the second step is also the same as the next like it in the first step.
    """
    first, second = one["token"], two["token"]
    runs, other_runs = _runs(first, -1), _runs(second, -2)
    same_as, end = np.full(len(first), -1), len(second) - 1
    i = j = 0
    for _ in range(_MOST_DIFFERENCES):
        length = min(len(first) - i, len(second) - j)
        differs = first[i : i + length] != second[j : j + length]
        same = int(differs.argmax()) if differs.any() else length
        same_as[i : i + same] = np.arange(j, j + same)
        i, j = i + same, j + same
        ahead = runs[i : i + _LOOK], other_runs[j : j + _LOOK]
        _, x, y = np.intersect1d(*ahead, return_indices=True)
        if not len(x):  # also at the end
            break
        nearest = int((x + y).argmin())
        i, j = i + int(x[nearest]), j + int(y[nearest])
    if same_as.max(initial=-1) < end:
        after = i + int(np.argmax(np.append(first[i:] == second[end], True)))
        same_as[after : after + 1] = end
    is_pair = (one["kind"] == ALLOCATE) & (same_as >= 0)
    asks = [np.cumsum(each["kind"] == ALLOCATE) - 1 for each in (one, two)]
    return asks[0][is_pair], asks[1][same_as[is_pair]]


def _runs(elements: Column, end: int) -> Column:
    """Return a hash of each element with those behind it: int64; `end` follows the last one."""
    padded = np.append(elements, np.full(_AGREE, end))
    found = np.zeros(len(elements), np.int64)
    for place in range(_AGREE):
        found = found * _MIX + padded[place : place + len(elements)]
    return found


def _continued(
    recorded: Requests, rows: Column, units: list[Column], base: int, name: str
) -> Continued:
    """Return the requests with the rest of the last step, taken from the step `units[base]`."""
    last, like = units[-1].copy(), units[base]
    i, j = _pairs(like, last)
    was = _asked(like)[i]
    # The event of a failed request has the rounded size.
    if -(-was["size_bytes"][-1] // 512) * 512 == last["size_bytes"][-1]:
        last["size_bytes"][-1] = was["size_bytes"][-1]
    now = _asked(last)[j]
    is_older = (rows["kind"] == ALLOCATE) & (rows["event"] < like["event"][0])
    is_older &= ~np.isin(rows["block"], _freed(rows))
    rest = like[np.flatnonzero(like["kind"] == ALLOCATE)[i[-1]] + 1 :].copy()
    rest["small_bytes"] = rest["size_bytes"]
    older = rows["size_bytes"][is_older]
    sizes, is_growth_known = _sizes(units, base, i, now["size_bytes"], older)
    rest["size_bytes"][rest["kind"] == ALLOCATE] = sizes[i[-1] + 1 :]
    # The blocks of that step, and of those before it, and those that stand for them.
    theirs, ours = [was["block"]], [now["block"]]
    for back in range(1, min(base, 3) + 1):
        x, y = _pairs(units[base - back], units[-1 - back])
        theirs.insert(0, _asked(units[base - back])["block"][x])
        ours.insert(0, _asked(units[-1 - back])["block"][y])
    fresh = int(last["block"][-1]) + 1
    rest = _repeated(rest, np.concatenate(theirs), np.concatenate(ours), fresh)
    head, whole = rows[:-1].copy(), np.concatenate((last, rest))
    head["small_bytes"][np.searchsorted(head["event"], now["event"][:-1])] = was["size_bytes"][:-1]
    last["small_bytes"][-1] = was["size_bytes"][-1]
    parts, step = [head, last[-1:], rest], whole
    x, y = _pairs(units[-2], whole)
    old, new = _asked(units[-2])[x], _asked(whole)[y]
    more = np.zeros(len(_asked(whole)), np.int64)
    if not name:  # the turns of a loop grow evenly, or are taken not to
        more[y] = np.maximum(new["size_bytes"] - old["size_bytes"], 0)
    for _ in range(min(_MOST_FURTHER, _MOST_ROWS // len(whole))):
        fresh += len(_asked(parts[-1]))
        further = _repeated(step, old["block"], new["block"], fresh)
        further["size_bytes"][further["kind"] == ALLOCATE] += more
        parts.append(further)
        old, new, step = _asked(step), _asked(further), further
    ends = np.cumsum([len(part) for part in parts])[2:].tolist()
    return Continued(recorded, np.concatenate(parts), len(head), ends, name, is_growth_known)


def _repeated(unit: Column, old: Column, new: Column, fresh: int) -> Column:
    """Return requests again: with other blocks than before, from the number `fresh` on.

    Frees of `old` blocks, which the requests do not make, are of the `new` ones; those of blocks
    for which nothing stands are left out.
    """
    made = unit.copy()
    asks, has_block = made["kind"] == ALLOCATE, np.isin(made["kind"], (ALLOCATE, FREE, LEAVE))
    numbers = np.full(max(fresh, int(old.max(initial=0)) + 1), -1)
    numbers[old] = new
    numbers[made["block"][asks]] = fresh + np.arange(np.count_nonzero(asks))
    made["block"][has_block] = numbers[made["block"][has_block]]
    made["event"] = -1
    found: Column = made[~has_block | (made["block"] >= 0)]
    return found


def _sizes(
    units: list[Column], base: int, i: Column, now: Column, older: Column
) -> tuple[Column, bool]:
    """Return the sizes that all allocations of the step `units[base]` would have in the last one.

    And whether a third step differs. Then they grow with the power of the input that the two show.
    Else each is what the same size has become so far, or the size of `older` blocks, which stay, or
    grows as the largest request.

    Args:
        i: Which allocations the last step has requested, too.
        now: The sizes of these there.
    """
    own = _asked(units[base])["size_bytes"]
    was = own[i]
    if np.array_equal(was, now):
        return own, False
    largest = int(np.where(was != now, now, 0).argmax())
    input_now, input_was = int(now[largest]), max(int(was[largest]), 1)
    sizes, place = np.unique(was, return_inverse=True)
    least, most = np.full(len(sizes), now.max()), np.zeros(len(sizes), np.int64)
    np.minimum.at(least, place, now)
    np.maximum.at(most, place, now)
    place = np.minimum(np.searchsorted(sizes, own), len(sizes) - 1)
    is_known = sizes[place] == own
    there, ratio = np.zeros(len(own), np.int64), 1.0
    for step in range(max(0, base - 4), len(units) - 1):
        x, y = _pairs(units[base], units[step])
        found = np.zeros(len(own), np.int64)
        found[x] = _asked(units[step])["size_bytes"][y]
        its_input = int(found[i[largest]]) or input_was  # a step may lack this request
        if abs(np.log(its_input / input_was)) > abs(np.log(ratio)):
            there, ratio = found, its_input / input_was
    power = np.zeros(len(own))
    if ratio != 1:
        power = np.log(np.maximum(there, 1) / np.maximum(own, 1)) / np.log(ratio)
    grown = own * (input_now / input_was) ** np.clip(power, 0, _MOST_POWER)
    found = np.select(
        [own == there, is_known & (least == most)[place], there > 0, is_known, np.isin(own, older)],
        [own, most[place], grown, most[place], own],
        own * (input_now / input_was),
    )
    return _whole(found), ratio != 1


def _whole(sizes: Column) -> Column:
    """Return sizes as whole numbers that an allocator can add: a file may have any."""
    found: Column = np.rint(np.clip(sizes, 1, _MOST_BYTES)).astype(np.int64)
    return found
