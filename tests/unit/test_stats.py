"""The numbers of small snapshots that are counted by hand, and of golden ones."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import plain_reader
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_program import FIRST_TIME_US, run

from pytracer.errors import PytracerError
from pytracer.reading import load
from pytracer.reading import stats as reading_stats
from pytracer.reading.history import History, Levels, Lifetimes, replay
from pytracer.reading.moments import Moment, moment_at, series
from pytracer.reading.periods import is_certain
from pytracer.reading.plain import plain
from pytracer.reading.snapshot import Frame, Trace
from pytracer.reading.stats import DeviceReport, stats

GOLDEN = Path(__file__).parents[1] / "golden"
SEGMENT = 2 * 2**20
FRAMES = [{"filename": "train.py", "name": "step", "line": 3}]


def event(action: str, address: int, size: int, phase: str = "") -> dict[str, Any]:
    key = "device_free" if action == "oom" else "addr"
    return {
        "action": action,
        key: address,
        "size": size,
        "stream": 0,
        "frames": FRAMES,
        "user_metadata": phase,
    }


def device_of_cuda(**about: object) -> dict[str, Any]:
    """A segment of 2 MiB in which A and B are put, A is freed, and 3 MiB are not to be had."""
    events = [
        event("segment_alloc", 0, SEGMENT),
        event("alloc", 0, 500, "rollout"),
        event("alloc", 512, 1000, "update"),
        event("free_requested", 0, 500),
        event("free_completed", 0, 500),
        event("oom", 4096, 3 * 2**20, "update"),
        event("snapshot", 0, 0),
    ]
    for i, each in enumerate(events):
        each["time_us"] = FIRST_TIME_US + 10 * i
    blocks = [
        {"address": 0, "size": 512, "state": "inactive"},
        {"address": 512, "size": 1024, "requested_size": 1000, "state": "active_allocated"},
        {"address": 1536, "size": SEGMENT - 1536, "state": "inactive"},
    ]
    segment = {"device": 0, "address": 0, "total_size": SEGMENT, "blocks": blocks}
    device = {"index": 0, "is_cpu": False, "overwritten": 0, "steps": [[4, 0], [5, 3]], **about}
    return {
        "segments": [segment],
        "device_traces": [events],
        "pytracer": {"backends": ["cuda"], "devices": [device], "rank": 3},
    }


def only(content: Any, **options: Any) -> DeviceReport:
    (device,) = stats(plain_reader.convert(content, "made.pickle"), **options).devices
    return device


def test_the_levels() -> None:
    # WHEN a device is reported
    device = only(device_of_cuda())
    # THEN the peak is after B came, and every number is what one counts
    tail = SEGMENT - 1536
    assert device.peak_allocated == Moment(
        event=2,
        time_us=FIRST_TIME_US + 20,
        step=4,
        phase="update",
        is_exact=True,
        requested_bytes=1500,
        allocated_bytes=1536,
        active_bytes=1536,
        reserved_bytes=SEGMENT,
        fragmentation_bytes=tail,
        rounding_bytes=36,
        inactive_split_bytes=tail,
        largest_free_bytes=tail,
        free_concentration=1.0,
        segments=1,
    )
    assert device.is_peak_certain
    # AND most was reserved as soon as there was a segment
    assert device.peak_reserved is not None
    assert (device.peak_reserved.event, device.peak_reserved.reserved_bytes) == (0, SEGMENT)
    assert device.peak_reserved.inactive_split_bytes == 0
    # AND in the end A's place is free
    assert device.end == Moment(
        event=6,
        time_us=FIRST_TIME_US + 60,
        step=5,
        phase="",
        is_exact=True,
        requested_bytes=1000,
        allocated_bytes=1024,
        active_bytes=1024,
        reserved_bytes=SEGMENT,
        fragmentation_bytes=SEGMENT - 1024,
        rounding_bytes=24,
        inactive_split_bytes=SEGMENT - 1024,
        largest_free_bytes=tail,
        free_concentration=(512**2 + tail**2) / (512 + tail) ** 2,
        segments=1,
    )


def test_a_block_whose_free_waits_is_active_and_not_allocated() -> None:
    # GIVEN the moment when the program has freed A, and a stream still uses it
    snapshot = plain_reader.convert(device_of_cuda())
    # WHEN it is looked at, THEN A is active, with what rounding took of it
    moment = moment_at(snapshot, 0, replay(snapshot), 4, [])
    assert (moment.active_bytes, moment.allocated_bytes) == (1536, 1024)
    assert (moment.requested_bytes, moment.rounding_bytes) == (1500, 36)
    assert moment.fragmentation_bytes == SEGMENT - 1024
    assert moment.free_bytes == SEGMENT - 1536


def test_a_segment_that_is_all_free_is_not_split() -> None:
    # GIVEN a segment that is one free block, and an expandable one with a free block in it
    content = device_of_cuda()
    free = {"address": 10 * SEGMENT, "size": SEGMENT, "state": "inactive"}
    content["segments"].append(
        {"device": 0, "address": 10 * SEGMENT, "total_size": SEGMENT, "blocks": [free]}
    )
    expandable = {**content["segments"][0], "is_expandable": True}
    # WHEN the end is reported, THEN neither counts as split
    assert only(content["segments"]).end.inactive_split_bytes == SEGMENT - 1024
    assert only([expandable]).end.inactive_split_bytes == 0
    # AND the one that expands is not counted as a segment, as by torch
    assert (only(content["segments"]).end.segments, only([expandable]).end.segments) == (2, 0)


def test_the_rest_of_the_report() -> None:
    device = only(device_of_cuda())
    assert (device.device, device.name, device.is_cpu, device.events) == (0, "cuda:0", False, 7)
    assert (device.first_us, device.last_us) == (FIRST_TIME_US, FIRST_TIME_US + 60)
    assert device.contradiction is None
    assert (device.lost.before_bytes, device.lost.exact_from) == (0, 0)
    assert (device.lost.overwritten, device.lost.unknown_frees) == (0, None)
    assert [(site.size_bytes, site.count) for site in device.sites] == [(1536, 2)]
    assert [(step.step, step.peak_bytes) for step in device.steps] == [(4, 1536), (5, 1536)]
    held = {phase.phase: (phase.at_peak_bytes, phase.end_bytes) for phase in device.phases}
    assert held == {"": (0, 0), "rollout": (512, 0), "update": (1024, 1024)}
    assert device.outside is None
    counts = device.counts
    assert (counts.allocs, counts.frees, counts.ooms) == (2, 1, 1)
    assert (counts.device_allocs, counts.device_frees, counts.retries) == (1, 0, 1)


def test_an_out_of_memory() -> None:
    (oom,) = only(device_of_cuda()).ooms
    assert (oom.event, oom.time_us, oom.step, oom.phase) == (5, FIRST_TIME_US + 50, 5, "update")
    assert (oom.requested_bytes, oom.device_free_bytes) == (3 * 2**20, 4096)
    assert oom.call_site == Frame("train.py", "step", 3)
    assert oom.moment is not None
    assert oom.moment.free_bytes == SEGMENT - 1024
    assert oom.fits_in_free_blocks is False


@pytest.mark.parametrize("is_exact", [True, False])
def test_whether_it_fits_where_free_bytes_are_a_bound(
    is_exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a history that may not be exact when memory runs out
    def inexact(*arguments: Any) -> Any:
        return replace(replay(*arguments), exact_from=0 if is_exact else 7)

    monkeypatch.setattr(reading_stats, "replay", inexact)
    content = device_of_cuda()
    # WHEN more than all that may be free is asked for, THEN it does not fit
    assert only(content).ooms[0].fits_in_free_blocks is False
    # AND whether less fits is known only of what is exact
    content["device_traces"][0][5]["size"] = 4096
    assert only(content).ooms[0].fits_in_free_blocks is (True if is_exact else None)
    # AND in a file of one phase neither is
    content["pytracer"]["window"] = {"phase": "update"}
    assert only(content).ooms[0].fits_in_free_blocks is None
    content["device_traces"][0][5]["size"] = 3 * 2**20
    assert only(content).ooms[0].fits_in_free_blocks is None


def test_a_file_of_one_phase() -> None:
    # GIVEN a file in which what others did meanwhile is missing
    content = device_of_cuda()
    content["pytracer"]["window"] = {"first": 4, "last": 5, "phase": "update", "occurrence": 1}
    # WHEN it is reported, THEN its levels are there, and only the end is exact
    device = only(content)
    assert (device.only_phase, device.is_peak_certain) == ("update", False)
    assert device.lost.exact_from == device.events + 1
    assert device.peak_allocated is not None
    assert (device.peak_allocated.is_exact, device.end.is_exact) == (False, True)
    assert device.peak_allocated.allocated_bytes == 1536
    assert device.peak_allocated.free_concentration is None
    assert all("peak_reserved_bytes" in step.inexact for step in device.steps)
    # AND other files are of no phase
    assert only(device_of_cuda()).only_phase is None


def test_what_would_fit_if_it_were_not_in_pieces() -> None:
    # GIVEN a request as large as all free blocks together, but larger than any of them
    content = device_of_cuda()
    content["device_traces"][0][5]["size"] = SEGMENT - 1024
    # WHEN it fails, THEN that is said
    (oom,) = only(content).ooms
    assert oom.fits_in_free_blocks is True
    assert oom.moment is not None
    assert oom.moment.largest_free_bytes < oom.requested_bytes


def test_a_contradiction_leaves_the_end() -> None:
    # GIVEN a trace that says a block is allocated which is not there in the end
    content = device_of_cuda()
    content["device_traces"][0].insert(3, event("alloc", 4096, 512))
    # WHEN it is reported
    device = only(content)
    # THEN it says why only the end is known, and what can be counted
    assert device.contradiction
    assert device.peak_allocated is device.peak_reserved is None
    assert not device.is_peak_certain
    assert device.series is None
    assert (device.lost.before_bytes, device.lost.exact_from) == (None, None)
    assert device.end.allocated_bytes == 1024
    assert [(site.size_bytes, site.count) for site in device.sites] == [(1024, 1)]
    assert device.counts.allocs == 3
    assert [(step.step, step.peak_bytes) for step in device.steps] == [(4, None), (5, None)]
    (oom,) = device.ooms
    assert oom.moment is oom.fits_in_free_blocks is None


@pytest.mark.parametrize("trace", [[], [event("snapshot", 0, 0)]])
def test_without_events_there_is_no_peak(trace: list[dict[str, Any]]) -> None:
    # GIVEN a file of a time when no events were recorded, but for the marker
    content = device_of_cuda()
    content["device_traces"] = [trace]
    # WHEN it is reported, THEN the end is all that is told
    device = only(content)
    assert device.peak_allocated is device.peak_reserved is None
    assert device.contradiction is None
    assert device.end.allocated_bytes == 1024
    assert [site.size_bytes for site in device.sites] == [1024]
    assert device.series is None


def test_a_list_of_segments_alone() -> None:
    # GIVEN a file as torch wrote it before there were traces
    device = only(device_of_cuda()["segments"])
    assert (device.device, device.name, device.is_cpu, device.events) == (0, "device 0", None, 0)
    assert (device.first_us, device.peak_allocated, device.outside) == (None, None, None)
    assert device.end.reserved_bytes == SEGMENT
    assert device.steps == device.phases == device.ooms == []


def test_a_ring_that_lost_its_beginning() -> None:
    # GIVEN a trace that begins when A and B are there, in a file that tells what it lost
    content = device_of_cuda(overwritten=3)
    del content["device_traces"][0][:3]
    # WHEN it is reported
    device = only(content)
    # THEN it says how much was there before, of which nobody knows who allocated it
    assert device.lost.overwritten == 3
    assert device.lost.before_bytes == 1500
    assert device.peak_allocated is not None
    assert device.peak_allocated.event is device.peak_allocated.time_us is None
    assert device.peak_allocated.requested_bytes == 1500
    assert {phase.phase: phase.at_peak_bytes for phase in device.phases}[None] == 1536


def test_the_peak_of_what_is_not_exact_is_not_certain() -> None:
    # GIVEN a history of which the beginning is not exact
    snapshot = plain_reader.convert(device_of_cuda())
    history = replace(replay(snapshot), exact_from=2)

    # WHEN peaks are judged, THEN the one that is no higher than what was reserved before may have
    # been exceeded, and one that is higher was not
    assert not is_certain(history, 3)
    history.levels.reserved_bytes[:2] = 1000
    assert is_certain(history, 3)

    # AND the moments of that beginning say of themselves that they are not exact
    at = [moment_at(snapshot, 0, history, level, []) for level in (1, 2)]
    assert [moment.is_exact for moment in at] == [False, True]
    # AND a quotient of what is not exact is not told
    assert [moment.free_concentration for moment in at] == [None, 1]


def test_memory_outside_the_allocator() -> None:
    about = {"total_bytes": 100, "free_bytes": 30, "process_bytes": 50, "reserved_bytes": 20}
    told = only(device_of_cuda(**about)).outside
    assert told is not None
    assert (told.outside_bytes, told.others_bytes) == (30, 20)


@pytest.mark.parametrize(
    ("about", "outside_bytes", "others_bytes"),
    [
        (
            {"total_bytes": 9, "free_bytes": 3, "process_bytes": None, "reserved_bytes": 2},
            None,
            None,
        ),
        ({"total_bytes": 9, "free_bytes": 8, "process_bytes": 4, "reserved_bytes": 1}, 3, None),
        ({"total_bytes": 9, "free_bytes": 2, "process_bytes": 4, "reserved_bytes": 5}, None, 3),
        (
            {"total_bytes": 9, "free_bytes": "3", "process_bytes": 4, "reserved_bytes": []},
            None,
            None,
        ),
        ({"total_bytes": 9, "process_bytes": 2**63, "reserved_bytes": 1}, None, None),
    ],
)
def test_what_of_that_is_not_known(
    about: dict[str, object], outside_bytes: int | None, others_bytes: int | None
) -> None:
    told = only(device_of_cuda(**about)).outside
    assert told is not None
    assert (told.outside_bytes, told.others_bytes) == (outside_bytes, others_bytes)


def test_retries() -> None:
    # GIVEN a trace in which memory is given back before more is taken, once, and once in between
    content = device_of_cuda()
    content["device_traces"][0][1:1] = [
        event("segment_alloc", SEGMENT, 9),
        event("segment_free", SEGMENT, 9),
        event("segment_alloc", SEGMENT, 5),
        event("segment_free", SEGMENT, 5),
        event("snapshot", 0, 0),
        event("segment_alloc", SEGMENT, 7),
        event("segment_free", SEGMENT, 7),
    ]
    # WHEN it is reported, THEN the first is a retry, and the one before memory ran out
    assert only(content).counts.retries == 2
    # AND the CPU has none, whatever its segments do
    content["pytracer"]["devices"][0]["is_cpu"] = True
    assert only(content).counts.retries is None


@pytest.mark.parametrize("name", ["cuda-2.12.1", "cuda-2.15.0", "npu-2.13.0"])
def test_golden_files_of_torchs_recorder(name: str) -> None:
    # GIVEN a file that has everything from the beginning, and what the allocator said then
    said = json.loads((GOLDEN / f"native/{name}.json").read_text())
    # WHEN it is reported
    report = stats(load(GOLDEN / f"native/{name}.pickle"))
    # THEN both agree
    for device, expected in zip(report.devices, said, strict=True):
        told = {
            "num_alloc_retries": device.counts.retries,
            "num_ooms": device.counts.ooms,
            **{key: getattr(device.end, key) for key in expected if not key.startswith("num_")},
        }
        assert told == expected


@given(st.integers(1, 2000), st.integers(4, 400), st.integers(0, 2**32))
def test_a_series_keeps_highs_and_lows(entries: int, points: int, seed: int) -> None:
    # GIVEN levels of any kind
    rows = np.random.default_rng(seed).integers(0, 2**40, (entries, 8))
    columns = dict(zip(Levels.__annotations__, rows.T, strict=True))
    levels = Levels(**columns)
    times = np.arange(len(rows) - 1) + FIRST_TIME_US
    history = History(levels, cast(Lifetimes, None), exact_from=3)
    # WHEN a series of so many points at most is made of them
    found = series(cast(Trace, SimpleNamespace(time_us=times)), history, points)
    # THEN all levels are told of the same moments, the first, last and highest among them
    assert found.events == sorted(set(found.events))
    assert (found.events[0], found.events[-1]) == (0, len(rows) - 1)
    assert all(len(values) == len(found.events) <= points for values in vars(found).values())
    assert found.times_us == [None if i == 0 else FIRST_TIME_US + i - 1 for i in found.events]
    for name, level in columns.items():
        if name != "free_squares":
            assert getattr(found, name) == level[found.events].tolist()
    assert max(found.allocated_bytes) == levels.allocated_bytes.max()
    assert max(found.reserved_bytes) == levels.reserved_bytes.max()
    # AND what follows from them
    reserved, free = (
        levels.reserved_bytes - each for each in (levels.allocated_bytes, levels.active_bytes)
    )
    assert found.fragmentation_bytes == reserved[found.events].tolist()
    for entry, value in zip(found.events, found.free_concentration, strict=True):
        squares = float(levels.free_squares[entry])
        is_told = entry >= 3 and free[entry] > 0 and squares > 0
        assert value == (pytest.approx(squares / float(free[entry]) ** 2) if is_told else None)
    # AND with enough points every level's highest and lowest
    if points >= 22:
        for name in columns.keys() - {"free_squares"}:
            told, level = getattr(found, name), columns[name]
            assert (min(told), max(told)) == (level.min(), level.max())
        assert (min(found.fragmentation_bytes), max(found.fragmentation_bytes)) == (
            reserved.min(),
            reserved.max(),
        )


def test_a_series_of_a_level_that_changes_uses_all_points() -> None:
    # GIVEN a long history in which one level alone changes, up and down
    flat = np.broadcast_to(np.int64(5), (100_000,))
    noise = np.random.default_rng(1).integers(0, 1000, len(flat))
    levels = Levels(noise, flat, flat, flat.copy(), flat, flat, flat, flat)
    trace = cast(Trace, SimpleNamespace(time_us=np.arange(len(flat) - 1)))
    # WHEN a series is made of it, THEN its points are where that one is highest and lowest
    found = series(trace, History(levels, cast(Lifetimes, None), 0), 1000)
    assert 990 < len(found.events) <= 1000
    assert max(found.requested_bytes) == 999


def test_a_short_series_has_every_moment() -> None:
    snapshot = run([("alloc", 10, 0), ("alloc", 5, 0)]).snapshot()
    found = series(snapshot.traces[1], replay(snapshot, 1), 5)
    assert found.allocated_bytes == [0, 0, 10, 10, 15]
    assert found.free_concentration == [None, 1, None, 1, None]


def test_too_few_points() -> None:
    snapshot = run([("alloc", 10, 0)]).snapshot()
    with pytest.raises(PytracerError, match="points=3: a series has at least 4"):
        stats(snapshot, points=3)


def test_the_report_is_json() -> None:
    # GIVEN a report with everything in it
    report = stats(load(GOLDEN / "snapshot-1.3-cuda.pickle"))
    # WHEN it is written as JSON, THEN it is plain numbers: numpy's would fail
    (device,) = json.loads(json.dumps(asdict(report)))["devices"]
    assert device["events"] == 52
    # AND `plain` has the same, with names in frames
    (same,) = plain(report)["devices"]
    assert same["sites"][0]["call_site"].keys() == {"filename", "name", "line"}
    assert [*same["sites"][0]["call_site"].values()] == device["sites"][0]["call_site"]
    assert same["series"] == device["series"]


def test_a_device_that_is_not_used_is_left_out() -> None:
    # GIVEN a file with a device that has nothing but the snapshot's marker
    snapshot = load(GOLDEN / "snapshot-1.3-cuda.pickle")
    assert [len(trace) for trace in snapshot.traces] == [52, 1]
    # WHEN it is reported, THEN it is left out, unless it is asked for
    assert [device.device for device in stats(snapshot).devices] == [0]
    assert [device.device for device in stats(snapshot, device=1).devices] == [1]


@pytest.mark.parametrize(
    ("content", "among"), [(device_of_cuda(), "it has 0"), ([], "it has none")]
)
def test_a_device_that_is_not_there(content: Any, among: str) -> None:
    snapshot = plain_reader.convert(content, "made.pickle")
    with pytest.raises(PytracerError, match=rf"made\.pickle: there is no device 7 in it; {among}"):
        stats(snapshot, device=7)


def test_top_limits_the_sites() -> None:
    snapshot = run([("alloc", 10, 0), ("alloc", 30, 2), ("alloc", 20, 3)]).snapshot()
    assert [len(stats(snapshot, 1, top).devices[0].sites) for top in (None, 2, 0)] == [3, 2, 0]


def test_a_stranger_may_claim_anything() -> None:
    # GIVEN a file whose `pytracer` is not what pytracer writes
    content = device_of_cuda()
    content["pytracer"] = {"devices": 7, "backends": "cuda", "stacks": None}
    # WHEN it is reported, THEN it is as a file that tells nothing
    device = only(content)
    assert (device.name, device.is_cpu, device.steps) == ("device 0", None, [])
    assert device.lost.overwritten is None


def test_levels_are_whole_numbers() -> None:
    device = only(device_of_cuda())
    for moment in (device.end, device.peak_allocated):
        assert not any(isinstance(value, np.generic) for value in vars(moment).values())
