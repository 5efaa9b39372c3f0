"""Does a series of points keep what is high and low?"""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_program import FIRST_TIME_US, run

from pytracer.analysis.history import History, Lifetimes, Usage, replay
from pytracer.analysis.report import stats
from pytracer.analysis.usage import series
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import Trace


@given(st.integers(1, 2000), st.integers(4, 400), st.integers(0, 2**32))
def test_a_series_keeps_highs_and_lows(entries: int, points: int, seed: int) -> None:
    # GIVEN random levels
    rows = np.random.default_rng(seed).integers(0, 2**40, (entries, 8))
    columns = dict(zip(Usage.__annotations__, rows.T, strict=True))
    usage = Usage(**columns)
    times = np.arange(len(rows) - 1) + FIRST_TIME_US
    history = History(usage, cast(Lifetimes, None), 3, np.zeros(3, int))
    # WHEN a series with a limited number of points is computed
    found = series(cast(Trace, SimpleNamespace(time_us=times)), history, points)
    # THEN all its levels are of the same events, and the first, last and highest are included
    assert found.events == sorted(set(found.events))
    assert (found.events[0], found.events[-1]) == (0, len(rows) - 1)
    assert all(len(values) == len(found.events) <= points for values in vars(found).values())
    assert found.times_us == [None if i == 0 else FIRST_TIME_US + i - 1 for i in found.events]
    for name, level in columns.items():
        if name != "free_squares":
            assert getattr(found, name) == level[found.events].tolist()
    assert max(found.allocated_bytes) == usage.allocated_bytes.max()
    assert max(found.reserved_bytes) == usage.reserved_bytes.max()
    # AND derived levels are right
    reserved, free = (
        usage.reserved_bytes - level for level in (usage.allocated_bytes, usage.active_bytes)
    )
    assert found.fragmentation_bytes == reserved[found.events].tolist()
    for entry, value in zip(found.events, found.free_concentration, strict=True):
        squares = float(usage.free_squares[entry])
        is_known = entry >= 3 and free[entry] > 0 and squares > 0
        assert value == (pytest.approx(squares / float(free[entry]) ** 2) if is_known else None)
    # AND with enough points, the highest and lowest value of every level is included
    if points >= 22:
        for name in columns.keys() - {"free_squares"}:
            values, level = getattr(found, name), columns[name]
            assert (min(values), max(values)) == (level.min(), level.max())
        assert (min(found.fragmentation_bytes), max(found.fragmentation_bytes)) == (
            reserved.min(),
            reserved.max(),
        )


def test_a_series_with_one_changing_level_uses_all_points() -> None:
    # GIVEN a long history in which only one level changes
    flat = np.broadcast_to(np.int64(5), (100_000,))
    noise = np.random.default_rng(1).integers(0, 1000, len(flat))
    usage = Usage(noise, flat, flat, flat.copy(), flat, flat, flat, flat)
    trace = cast(Trace, SimpleNamespace(time_us=np.arange(len(flat) - 1)))
    # WHEN a series is computed, THEN its points are the highs and lows of this level
    found = series(trace, History(usage, cast(Lifetimes, None), 0, np.zeros(0, int)), 1000)
    assert 990 < len(found.events) <= 1000
    assert max(found.requested_bytes) == 999


def test_a_short_series_has_every_event() -> None:
    snapshot = run([("alloc", 10, 0), ("alloc", 5, 0)]).snapshot()
    found = series(snapshot.traces[1], replay(snapshot, 1), 5)
    assert found.allocated_bytes == [0, 0, 10, 10, 15]
    assert found.free_concentration == [None, 1, None, 1, None]


def test_too_few_points() -> None:
    snapshot = run([("alloc", 10, 0)]).snapshot()
    with pytest.raises(PytracerError, match="points=3 is too few: a series has at least 4"):
        stats(snapshot, points=3)
