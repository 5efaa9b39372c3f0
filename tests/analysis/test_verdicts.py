"""Test the verdicts on an out-of-memory by its figures."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis.device_data import device_data
from pytracer.analysis.free_segments import FreePool
from pytracer.analysis.layout import Layout, Segment, largest_pieces
from pytracer.analysis.oom import reasons as module
from pytracer.analysis.oom.earlier_requests import EarlierRequests, earlier_requests
from pytracer.analysis.oom.reasons import (
    EXCEPTION,
    EXHAUSTED,
    FRAGMENTED,
    FREED,
    GARBAGE,
    GROWING,
    LARGER_INPUT,
    LEAK,
    LIBRARY,
    LIMIT,
    OTHER_POOL,
    OTHERS,
    REPLACED,
    SHARED_POOL,
    TOO_LARGE,
    UNKNOWN,
    USUAL_CONTEXT_BYTES,
    WAITING,
    Facts,
    verdicts,
)
from pytracer.analysis.oom.trials import Trial
from pytracer.analysis.oom.unfinished_pass import Unfinished
from pytracer.analysis.ooms import OutOfMemory
from pytracer.analysis.stream_memory import StreamMemory
from pytracer.analysis.usage import UsageSample

MIB = 2**20
GIB = 2**30
FAILS_LATER = Trial("", "", fits=True, is_exact=True, like="step 3")
FITS = replace(FAILS_LATER, steps=1)


def sample(**changes: int) -> UsageSample:
    """Return 10 GiB reserved, of which 7 GiB are in use and 3 GiB free, in blocks of 1 GiB."""
    values: dict[str, Any] = {
        **{"event": 9, "time_us": None, "step": None, "phase": "", "is_exact": True},
        **{"uncertain_bytes": 0, "requested_bytes": 7 * GIB, "allocated_bytes": 7 * GIB},
        **{"active_bytes": 7 * GIB, "reserved_bytes": 10 * GIB, "fragmentation_bytes": 3 * GIB},
        **{"rounding_bytes": 0, "inactive_split_bytes": 3 * GIB, "largest_free_bytes": GIB},
        **{"free_concentration": 0.3, "segments": 10},
    }
    return UsageSample(**{**values, **changes})


def oom(requested: int, **changes: Any) -> OutOfMemory:
    """Return a request on a device of 12 GiB, of which 2 GiB are free."""
    values: dict[str, Any] = {
        **{"event": 9, "time_us": None, "step": None, "phase": "", "call_site": None},
        **{"requested_bytes": requested, "segment_bytes": requested, "limit_bytes": 12 * GIB},
        **{"device_free_bytes": 2 * GIB, "available_bytes": 2 * GIB, "own_pool_segments": 3},
        **{"free_in_segments_bytes": 3 * GIB, "own_pool_free_bytes": 3 * GIB},
        **{"own_pool_streams": 1, "other_pool": None, "fits_in_largest_block": None},
        **{"own_pool_largest_bytes": 0},
        **{
            "fits_in_free_blocks": None,
            "fits_if_joined": None,
            "is_one_pool": True,
            "elsewhere_bytes": 0,
        },
        **{"is_at_end": True, "has_allocated_since": False, "sample": sample(), "callers": []},
        **{"earlier_peak_bytes": 12 * GIB},  # the program had all of it before
        **{"library_error": None},
    }
    return OutOfMemory(**{**values, **changes})


def full(requested: int, uncertain_bytes: int = 0, **changes: Any) -> OutOfMemory:
    """Return a request next to 9.5 GiB in use, half a GiB free in a segment, and 1 GiB free."""
    used = {"requested_bytes": 19 * GIB // 2, "allocated_bytes": 19 * GIB // 2}
    free = {"device_free_bytes": GIB, "available_bytes": GIB, "own_pool_free_bytes": GIB // 2}
    return oom(
        requested,
        **free,
        sample=sample(**used, active_bytes=19 * GIB // 2, uncertain_bytes=uncertain_bytes),
        **changes,
    )


def used(allocated: int) -> OutOfMemory:
    """Return a request for 2.5 GiB next to bytes in use of 12 GiB, more than ever before."""
    sizes = dict.fromkeys(("requested_bytes", "allocated_bytes", "active_bytes"), allocated)
    pieces = 10 * GIB - allocated
    return oom(5 * GIB // 2, sample=sample(**sizes), own_pool_free_bytes=pieces, **GROWS)


def nearly_full(allocated: int) -> OutOfMemory:
    """Return a request next to bytes in use of 10.25 GiB, of which as many were in use before."""
    sizes = dict.fromkeys(("requested_bytes", "allocated_bytes", "active_bytes"), allocated)
    free = dict.fromkeys(("device_free_bytes", "available_bytes"), GIB // 4)
    pieces = 10 * GIB - allocated
    return oom(9 * GIB // 20, sample=sample(**sizes), own_pool_free_bytes=pieces, **free)


def kinds(failed: OutOfMemory, **more: Any) -> list[str]:
    return [verdict.kind for verdict in verdicts(Facts(failed, **more))]


def earlier(**changes: int) -> EarlierRequests:
    """Return that a line has requested 1 GiB at most in three steps."""
    values = {"steps": 3, "most_bytes": GIB, "replaced": 0, "first_bytes": MIB, "has_steps": True}
    return EarlierRequests(**{**values, "growing": 0, "least_bytes": MIB, **changes})


GROWS = {"earlier_peak_bytes": 8 * GIB}
SHORT = {"progress": Unfinished("In layer 3 of 9", 4 * GIB)}
LARGER = {"earlier": earlier(most_bytes=GIB // 2)}
SOME_PIECES = {"own_pool_free_bytes": 12 * GIB // 5, **GROWS}
POOL: dict[str, Any] = {
    "own_pool_free_bytes": 0,
    "other_pool": FreePool("(0, 3)", 2 * GIB, None, streams=1, pools=2, all_bytes=3 * GIB),
}
WAITING_BLOCKS = StreamMemory("waiting", 1, 4 * GIB, None, None, None)
LIBRARYS: dict[str, Any] = {"segment_bytes": 2 * MIB, "library_error": "x"}
LATER = {"own_pool_free_bytes": None, "own_pool_streams": None, "is_at_end": False}


@pytest.mark.parametrize(
    ("failed", "more", "expected"),
    [
        (oom(7 * GIB // 2), {}, [FRAGMENTED]),
        (oom(7 * GIB // 2 + 1), {}, [UNKNOWN]),  # less than half of the free memory is to spare
        (oom(5 * GIB), {}, [UNKNOWN]),
        # From 95 % on, the pieces alone are no reason, whatever was in use before.
        (nearly_full(97 * GIB // 10), {}, [UNKNOWN]),
        (nearly_full(39 * GIB // 4), {}, [EXHAUSTED]),
        (oom(5 * GIB + 1), {}, [TOO_LARGE]),
        # Expandable segments are on, and did not help.
        (oom(3 * GIB), {"expands": True}, [UNKNOWN]),
        (oom(5 * GIB + 1), {"expands": True}, [TOO_LARGE]),
        # The free memory belongs to another pool.
        (oom(4 * GIB, own_pool_free_bytes=GIB), {}, [UNKNOWN]),
        (oom(6 * GIB, own_pool_free_bytes=GIB), {}, [TOO_LARGE]),
        # Ten pages of each stream are to spare.
        (oom(2 * GIB + 24 * MIB, own_pool_free_bytes=224 * MIB), {}, [FRAGMENTED]),
        (oom(2 * GIB + 25 * MIB, own_pool_free_bytes=224 * MIB), {}, [UNKNOWN]),
        (oom(2 * GIB + 224 * MIB, own_pool_free_bytes=GIB, own_pool_streams=4), {}, [FRAGMENTED]),
        (oom(2 * GIB + 225 * MIB, own_pool_free_bytes=GIB, own_pool_streams=4), {}, [UNKNOWN]),
        # The allocator needed more than the request.
        (oom(3 * GIB, segment_bytes=5 * GIB), {}, [UNKNOWN]),
        # Rounding and pending frees hold what is missing.
        (oom(6 * GIB, sample=sample(requested_bytes=5 * GIB)), {}, [UNKNOWN]),
        (oom(6 * GIB, sample=sample(allocated_bytes=5 * GIB)), {}, [UNKNOWN]),
        # The device had enough.
        (oom(GIB), {}, [UNKNOWN]),
        (oom(2 * GIB), {}, [UNKNOWN]),
        # The driver refuses a little of what it reports as free: here 12 MiB of the device.
        (full(GIB - 11 * MIB, **GROWS), {}, [EXHAUSTED]),
        (full(GIB - 13 * MIB, **GROWS), {}, [UNKNOWN]),
        (oom(2 * GIB - 11 * MIB, own_pool_free_bytes=0), {"garbage_bytes": MIB}, [UNKNOWN]),
        (oom(2 * GIB - 11 * MIB, own_pool_free_bytes=0), {"garbage_bytes": 2 * MIB}, [GARBAGE]),
        (full(GIB - 11 * MIB, **GROWS, elsewhere_bytes=8 * GIB), {}, [EXHAUSTED]),
        (oom(2 * GIB - 11 * MIB, own_pool_free_bytes=0), {}, [UNKNOWN]),
        # Not the allocator asked.
        (oom(0, **LIBRARYS, device_free_bytes=GIB), {}, [LIBRARY]),
        (oom(0, **LIBRARYS, device_free_bytes=GIB + 1), {"garbage_bytes": 2 * GIB}, [UNKNOWN]),
        (oom(0, **LIBRARYS, device_free_bytes=GIB), {"garbage_bytes": GIB}, [LIBRARY]),
        (oom(0, **LIBRARYS, device_free_bytes=GIB), {"garbage_bytes": 2 * GIB}, [GARBAGE, LIBRARY]),
        (oom(0, segment_bytes=2 * MIB), {}, [UNKNOWN]),
        # A limit.
        (oom(2 * GIB, available_bytes=GIB, own_pool_free_bytes=0), {}, [LIMIT]),
        (oom(2 * GIB, available_bytes=GIB), {}, [FRAGMENTED, LIMIT]),
        (oom(2 * GIB, available_bytes=GIB), {"proofs": {LIMIT: FAILS_LATER}}, [FRAGMENTED]),
        (oom(6 * GIB, available_bytes=GIB), {}, [TOO_LARGE]),
        # The state of the out-of-memory is not that of the file's end.
        (oom(4 * GIB, **LATER), {}, [UNKNOWN]),
        (oom(6 * GIB, **LATER), {}, [TOO_LARGE]),
        # The ring lost its beginning: more may have been in use.
        (oom(6 * GIB, **LATER, sample=sample(uncertain_bytes=GIB)), {}, [UNKNOWN]),
        # The program never had as much, and nearly all is allocated: 9.5 of 11 GiB, or 95 % with
        # the request.
        (full(5 * GIB // 4), {}, [FRAGMENTED]),
        (full(5 * GIB // 4, **GROWS), {}, [EXHAUSTED]),
        (full(3 * GIB // 2 + 1, **GROWS), {}, [EXHAUSTED]),
        (full(11 * GIB // 2 + 1, **GROWS), {}, [TOO_LARGE]),
        (full(5 * GIB // 4, uncertain_bytes=900 * MIB, **GROWS), {}, [UNKNOWN]),
        (full(5 * GIB // 4, uncertain_bytes=900 * MIB, **GROWS), {"has_step": True}, [FRAGMENTED]),
        # More than ever, in the first step: a fifth of the 12 GiB has to be free in pieces.
        (oom(5 * GIB // 2, own_pool_free_bytes=12 * GIB // 5 + 1, **GROWS), {}, [FRAGMENTED]),
        (oom(5 * GIB // 2, own_pool_free_bytes=12 * GIB // 5, **GROWS), {}, [UNKNOWN]),
        (oom(7 * GIB // 2, earlier_peak_bytes=21 * GIB // 2), {}, [FRAGMENTED]),
        (oom(7 * GIB // 2, earlier_peak_bytes=21 * GIB // 2 - 1), {}, [FRAGMENTED]),
        (oom(9 * GIB // 2, earlier_peak_bytes=23 * GIB // 2), {}, [UNKNOWN]),
        (oom(9 * GIB // 2, earlier_peak_bytes=23 * GIB // 2 - 1), {}, [EXHAUSTED]),
        # A piece that fits is free.
        (oom(3 * GIB, own_pool_largest_bytes=3 * GIB), {}, [FREED]),
        (oom(3 * GIB, own_pool_largest_bytes=3 * GIB - 1), {}, [FRAGMENTED]),
        (oom(3 * GIB, own_pool_largest_bytes=3 * GIB), {"splits_all": False}, [FRAGMENTED]),
        # Nothing else uses the memory.
        (oom(3 * GIB), {"garbage_bytes": 2 * GIB, "expands": True}, [GARBAGE]),
        (oom(3 * GIB + 1), {"garbage_bytes": 2 * GIB, "expands": True}, [UNKNOWN]),
        (oom(3 * GIB), {"exception_bytes": 2 * GIB, "expands": True}, [EXCEPTION]),
        (full(5 * GIB // 4, **GROWS), {"garbage_bytes": 2 * GIB}, [GARBAGE]),
        (full(5 * GIB // 4, **GROWS), {"garbage_bytes": 18 * GIB // 10}, [EXHAUSTED]),
        (oom(3 * GIB), {"is_cpu": True, "garbage_bytes": 2 * GIB}, [GARBAGE]),
        # Free segments belong to another pool.
        (oom(4 * GIB, **POOL), {}, [OTHER_POOL]),
        (oom(5 * GIB, **POOL), {}, [OTHER_POOL]),
        (oom(5 * GIB, **POOL), {"proofs": {OTHER_POOL: FAILS_LATER}}, [UNKNOWN]),
        (
            oom(6 * GIB, **POOL),
            {"proofs": {OTHER_POOL: FAILS_LATER, SHARED_POOL: FITS}},
            [OTHER_POOL],
        ),
        (oom(5 * GIB + 1, **POOL), {}, [TOO_LARGE]),
        # Streams still use what was freed.
        (oom(4 * GIB), {"of_streams": WAITING_BLOCKS}, [WAITING]),
        (oom(4 * GIB + 1, own_pool_free_bytes=0), {"of_streams": WAITING_BLOCKS}, [UNKNOWN]),
        (full(5 * GIB // 4, **GROWS, other_pool=POOL["other_pool"]), {}, [EXHAUSTED]),
        # The line has requested less before.
        (oom(5 * GIB + 1), {"earlier": earlier(most_bytes=4 * GIB)}, [LARGER_INPUT]),
        (oom(5 * GIB + 1), {"earlier": earlier(most_bytes=4 * GIB + 2)}, [TOO_LARGE]),
        (oom(5 * GIB + 1), {"earlier": earlier(steps=2)}, [TOO_LARGE]),
        (oom(5 * GIB), {"earlier": earlier()}, [LARGER_INPUT]),
        # What earlier steps had does not show what a larger one needs.
        (oom(5 * GIB // 2, **SOME_PIECES), {"has_step": True}, [FRAGMENTED]),
        (oom(5 * GIB // 2, **SOME_PIECES), {"has_step": True, **LARGER}, [LARGER_INPUT]),
        (full(5 * GIB // 4, **GROWS), LARGER, [LARGER_INPUT]),
        # The rest of a forward pass needs more than all that is free, and 70 % are allocated.
        (used(42 * GIB // 5 + 1), SHORT, [EXHAUSTED]),
        (used(42 * GIB // 5), SHORT, [UNKNOWN]),
        (used(42 * GIB // 5 + 1), {}, [UNKNOWN]),
        # In a first backward pass, gradients and states are to come.
        (full(5 * GIB // 4), {"is_first_backward": True}, [EXHAUSTED]),
        (full(5 * GIB // 4 + 1, **GROWS), {"earlier": earlier()}, [LARGER_INPUT]),
        (full(5 * GIB // 4, **GROWS), {"earlier": earlier(steps=0, replaced=16)}, [REPLACED]),
        (full(5 * GIB // 4, **GROWS), {"earlier": earlier(steps=0, growing=16)}, [GROWING]),
        (oom(5 * GIB), {"earlier": earlier(steps=0, growing=16)}, [GROWING]),
        # Free memory in pieces may be that of smaller inputs.
        (oom(5 * GIB // 2), {"earlier": earlier(steps=0, growing=16)}, [FRAGMENTED, GROWING]),
        (oom(3 * GIB), {"is_cpu": True, "earlier": earlier()}, [LARGER_INPUT]),
        (oom(5 * GIB), {"earlier": earlier(steps=0, replaced=16)}, [REPLACED]),
        # No usage at all.
        (oom(GIB, sample=None), {"why_no_history": "reason"}, [UNKNOWN]),
        (oom(GIB), {"why_no_history": "the file is of one phase"}, [UNKNOWN]),
        # The CPU.
        (oom(3 * GIB), {"is_cpu": True}, [TOO_LARGE]),
        (oom(GIB), {"is_cpu": True}, [UNKNOWN]),
    ],
)
def test_the_kind(failed: OutOfMemory, more: dict[str, Any], expected: list[str]) -> None:
    assert kinds(failed, **more) == expected
    assert all(verdict.text.endswith(".") for verdict in verdicts(Facts(failed, **more)))


# 2 GiB of the device are free, 3 in segments, and 2 by the leak.
@pytest.mark.parametrize(
    ("missing", "more", "expected"),
    [
        (GIB, 0, [LEAK]),
        (GIB + 1, 0, [UNKNOWN]),
        (GIB, 7 * GIB, [LEAK]),
        (GIB, 7 * GIB + 1, [UNKNOWN]),  # a forward pass needs more than that
    ],
)
def test_a_leak_is_the_reason_if_half_of_it_is_missing(
    missing: int, more: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a leak of 2 GiB, and a request for which more was missing than the free memory
    for name in ("rate_text", "since_text"):
        monkeypatch.setattr(module, name, lambda *_: "")
    monkeypatch.setattr(module, "keepers_text", lambda _: ", kept by `x` of main()")
    monkeypatch.setattr(module, "where_text", lambda _: "")
    leaks = SimpleNamespace(
        verdict="leak",
        bytes_per_step=GIB,
        growths=[SimpleNamespace(verdict="leak", held_bytes=2 * GIB)],
    )
    failed = oom(2 * GIB + missing, own_pool_free_bytes=0)
    progress = Unfinished("", more)
    # WHEN / THEN
    (verdict,) = verdicts(Facts(failed, leaks=cast(Any, leaks), progress=progress))
    assert [verdict.kind] == expected
    assert (verdict.text.startswith("2 GiB have piled up, ")) == (expected == [LEAK])
    # AND on the CPU, an unknown limit may refuse what is free: then only the leak's memory counts
    for requested, kind in ((GIB, LEAK), (2 * GIB, LEAK), (2 * GIB + 1, UNKNOWN)):
        refused = oom(requested, device_free_bytes=8 * GIB, available_bytes=8 * GIB)
        assert kinds(refused, leaks=leaks, is_cpu=True) == [kind]


@pytest.mark.parametrize(
    ("elsewhere", "outside", "expected"),
    [
        (4 * GIB, None, [OTHERS]),  # without NVML: no more than the usual is not blamed
        (4 * GIB - 1, None, [TOO_LARGE]),
        (None, None, [TOO_LARGE]),
        (4 * GIB, 4 * GIB, [OTHERS]),  # a library in this process
        (3 * GIB, 0, [OTHERS]),  # another process
        (3 * GIB, GIB, [TOO_LARGE]),
        (3 * GIB + MIB, MIB, [OTHERS]),
    ],
)
def test_memory_of_others(elsewhere: int | None, outside: int | None, expected: list[str]) -> None:
    # GIVEN a request that needs 3 GiB more, on a device of 20 GiB
    assert USUAL_CONTEXT_BYTES == GIB
    failed = oom(5 * GIB, elsewhere_bytes=elsewhere, limit_bytes=20 * GIB)
    failed = replace(failed, own_pool_free_bytes=0, free_in_segments_bytes=0)
    failed = replace(failed, sample=sample(active_bytes=10 * GIB, requested_bytes=10 * GIB))
    failed = replace(failed, sample=replace(failed.sample, allocated_bytes=10 * GIB))
    # THEN others are blamed if their memory alone would have been enough
    assert kinds(failed, outside_bytes=outside) == expected


@pytest.mark.parametrize(("others", "expected"), [(512 * MIB, EXHAUSTED), (GIB, OTHERS)])
def test_a_little_memory_of_others(others: int, expected: str) -> None:
    # GIVEN a program that has nearly all memory, and misses 256 MiB
    failed = full(5 * GIB // 4, **GROWS, elsewhere_bytes=others, limit_bytes=13 * GIB)
    # THEN others are blamed from a twentieth of the device on
    assert kinds(failed, outside_bytes=0) == [expected]


def test_a_limit_bounds_what_others_could_give_back() -> None:
    failed = oom(5 * GIB, elsewhere_bytes=8 * GIB, limit_bytes=14 * GIB, own_pool_free_bytes=0)
    assert kinds(failed) == [UNKNOWN]
    assert kinds(replace(failed, limit_bytes=15 * GIB)) == [OTHERS]


LINE = ("train.py", "attention", 7)
UNIT = 64 * 1024


@pytest.mark.parametrize(
    ("in_steps", "expected"),
    [
        ([[4], [8, 2], [4], [11]], (3, 8 * UNIT, 0)),
        ([[4], [8, 2], [4], [9]], (0, 8 * UNIT, 0)),  # no larger step, so far
        ([[4], [], [4], [6]], (2, 4 * UNIT, 0)),
        ([[4], [], [4], []], (0, 4 * UNIT, 0)),
        ([[*range(1, 20)]], (0, 0, 18)),
        ([[9], [*range(1, 20)]], (0, 9 * UNIT, 18)),
        ([[4], [4], [4], [6]], (3, 4 * UNIT, 0)),
        ([[4], [4], [4], [6, 6]], (0, 4 * UNIT, 0)),  # twice as often: a loop
        ([[each for size in range(1, 20) for each in (0.25, size)]], (0, 0, 19)),  # with parts
        ([[1.4**power for power in range(9)] * 2], (0, 0, 0)),  # not steadily
        ([[*range(1, 15)]], (0, 0, 0)),  # too few
        ([[17 + each / 8 for each in range(24)]], (0, 0, 23)),  # in even steps, little suffices
        ([[17 + each * each / 192 for each in range(24)]], (0, 0, 0)),
        ([[19 + each / 32 for each in range(32)]], (0, 0, 0)),  # too little
        ([[*range(20, 1, -1)]], (0, 0, 0)),
        ([[10] * 20], (0, 0, 0)),
    ],
)
def test_what_a_line_has_requested_before(
    in_steps: list[list[float]], expected: tuple[int, int, int]
) -> None:
    # GIVEN a line that replaces its block by each next one, in steps, until it asks for 20 units
    program, boundaries, kept = Program(), [], None
    for step, sizes in enumerate(in_steps, 1):
        boundaries.append([step, len(program.events)])
        for size in sizes:
            new = program.alloc(int(size * UNIT), LINE)
            if size < 1:  # a part, which is appended to the next block
                program.free(new)
                continue
            if kept is not None:
                program.free(kept)
            kept = new
    program.out_of_memory(20 * UNIT, 0, LINE)
    program.metadata = file_metadata(current_step=len(in_steps))
    program.metadata["devices"][0] |= {"steps": boundaries, "overwritten": 0}
    # THEN its requests of the earlier steps are known, and whether they grew in the last one
    found = earlier_requests(device_data(program.snapshot(), 0), len(program.events) - 1)
    assert found is not None
    assert (found.steps, found.most_bytes, found.replaced) == expected
    # AND nothing of a line that is unknown
    program.out_of_memory(20 * UNIT, 0)
    assert earlier_requests(device_data(program.snapshot(), 0), len(program.events) - 1) is None


@pytest.mark.parametrize(
    ("others", "part", "steps"),
    [(9, 80, 4), (5, 80, 0), (4, 80, 0), (9, 65, 4), (9, 63, 0)],  # from 1/64 on, requests count
)
def test_a_line_that_is_used_for_something_else(others: int, part: int, steps: int) -> None:
    # GIVEN a line that asks for more than in 4 earlier steps, one that asks for as much as before,
    # and one that asks for more than before or not
    program, boundaries = Program(), []
    for step in range(1, 6):
        boundaries.append([step, len(program.events)])
        for line, size in ((1, 4), (2, 4 if step < 5 else others)):
            program.alloc(size * 128 * 1024, ("model.py", "forward", line))
        for line in range(3, 9):  # and small requests, of a part of the one that fails
            program.alloc(20 * UNIT // part, ("model.py", "forward", line))
        if step < 5:
            program.alloc(UNIT, LINE)
    program.out_of_memory(20 * UNIT, 0, LINE)
    program.metadata = file_metadata(current_step=5)
    program.metadata["devices"][0] |= {"steps": boundaries, "overwritten": 0}
    # THEN the step is larger if half of its lines are
    found = earlier_requests(device_data(program.snapshot(), 0), len(program.events) - 1)
    assert found is not None
    assert found.steps == steps


def test_a_line_that_has_requested_nothing_of_a_known_size() -> None:
    # GIVEN a library that got no memory, whose request has no size
    program = Program()
    program.out_of_memory(0, 0, LINE)
    found = earlier_requests(device_data(program.snapshot(), 0), 0)
    assert found is not None
    assert (found.most_bytes, found.replaced, found.growing) == (0, 0, 0)


@pytest.mark.parametrize(
    ("of_steps", "growing"),
    [
        ([*range(5, 20)], 16),
        ([*range(6, 20)], 0),  # too few steps
        ([step // 4 for step in range(20, 80)], 0),  # larger inputs from time to time
        ([step + 9 * (step % 2) for step in range(5, 20)], 0),
        ([*range(5, 12), *range(11, 20)], 17),  # once less
    ],
)
def test_a_line_that_requests_more_from_step_to_step(of_steps: list[int], growing: int) -> None:
    program, boundaries = Program(), []
    for step, size in enumerate([*of_steps, 20], 1):
        boundaries.append([step, len(program.events)])
        if step <= len(of_steps):
            program.free(program.alloc(size * UNIT, LINE))
    program.out_of_memory(20 * UNIT, 0, LINE)
    program.metadata = file_metadata(current_step=len(boundaries))
    program.metadata["devices"][0] |= {"steps": boundaries, "overwritten": 0}
    found = earlier_requests(device_data(program.snapshot(), 0), len(program.events) - 1)
    assert found is not None
    assert found.growing == growing
    assert not growing or found.least_bytes == of_steps[0] * UNIT


def test_the_largest_free_piece_of_each_segment() -> None:
    # GIVEN a full segment, an empty one, and one with free pieces before, between and behind blocks
    segments = [Segment(begin, 100, 0, 0, False, False) for begin in (0, 100, 300)]
    found = {}
    for free in (5, 40):
        blocks = [(0, 0, 60), (0, 60, 40), (2, 300 + free, 20), (2, 350 + free, 20)]
        columns = map(np.array, zip(*blocks, strict=True))
        layout = Layout(segments, *columns, block_stack=np.zeros(4, np.uint32))
        found[free] = largest_pieces(layout).tolist()
    # THEN it is the one between, the one behind, or the one before
    assert found == {5: [0, 100, 30], 40: [0, 100, 40]}
    behind = Layout(segments, *(np.array([each]) for each in (2, 300, 35, 0)))
    assert largest_pieces(behind).tolist() == [100, 100, 65]


def test_blocks_that_are_freed_before_the_next_larger_one() -> None:
    program = Program()
    for size in range(1, 20):
        program.free(program.alloc(size * UNIT, LINE))
    program.out_of_memory(20 * UNIT, 0, LINE)
    found = earlier_requests(device_data(program.snapshot(), 0), len(program.events) - 1)
    assert found is not None
    assert found.replaced == 0


@pytest.mark.parametrize(
    ("sizes", "replaced"),
    [
        ([*range(1, 16)], 0),  # too few
        ([*range(1, 17)], 15),
        ([1] * 8 + [4] * 8, 0),  # two kinds of blocks that one line makes, one after the other
    ],
)
def test_blocks_that_are_replaced_by_larger_ones(sizes: list[int], replaced: int) -> None:
    program, kept = Program(), None
    for size in sizes:
        new = program.alloc(size * UNIT, LINE)
        if kept is not None:
            program.free(kept)
        kept = new
    program.out_of_memory(20 * UNIT, 0, LINE)
    found = earlier_requests(device_data(program.snapshot(), 0), len(program.events) - 1)
    assert found is not None
    assert found.replaced == replaced
