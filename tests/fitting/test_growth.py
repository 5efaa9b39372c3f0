"""The lowest polynomial through all recordings is found, and what it cannot show is known."""

from collections.abc import Callable

import numpy as np
import pytest

from pytracer.fitting import growth
from pytracer.fitting.growth import MISSING, Growth

Law = Callable[[int, int], int]

LAWS: dict[str, Law] = {
    "constant": lambda batch, length: 4096,
    "linear": lambda batch, length: 512 * batch,
    "linear and a constant": lambda batch, length: 512 * batch + 1024,
    "bilinear": lambda batch, length: 64 * batch * length,
    "without the last": lambda batch, length: 4000 * batch * (length - 1),
    "with one more": lambda batch, length: 4000 * batch * (length + 7),
    "a mask of pixels": lambda batch, length: 64 * batch * (length**2 + 64),
    "quadratic": lambda batch, length: 4 * length**2,
    "attention": lambda batch, length: 16 * batch * length**2,
}


def grown(points: list[tuple[int, int]], *laws: Law) -> np.ndarray:
    return np.array([[law(*point) for law in laws] for point in points])


@pytest.mark.parametrize("name", LAWS)
def test_three_recordings_show_the_law(name: str) -> None:
    # GIVEN three recordings, of which each changes one variable
    points = [(2, 512), (4, 512), (4, 768)]
    found = Growth(np.array(points, float), grown(points, LAWS[name]))
    # THEN the bytes at other sizes are exact, and confirmed
    assert len(found.unchecked) == len(found.unfitted) == 0
    for point in [(17, 4096), (3, 640), (256, 32)]:
        assert round(found.sizes_at(np.array(point, float), 0)[0]) == LAWS[name](*point)


@pytest.mark.parametrize("multiple", [8, 32, 128])
def test_lengths_are_rounded_up(multiple: int) -> None:
    # GIVEN a kernel that rounds the length up to a multiple, and recordings that show it
    def law(batch: int, length: int) -> int:
        return 48 * batch * (-(-length // multiple) * multiple)

    points = [(2, 500), (4, 500), (4, 777), (4, 1025)]
    found = Growth(np.array(points, float), grown(points, law))
    assert len(found.unchecked) == 0
    assert round(found.sizes_at(np.array((16.0, 3001.0)), 0)[0]) == law(16, 3001)


def test_lengths_that_are_rounded_to_one_size() -> None:
    # GIVEN buffers of a kernel that rounds the length up to 128, and what does not grow at all
    points = [(2.0, 64.0), (4.0, 64.0), (4.0, 128.0)]
    found = Growth(np.array(points), np.array([[256, 7], [512, 7], [512, 7]]))
    # THEN the buffers may grow with the length
    target = np.array((8.0, 256.0))
    assert found.unchecked.tolist() == [0]
    assert [found.sizes_at(target, which)[0].round() for which in (0, 1)] == [1024, 4096]
    # AND a length above 128 shows it
    points[-1] = (4.0, 192.0)
    found = Growth(np.array(points), np.array([[256], [512], [1024]]))
    assert found.unchecked.tolist() == []
    assert found.sizes_at(target, 0).round().tolist() == [2048]


def test_two_recordings_show_straight_lines() -> None:
    # GIVEN two recordings, and sizes that may be of a line or of a square
    points, target = np.array([[2.0], [4.0]]), np.array([16.0])
    sizes = np.array([[100, 200, 140], [200, 800, 260]])
    found = Growth(points, sizes)
    # THEN proportional sizes, and squares, are confirmed
    assert found.sizes_at(target, 0)[:2].round().tolist() == [800, 12800]
    # AND the line with a constant is not: with a square instead, it would be more
    assert found.unchecked.tolist() == [2]
    assert round(found.sizes_at(target, 0)[2]) == 980
    least, most = (found.sizes_at(target, which) for which in (-1, 1))
    assert least[:2].round().tolist() == most[:2].round().tolist() == [800, 12800]
    assert least[2] < 980 < most[2]


def test_requests_that_some_recordings_lack() -> None:
    # GIVEN a request that is in the largest recording alone, and one that is in the two with the
    # larger batch
    points = np.array([(2.0, 64.0), (4.0, 64.0), (4.0, 128.0)])
    sizes = np.array([[MISSING, MISSING], [MISSING, 640], [4096, 1280]])
    found = Growth(points, sizes)
    # THEN no law is confirmed: what grows with the length may grow with the batch too
    assert sorted(found.unchecked.tolist()) == [0, 1]
    target = np.array((8.0, 256.0))
    assert found.sizes_at(target, 0).round().tolist() == [4096, 5120]
    assert found.sizes_at(target, -1).round().tolist() == [4096, 2560]
    assert found.sizes_at(target, 1).round().tolist() == [4 * 4096, 5120]


def test_a_buffer_with_a_largest_size() -> None:
    # GIVEN a buffer that does not grow any more
    points = np.array([(4.0, 512.0), (8.0, 512.0), (8.0, 1024.0)])
    found = Growth(points, np.array([[67108864], [113246208], [113246208]]))
    # THEN it is expected to stay, and it may grow with the batch
    target = np.array((16.0, 4096.0))
    assert found.unchecked.tolist() == [0]
    assert found.sizes_at(target, 0).tolist() == [113246208]
    assert found.sizes_at(target, 1)[0] > 113246208


def test_sizes_without_a_law() -> None:
    # GIVEN recordings of equal sizes with other requests
    found = Growth(np.array([[4.0], [4.0]]), np.array([[100, 7], [100, 8]]))
    assert found.unfitted.tolist() == [1]


def test_equal_requests_are_fitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN the requests of 1,000 equal layers
    fitted: list[int] = []
    fit = growth._fitted

    def counted(terms, points, sizes):  # type: ignore[no-untyped-def]
        fitted.append(sizes.shape[1])
        return fit(terms, points, sizes)

    monkeypatch.setattr(growth, "_fitted", counted)
    sizes = np.tile(np.array([[100, 200, 140], [200, 800, 260]]), 1000)
    found = Growth(np.array([[2.0], [4.0]]), sizes)
    # THEN three are fitted, AND the answer has all of them
    assert max(fitted) == 3
    assert found.sizes_at(np.array([16.0]), 0)[1::3].round().tolist() == [12800] * 1000
    assert found.unchecked.tolist() == [*range(2, 3000, 3)]
