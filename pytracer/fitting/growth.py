"""How requests grow with the sizes of a program's data: polynomials through all recordings."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from pytracer.reading.snapshot import Column

MISSING = -1  # the size of a request that a recording does not have

_MOST_POWER, _MOST_DEGREE = 2, 3
"""Attention without flash kernels needs the degree 3: batch times the square of the length."""

_MOST_TERMS = 3

_MULTIPLES = (8, 16, 32, 64, 128)
"""To these multiples kernels round a length; tried where a further recording can show it."""

MOST_MULTIPLE = _MULTIPLES[-1]

_LEAST_ROUNDED = 32  # smaller sizes are batches, which kernels do not round

_EQUAL_BYTES = 0.25  # sizes are whole bytes, and the arithmetic has 53 bits


@dataclass(frozen=True)
class Term:
    """A product of powers of the variables."""

    powers: tuple[int, ...]  # the power of each variable
    rounded: int | None = None  # the index of the variable that is rounded up first; None for none
    multiple: int = 1  # to a multiple of this

    def at(self, points: Column) -> Column:
        """Return the term's values at points, of shape (points, variables)."""
        if self.rounded is not None:
            points = points.copy()
            column = points[:, self.rounded]
            points[:, self.rounded] = np.ceil(column / self.multiple) * self.multiple
        found: Column = np.prod(points ** np.array(self.powers), axis=1)
        return found


@dataclass(frozen=True, eq=False)
class _Part:
    """The sizes of one polynomial: their rows, and the coefficients, (terms, rows)."""

    terms: tuple[Term, ...]
    rows: Column
    coefficients: Column

    def of(self, chosen: Column) -> "_Part":
        return _Part(self.terms, self.rows[chosen], self.coefficients[:, chosen])

    def sizes_at(self, point: Column) -> Column:
        values = np.array([term.at(point[None])[0] for term in self.terms])
        found: Column = values @ self.coefficients
        return found


class Growth:
    """The polynomial of each request: the lowest one that passes through all recordings.

    Attributes:
        unchecked: The rows whose polynomial is one of several that pass through all recordings.
        unfitted: The rows that no polynomial describes.
    """

    def __init__(self, points: Column, sizes: Column) -> None:
        """Find the polynomials.

        Args:
            points: float64 of shape (recordings, variables).
            sizes: The bytes of each request in each recording, or `MISSING`: int64 of shape
                (recordings, requests). Each request is in at least one recording.
        """
        sizes, self._place = _distinct(sizes)
        self._count = sizes.shape[1]
        self._parts: list[_Part] = []
        self._others: list[_Part] = []
        unfitted = [np.zeros(0, np.int64)]
        present = sizes != MISSING
        pattern = (1 << np.arange(len(points))) @ present
        for each in np.unique(pattern).tolist():
            rows = np.flatnonzero(pattern == each)
            found = present[:, rows[0]]
            unfitted.append(self._find(points[found], sizes[found], rows))
        others = [np.zeros(0, np.int64), *(part.rows for part in self._others)]
        self.unfitted, self.unchecked = (
            np.flatnonzero(np.isin(self._place, np.concatenate(columns)))
            for columns in (unfitted, others)
        )

    def _find(self, points: Column, sizes: Column, left: Column) -> Column:
        """Find the polynomials of the rows `left`; return the rows that have none."""
        for count in range(1, min(len(points), _MOST_TERMS) + 1):
            is_sure = np.zeros(len(left), bool)
            possible: list[tuple[_Part, Column]] = []
            if count == 2:
                capped = np.flatnonzero(_are_capped(points, sizes[:, left]))
                constant = (Term((0,) * points.shape[1]),)
                most = sizes[:, left[capped]].max(axis=0, keepdims=True)
                possible.append((_Part(constant, left[capped], most), capped))
            for terms in _polynomials(points, count):
                tried = np.flatnonzero(~is_sure)
                if len(tried) == 0:
                    break
                coefficients, fits = _fitted(terms, points, sizes[:, left[tried]])
                fitting, coefficients = tried[fits], coefficients[:, fits]
                if len(fitting):
                    part = _Part(terms, left[fitting], coefficients)
                    sure = _are_sure(terms, points, coefficients)
                    possible.append((part, fitting))
                    is_sure[fitting[sure]] = True
                    self._parts.append(part.of(sure))
            is_found = is_sure.copy()
            for part, fitting in possible:
                for parts, chosen in (
                    (self._parts, ~is_found[fitting]),
                    (self._others, is_found[fitting] & ~is_sure[fitting]),
                ):
                    if chosen.any():
                        parts.append(part.of(chosen))
                is_found[fitting] = True
            left = left[~is_found]
        return left

    def sizes_at(self, point: Column, which: int) -> Column:
        """Return the bytes of each request: float64; 0 for those of `unfitted`.

        Args:
            point: The value of each variable.
            which: -1 and 1: the least and the most that any of several polynomials gives; 0: that
                of the lowest one.
        """
        found = np.zeros(self._count)
        for part in self._parts:
            found[part.rows] = part.sizes_at(point)
        bound = np.minimum if which < 0 else np.maximum
        for part in self._others if which else ():
            found[part.rows] = bound(found[part.rows], part.sizes_at(point))
        every: Column = found[self._place]
        return every


