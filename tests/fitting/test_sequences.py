"""The requests of two recordings are matched over insertions and replacements."""

import numpy as np
import pytest

from pytracer.fitting.sequences import aligned, by_growth


def keys(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def pairs(first: str, second: str) -> str:
    """Return the characters that are matched, and check that they are the same and in order."""
    in_first, in_second = aligned(keys(first), keys(second))
    found = [first[i] for i in in_first]
    assert found == [second[i] for i in in_second]
    assert np.all(np.diff(in_first) > 0)
    assert np.all(np.diff(in_second) > 0)
    return "".join(found)


LAYERS = "abcdefgh" * 50


@pytest.mark.parametrize(
    ("first", "second", "matched"),
    [
        (LAYERS, LAYERS, LAYERS),
        (LAYERS, "", ""),
        # A buffer more in each layer, and at the end.
        (LAYERS, "abcdXefgh" * 50, LAYERS),
        ("abcdXefgh" * 50, LAYERS, LAYERS),
        (LAYERS, LAYERS + "X", LAYERS),
        (LAYERS, LAYERS[:-1] + "Xh", LAYERS),
        # A kernel in the place of two others.
        ("abcd" + "UV" + "efgh" * 9, "abcd" + "XYZ" + "efgh" * 9, "abcd" + "efgh" * 9),
        # The same in one layer alone.
        ("abcdUVefgh" * 2, "abcdXYZefgh" + "abcdUVefgh", "abcdefgh" + "abcdUVefgh"),
        # Many requests more.
        ("abcdefgh" + "ijklmnop", "abcdefgh" + "XYZ" * 1000 + "ijklmnop", "abcdefghijklmnop"),
        # Nothing is the same.
        ("abcdefgh" * 9, "XYZ" * 30, ""),
    ],
)
def test_what_is_matched(first: str, second: str, matched: str) -> None:
    assert pairs(first, second) == matched


def test_keys_are_compared_as_numbers() -> None:
    # GIVEN a key whose bytes are also inside of two others
    wanted = np.array([1] * 8, np.int32)
    shifted = np.full(8, 256, np.int32)
    in_first, _ = aligned(np.concatenate([[7], wanted]).astype(np.int32), np.append(7, shifted))
    assert in_first.tolist() == [0]


@pytest.mark.parametrize(
    ("first", "second", "matched"),
    [
        # A workspace, 9, for each row of the batch: 2 rows, and 4.
        ([4, 7, 9, 9, 5], [8, 14, 9, 9, 9, 9, 10], [(4, 8), (7, 14), (9, 9), (9, 9), (5, 10)]),
        # The buffers of a reduction, and sizes that are in both, of different requests.
        ([4, 3, 8], [8, 3, 100, 3, 16], [(4, 8), (3, 3), (8, 16)]),
        # As many requests are in order.
        ([4, 9, 8], [8, 16, 9], [(4, 8), (9, 16), (8, 9)]),
        # One that grows in another way, between others.
        ([4, 5, 9, 4], [8, 30, 9, 9, 9, 8], [(4, 8), (5, 30), (9, 9), (4, 8)]),
    ],
)
def test_growth_shows_what_a_line_requests_more_often(
    first: list[int], second: list[int], matched: list[tuple[int, int]]
) -> None:
    # GIVEN other lines, whose requests are doubled
    keys = [np.array([1, *[2] * len(sizes), 1], np.int32) for sizes in (first, second)]
    bytes_ = np.array([50, *first, 60]), np.array([100, *second, 120])
    in_first, in_second = by_growth(*keys, *aligned(*keys), bytes_)
    found = zip(bytes_[0][in_first].tolist(), bytes_[1][in_second].tolist(), strict=True)
    assert [*found] == [(50, 100), *matched, (60, 120)]


def test_a_run_that_is_in_two_parts() -> None:
    keys = [np.array(each, np.int32) for each in ([2] * 20, [2] * 8 + [3] + [2] * 12)]
    sizes = np.arange(1, 21), np.arange(1, 22)
    in_first, in_second = by_growth(*keys, *aligned(*keys), sizes)
    assert in_first.tolist() == [*range(20)]
    assert in_second.tolist() == [*range(8), *range(9, 21)]


def test_different_sequences_end_soon() -> None:
    # GIVEN two long sequences without a common part
    first = np.arange(100_000, dtype=np.int32)
    in_first, _ = aligned(first, first + 100_000)
    assert len(in_first) == 0
