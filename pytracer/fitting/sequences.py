"""Which elements of two sequences are the same, in order, over insertions and replacements."""

import numpy as np

from pytracer.reading.snapshot import Column

_AGREE = 6  # after a difference, this many requests in a row have to be the same again

_LOOK = 20_000  # how far ahead the same requests are searched

_BOTH = 64  # how many requests, of both recordings together, may be others at one place

_MOST_PAIRS = 4_000_000  # in runs of one stack with more pairs, sizes are not compared

_GIVE_UP = 100  # after so many differences without an end, the rest is different


def aligned(first: Column, second: Column) -> tuple[Column, Column]:
    """Return the elements of two sequences that are the same, in their order.

    From a difference on, elements are skipped in one or both until `_AGREE` are the same.
    """
    pairs = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    i = j = failures = 0
    texts = first.tobytes(), second.tobytes()
    while failures < _GIVE_UP:
        same = _same_run(first[i:], second[j:])
        pairs.append((np.arange(i, i + same), np.arange(j, j + same)))
        i, j = i + same, j + same
        if i == len(first) or j == len(second):
            break
        skipped = _skip(texts, first.itemsize, i, j)
        failures += skipped is None
        i, j = (i + 1, j + 1) if skipped is None else (i + skipped[0], j + skipped[1])
    in_first, in_second = zip(*pairs, strict=True)
    return np.concatenate(in_first), np.concatenate(in_second)


def by_growth(
    first: Column, second: Column, in_first: Column, in_second: Column, sizes: tuple[Column, Column]
) -> tuple[Column, Column]:
    """Return the pairs of `aligned`, in which runs of unequal length are matched by their growth.

    A line may request more where the data are larger: a workspace for each row, or the buffers of
    a reduction. The others are those that grow as requests of other lines do, or do not grow.

    Args:
        first, second, in_first, in_second: The arguments and the results of `aligned`.
        sizes: The bytes of both sequences.
    """
    if len(first) == len(second) == len(in_first):
        return in_first, in_second
    bounds, run = _runs(first, in_first)
    other_bounds, other_run = _runs(second, in_second)
    both = np.column_stack((run, other_run))
    is_new = np.diff(both, axis=0, prepend=-1).any(axis=1)
    run, other_run = both[is_new].T
    length, other_length = np.diff(bounds)[run], np.diff(other_bounds)[other_run]
    is_other = (length != other_length) & (length * other_length <= _MOST_PAIRS)
    for each in (run, other_run):  # what is in several parts stays as it is
        is_other &= np.bincount(each)[each] == 1
    pairs = np.column_stack((in_first, in_second))[~is_other[np.cumsum(is_new) - 1]]
    ratios = np.append(1.0, sizes[1][pairs[:, 1]] / sizes[0][pairs[:, 0]])
    found = [pairs]
    for one, two in zip(run[is_other], other_run[is_other], strict=True):
        i, j = bounds[one], other_bounds[two]
        ratio = sizes[1][j : other_bounds[two + 1]] / sizes[0][i : bounds[one + 1], None]
        same = _longest_common(np.isin(ratio, ratios))
        found.append(np.array(same, np.int64).reshape(-1, 2) + (i, j))
    pairs = np.concatenate(found)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    return pairs[:, 0], pairs[:, 1]


def _runs(keys: Column, rows: Column) -> tuple[Column, Column]:
    """Return where runs of equal keys begin, at last the end, and the run of each row."""
    bounds = np.append(np.flatnonzero(np.diff(keys, prepend=-1)), len(keys))
    return bounds, np.searchsorted(bounds, rows, "right") - 1


def _longest_common(are_same: Column) -> list[tuple[int, int]]:
    """Return the most pairs of elements of two sequences that are the same, in their order.

    Where as many of both are between two pairs, these are pairs too.

    Args:
        are_same: bool of shape (elements, other elements).
    """
    counts = np.zeros(np.add(are_same.shape, 1), np.int32)
    for i, row in enumerate(are_same):
        best = np.maximum(counts[i, 1:], counts[i, :-1] + row)
        counts[i + 1, 1:] = np.maximum.accumulate(best)
    end = i, j = are_same.shape
    pairs = [end]
    while i and j:
        if counts[i, j] == counts[i - 1, j]:
            i -= 1
        elif counts[i, j] == counts[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    found: list[tuple[int, int]] = []
    begin = 0, 0
    for i, j in reversed(pairs):
        if i - begin[0] == j - begin[1]:
            found += zip(range(begin[0], i), range(begin[1], j), strict=True)
        if (i, j) != end:
            found.append((i, j))
        begin = i + 1, j + 1
    return found


def _same_run(first: Column, second: Column) -> int:
    """Return how many elements are the same from the beginning."""
    length = min(len(first), len(second))
    for count in (min(64, length), length):
        differs = first[:count] != second[:count]
        if differs.any():
            return int(differs.argmax())
    return length


def _skip(texts: tuple[bytes, bytes], width: int, i: int, j: int) -> tuple[int, int] | None:
    """Return how many elements of each to skip until both are the same again; None: unknown.

    Args:
        texts: The bytes of both sequences, `width` for each element.
        i, j: Where they differ.
    """
    first, second = texts
    found = []
    if (x := _find(first, i, second[j * width : (j + _AGREE) * width], width)) is not None:
        found.append((x, 0))
    if (y := _find(second, j, first[i * width : (i + _AGREE) * width], width)) is not None:
        found.append((0, y))
    nearest = min((sum(each) for each in found), default=_BOTH)
    for total in range(2, min(nearest, _BOTH)):
        for x in range(1, total):
            here, there = (i + x) * width, (j + total - x) * width
            wanted = first[here : here + _AGREE * width]
            if wanted and wanted == second[there : there + _AGREE * width]:
                return x, total - x
    return min(found, key=sum, default=None)


def _find(text: bytes, place: int, pattern: bytes, width: int) -> int | None:
    """Return how far behind a place a pattern begins, in elements; None: it is not near."""
    begin, end = place * width, (place + _LOOK) * width
    found = text.find(pattern, begin, end) if pattern else -1
    while found >= 0 and found % width:
        found = text.find(pattern, found + 1, end)
    return None if found < 0 else (found - begin) // width