def _distinct(sizes: Column) -> tuple[Column, Column]:
    """Return the columns that differ, and which of them each column is.

    Layers and steps repeat: of 70,000 requests, some hundred have to be fitted.
    """
    order = np.lexsort(sizes)
    sizes = sizes[:, order]
    is_new = np.append(True, (np.diff(sizes) != 0).any(axis=0))[: len(order)]
    place = np.empty_like(order)
    place[order] = np.cumsum(is_new) - 1
    return sizes[:, is_new], place


def growth_terms(variables: int) -> list[Term]:
    """Return the products of powers of the variables, low ones first; the first is constant."""
    powers = [
        each
        for each in product(range(_MOST_POWER + 1), repeat=variables)
        if sum(each) <= _MOST_DEGREE
    ]
    powers.sort(key=lambda each: (sum(each), max(each, default=0)))
    return [*map(Term, powers)]


def _polynomials(points: Column, count: int) -> Iterator[tuple[Term, ...]]:
    """Yield the polynomials of `count` terms, low ones first.

    A variable that is the same at all points may have any law. It has no square, and terms of the
    others come first that grow with it too, as most data do.
    """
    is_constant = (points == points[0]).all(axis=0)
    constant = np.flatnonzero(is_constant)

    def order(some: tuple[Term, ...]) -> tuple[int, int]:
        powers = np.array([term.powers for term in some])
        grows = powers[:, ~is_constant].any(axis=1)
        return int((powers[grows][:, is_constant] == 0).sum()), int(powers.sum())

    terms = [
        term
        for term in growth_terms(points.shape[1])
        if all(term.powers[variable] < _MOST_POWER for variable in constant)
    ]
    for each in sorted(combinations(terms, count), key=order):
        if _rank(each, points) == count:
            yield each
    if count == 1 and len(points) > 2:
        for variable, multiple in product(range(points.shape[1]), _MULTIPLES):
            for term in terms:
                if term.powers[variable]:
                    yield (Term(term.powers, variable, multiple),)


def are_alike_rounded(points: Column) -> Column:
    """Return which variables a kernel may round up to one size at all points: bool.

    Attention with a length of 64 or 128 has the buffers of 128.
    """
    rounded = np.ceil(points / MOST_MULTIPLE)
    found: Column = (rounded == rounded[0]).all(axis=0) & (points.min(axis=0) >= _LEAST_ROUNDED)
    return found


def _are_capped(points: Column, sizes: Column) -> Column:
    """Return which requests grow up to a size that the two largest points have: bool.

    The buffers of reductions have a largest size.
    """
    order = np.argsort(np.prod(points, axis=1), kind="stable")
    more = np.diff(sizes[order], axis=0)
    found: Column = (more >= 0).all(axis=0) & (more[-1] == 0)
    return found


def _scaled(terms: tuple[Term, ...], points: Column) -> tuple[Column, Column]:
    """Return the terms at the points, of shape (points, terms), divided by their largest values."""
    columns = np.column_stack([term.at(points) for term in terms])
    scale = columns.max(axis=0)
    return columns / scale, scale


def _rank(terms: tuple[Term, ...], points: Column) -> int:
    return int(np.linalg.matrix_rank(_scaled(terms, points)[0], tol=1e-9))


def _fitted(terms: tuple[Term, ...], points: Column, sizes: Column) -> tuple[Column, Column]:
    """Return the coefficients, and which requests the polynomial passes through."""
    columns, scale = _scaled(terms, points)
    found, *_ = np.linalg.lstsq(columns, sizes.astype(float), rcond=None)
    fits = np.all(np.abs(columns @ found - sizes) < _EQUAL_BYTES, axis=0)
    return found / scale[:, None], fits


def _are_sure(terms: tuple[Term, ...], points: Column, coefficients: Column) -> Column:
    """Return for which requests no other polynomial has to be considered: bool.

    One term is sure that passes through points which differ in each variable, unless a variable
    that it lacks may be rounded up to one size. Two are if they are one with a whole number added
    to a variable or its square, as in batch * (length - 1).
    """
    nothing = np.zeros(coefficients.shape[1], bool)
    if len(points) < 2 or (points == points[0]).all(axis=0).any() or len(terms) > 2:
        return nothing
    if len(terms) == 1:
        (term,), lacks = terms, np.array(terms[0].powers) == 0
        if term.rounded is not None:
            lacks[term.rounded] = True
        is_sure = lacks.all() or not (lacks & are_alike_rounded(points)).any()
        return ~nothing if is_sure else nothing
    more = np.array(terms[1].powers) - terms[0].powers
    variable = int(np.argmax(more))
    if np.count_nonzero(more) != 1 or more[variable] < 0:
        return nothing
    added = coefficients[0] / np.where(coefficients[1] == 0, 1, coefficients[1])
    whole = np.rint(added)
    most = points[:, variable].min() ** more[variable]
    found: Column = (np.abs(added - whole) < 1e-6) & (np.abs(whole) <= most)
    return found
