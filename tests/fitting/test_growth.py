"""The lowest polynomial through all recordings is found."""

from collections.abc import Callable

import numpy as np
import pytest

from pytracer.fitting.growth import MISSING, Growth

Law = Callable[[int, int], int]

THREE = [(2, 512), (4, 512), (4, 768)]

LAWS: dict[str, Law] = {
    "constant": lambda batch, length: 4096,
    "linear and a constant": lambda batch, length: 512 * batch + 1024,
    "attention": lambda batch, length: 16 * batch * length**2,
    "a volume": lambda batch, length: 16 * batch * length**3,
}


def grown(points: list[tuple[int, ...]], sizes: list[list[int]]) -> Growth:
    return Growth(np.array(points, float), np.array(sizes))


def at(found: Growth, *point: int) -> list[int]:
    return found.at(np.array(point, float)).round().astype(int).tolist()


@pytest.mark.parametrize("name", LAWS)
def test_three_recordings_show_the_law(name: str) -> None:
    found = grown(THREE, [[LAWS[name](*point)] for point in THREE])
    assert not found.is_near.any()
    for point in [(17, 4096), (3, 640), (256, 32)]:
        assert at(found, *point) == [LAWS[name](*point)]


def test_two_recordings_show_straight_lines_and_powers() -> None:
    found = grown([(2,), (4,)], [[100, 200, 140], [200, 800, 260]])
    assert at(found, 16) == [800, 12800, 980]


def test_requests_that_some_recordings_lack() -> None:
    # GIVEN a request of the largest recording, AND one of the two with the larger batch
    found = grown(THREE, [[MISSING, MISSING], [MISSING, 512], [4096, 768]])
    # THEN the first stays, AND the second grows with the batch too, as most data do
    assert at(found, 8, 1024) == [4096, 2048]


def test_sizes_that_depend_on_values() -> None:
    # GIVEN tokens that are nearly a product, AND equal sizes with other requests
    found = grown(THREE, [[1010, 7], [2100, 7], [2900, 7]])
    assert found.is_near.tolist() == [True, False]
    # THEN no plane through three points is taken
    assert at(found, 16, 4096)[0] == pytest.approx(2900 / 768 / 4 * 16 * 4096, rel=0.1)
    assert grown([(4,), (4,)], [[100], [108]]).is_near.tolist() == [True]


def test_what_shrinks_is_no_growth() -> None:
    found = grown([(2,), (4,)], [[300], [200]])
    assert at(found, 64)[0] > 0
