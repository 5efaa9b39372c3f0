"""How requests grow with the sizes of a program's data: a polynomial through what was recorded."""

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np

from pytracer.reading.snapshot import Column

MISSING = -1  # the size of a request that a recording does not have

_EQUAL_BYTES = 0.25  # sizes are whole bytes, and the arithmetic has 53 bits

_SEARCH = ((1, 0.0), (2, 0.0), (1, 0.9), (3, 0.0), (1, np.inf))
"""What is tried in turn: the number of terms, and their largest relative error at the points.

Three terms pass through any three points, and are far off elsewhere. So a single term that is near
comes before them: the tokens of an expert and padded rows are nearly a product.
"""


class Growth:
    """The growth of each request.

    Args:
        points: float64 of shape (recordings, variables).
        sizes: int64 of shape (recordings, requests): the requested bytes, or `MISSING`.

    Attributes:
        is_near: bool, which requests do not have the bytes of their polynomial at each point.
    """

    def __init__(self, points: Column, sizes: Column) -> None:
        # The powers of the variables in each term, low ones first; the first is constant. Volumes
        # have the third power of their side, times the batch.
        variables = points.shape[1]
        most = 3 if variables <= 2 else 2  # of three variables there are many products
        terms = product(range(most + 1), repeat=variables)
        chosen = [each for each in terms if sum(each) <= most + 1]
        self._powers = np.array(sorted(chosen, key=lambda each: (sum(each), max(each, default=0))))
        # Layers and steps repeat: of 70,000 requests, some hundred have to be fitted.
        distinct, place = np.unique(sizes, axis=1, return_inverse=True)
        self._place = place.ravel()
        self._coefficients = np.zeros((len(self._powers), distinct.shape[1]))
        is_near = np.zeros(distinct.shape[1], bool)
        seen, pattern = np.unique(distinct != MISSING, axis=1, return_inverse=True)
        for number, at in enumerate(seen.T):
            rows = np.flatnonzero(pattern.ravel() == number)
            is_near[rows] = self._fit(points[at], distinct[np.ix_(at, rows)], rows)
        self.is_near: Column = is_near[self._place]

    def at(self, point: Column) -> Column:
        """Return the bytes of each request at the values of the variables: float64."""
        values = np.prod(point**self._powers, axis=1)
        found: Column = (values @ self._coefficients)[self._place]
        return found

    def _fit(self, points: Column, sizes: Column, rows: Column) -> Column:
        """Find the polynomials of requests with the same points; return which are only near."""
        values = np.prod(points[:, None] ** self._powers, axis=2)  # (points, terms)
        best = np.full(len(rows), np.inf)  # the error of each request
        for count, most in _SEARCH:
            left = np.flatnonzero(best == np.inf)
            polynomials = _polynomials(self._powers, points, count) if len(left) else ()
            for terms in polynomials:
                scale = values[:, terms].max(axis=0)
                columns = values[:, terms] / scale
                if np.linalg.matrix_rank(columns, tol=1e-9) < count:
                    continue
                found, *_ = np.linalg.lstsq(columns, sizes[:, left], rcond=None)
                off = np.abs(columns @ found - sizes[:, left])
                error = np.where(off < _EQUAL_BYTES, 0, off / sizes[:, left]).max(axis=0)
                # What shrinks with its last term would be negative somewhere.
                is_best = (error <= most) & (error < best[left]) & (found[-1] >= 0)
                chosen = left[is_best]
                best[chosen] = error[is_best]
                self._coefficients[:, rows[chosen]] = 0
                self._coefficients[np.ix_(terms, rows[chosen])] = (found.T / scale).T[:, is_best]
        return best > 0


def _polynomials(powers: Column, points: Column, count: int) -> Iterator[list[int]]:
    """Yield the polynomials of `count` terms, low ones first.

    A variable that is the same at all points may have any law. It has no square, and terms of the
    others come first that grow with it too, as most data do.
    """
    is_constant = (points == points[0]).all(axis=0)

    def order(chosen: tuple[int, ...]) -> tuple[int, int]:
        some = powers[[*chosen]]
        grows = some[:, ~is_constant].any(axis=1)
        return int((some[grows][:, is_constant] == 0).sum()), int(some.sum())

    terms = [i for i, each in enumerate(powers) if (each[is_constant] < 2).all()]
    yield from map(list, sorted(combinations(terms, count), key=order))
