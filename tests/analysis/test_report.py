"""Test the report on small snapshots with numbers counted by hand, and on golden files."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import reference_reader
from hypothesis import given
from hypothesis import strategies as st
from synthetic_program import FIRST_TIME_US, run
from synthetic_snapshots import inexact

from pytracer.analysis import device_data, ooms
from pytracer.analysis.history import History, Lifetimes, Usage, replay
from pytracer.analysis.report import DeviceReport, stats
from pytracer.analysis.usage import UsageSample, sample_at, series
from pytracer.errors import PytracerError
from pytracer.reading import load
from pytracer.reading.snapshot import Frame, Trace
from pytracer.reading.to_json import to_json

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


def cuda_content(**device_metadata: object) -> dict[str, Any]:
    """Return a 2 MiB segment: A and B are allocated, A is freed, and a 3 MiB request fails."""
    events = [
        event("segment_alloc", 0, SEGMENT),
        event("alloc", 0, 500, "rollout"),
        event("alloc", 512, 1000, "update"),
        event("free_requested", 0, 500),
        event("free_completed", 0, 500),
        event("oom", 4096, 3 * 2**20, "update"),
        event("snapshot", 0, 0),
    ]
    for i, entry in enumerate(events):
        entry["time_us"] = FIRST_TIME_US + 10 * i
    blocks = [
        {"address": 0, "size": 512, "state": "inactive"},
        {"address": 512, "size": 1024, "requested_size": 1000, "state": "active_allocated"},
        {"address": 1536, "size": SEGMENT - 1536, "state": "inactive"},
    ]
    segment = {"device": 0, "address": 0, "total_size": SEGMENT, "blocks": blocks}
    device = {"index": 0, "is_cpu": False, "overwritten": 0, "steps": [[4, 0], [5, 3]]}
    device |= device_metadata
    return {
        "segments": [segment],
        "device_traces": [events],
        "pytracer": {"backends": ["cuda"], "devices": [device], "rank": 3},
    }


def only_device(content: Any, **options: Any) -> DeviceReport:
    (device,) = stats(reference_reader.convert(content, "made.pickle"), **options).devices
    return device


def test_the_levels() -> None:
    # WHEN a device is reported
    device = only_device(cuda_content())
    # THEN the peak is after B's allocation, and every number is the one counted by hand
    tail = SEGMENT - 1536
    assert device.peak_allocated == UsageSample(
        event=2,
        time_us=FIRST_TIME_US + 20,
        step=4,
        phase="update",
        is_exact=True,
        uncertain_bytes=0,
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
    # AND the reserved peak is reached as soon as the segment has its first block
    assert device.peak_reserved is not None
    assert (device.peak_reserved.event, device.peak_reserved.reserved_bytes) == (1, SEGMENT)
    assert device.peak_reserved.inactive_split_bytes == SEGMENT - 512
    # AND at the end A's block is free
    assert device.end == UsageSample(
        event=6,
        time_us=FIRST_TIME_US + 60,
        step=5,
        phase="",
        is_exact=True,
        uncertain_bytes=0,
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


def test_a_block_with_a_pending_free_is_active_and_not_allocated() -> None:
    # GIVEN the time when the program has freed A, which a stream still uses
    snapshot = reference_reader.convert(cuda_content())
    # WHEN usage is sampled, THEN A is active, and its rounding counts
    sample = sample_at(snapshot, 0, replay(snapshot), 4, [])
    assert (sample.active_bytes, sample.allocated_bytes) == (1536, 1024)
    assert (sample.requested_bytes, sample.rounding_bytes) == (1500, 36)
    assert sample.fragmentation_bytes == SEGMENT - 1024
    assert sample.free_bytes == SEGMENT - 1536


def test_an_entirely_free_segment_is_not_split() -> None:
    # GIVEN a segment that is one free block, and an expandable one with a free block in it
    content = cuda_content()
    free = {"address": 10 * SEGMENT, "size": SEGMENT, "state": "inactive"}
    content["segments"].append(
        {"device": 0, "address": 10 * SEGMENT, "total_size": SEGMENT, "blocks": [free]}
    )
    expandable = {**content["segments"][0], "is_expandable": True}
    # WHEN the end is reported, THEN neither counts as split
    assert only_device(content["segments"]).end.inactive_split_bytes == SEGMENT - 1024
    assert only_device([expandable]).end.inactive_split_bytes == 0
    # AND the expandable one is not counted as a segment, as in torch
    assert (
        only_device(content["segments"]).end.segments,
        only_device([expandable]).end.segments,
    ) == (2, 0)


def test_the_rest_of_the_report() -> None:
    device = only_device(cuda_content())
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
    (oom,) = only_device(cuda_content()).ooms
    assert (oom.event, oom.time_us, oom.step, oom.phase) == (5, FIRST_TIME_US + 50, 5, "update")
    assert (oom.requested_bytes, oom.device_free_bytes) == (3 * 2**20, 4096)
    assert oom.call_site == Frame("train.py", "step", 3)
    assert oom.sample is not None
    assert oom.sample.free_bytes == SEGMENT - 1024
    assert oom.fits_in_free_blocks is False


@pytest.mark.parametrize("is_exact", [True, False])
def test_whether_a_request_fits_if_free_bytes_are_a_bound(
    is_exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a history that may be inexact when memory runs out, as if other events followed
    monkeypatch.setattr(ooms, "_event_at_end", lambda _: -1)

    def replayed(*arguments: Any) -> Any:
        return inexact(replay(*arguments), 0 if is_exact else 7)

    monkeypatch.setattr(device_data, "replay", replayed)
    content = cuda_content()
    # WHEN more than all possibly free memory is requested, THEN the request does not fit
    assert only_device(content).ooms[0].fits_in_free_blocks is False
    # AND whether a smaller request fits is known only if levels are exact
    content["device_traces"][0][5]["size"] = 4096
    assert only_device(content).ooms[0].fits_in_free_blocks is (True if is_exact else None)
    # AND in a file of one phase it is always unknown
    content["pytracer"]["window"] = {"phase": "update"}
    assert only_device(content).ooms[0].fits_in_free_blocks is None
    content["device_traces"][0][5]["size"] = 3 * 2**20
    assert only_device(content).ooms[0].fits_in_free_blocks is None


def test_a_file_of_one_phase() -> None:
    # GIVEN a file that lacks the events of other phases
    content = cuda_content()
    content["pytracer"]["window"] = {"first": 4, "last": 5, "phase": "update", "occurrence": 1}
    # WHEN it is reported, THEN it has levels, but only the end is exact
    device = only_device(content)
    assert (device.only_phase, device.is_peak_certain) == ("update", False)
    assert device.lost.exact_from == device.events + 1
    assert device.peak_allocated is not None
    assert (device.peak_allocated.is_exact, device.end.is_exact) == (False, True)
    assert device.peak_allocated.allocated_bytes == 1536
    assert device.peak_allocated.free_concentration is None
    assert all("peak_reserved_bytes" in step.inexact for step in device.steps)
    # AND other files have no such phase
    assert only_device(cuda_content()).only_phase is None


def test_a_request_that_fits_into_free_blocks_together() -> None:
    # GIVEN a request as large as all free blocks together, but larger than any of them
    content = cuda_content()
    content["device_traces"][0][5]["size"] = SEGMENT - 1024
    # WHEN it fails, THEN the report says that free blocks together are large enough
    (oom,) = only_device(content).ooms
    assert oom.fits_in_free_blocks is True
    assert oom.sample is not None
    assert oom.sample.largest_free_bytes < oom.requested_bytes


def test_a_request_that_fits_into_segments_and_device_together() -> None:
    # GIVEN a request that is larger than the free memory in segments, and than that of the device
    content = cuda_content(total_bytes=10 * SEGMENT)
    oom = content["device_traces"][0][5]
    oom["device_free"], inside = 2 * SEGMENT, SEGMENT - 1024
    # WHEN both together are large enough, THEN the report says so, and how much is held elsewhere
    oom["size"] = 2 * SEGMENT + inside
    (found,) = only_device(content).ooms
    assert (found.fits_in_largest_block, found.fits_in_free_blocks) == (False, False)
    assert found.fits_if_joined is True
    assert (found.available_bytes, found.free_in_segments_bytes) == (2 * SEGMENT, inside)
    assert found.elsewhere_bytes == 7 * SEGMENT
    # AND a request of one more byte does not fit
    oom["size"] += 1
    assert only_device(content).ooms[0].fits_if_joined is False
    # AND a smaller request fits into a block, which belongs to another stream or pool
    oom["size"] = 1024
    (found,) = only_device(content).ooms
    assert (found.fits_in_largest_block, found.fits_in_free_blocks) == (True, True)


@pytest.mark.parametrize(
    ("device_metadata", "available_bytes"),
    [
        ({"statistics": {"memory_fraction": 0.25}, "total_bytes": 8 * SEGMENT}, SEGMENT),
        ({"statistics": {"memory_fraction": 1.0}, "total_bytes": 8 * SEGMENT}, 4 * SEGMENT),
        ({"statistics": {"memory_fraction": 0.25}}, 4 * SEGMENT),
        ({"statistics": 3, "total_bytes": 8 * SEGMENT}, 4 * SEGMENT),
        ({"oom": {"device": 0, "total_bytes": 3 * SEGMENT}}, 2 * SEGMENT),
        ({"oom": {"device": 0, "total_bytes": 5}}, 0),
        ({"oom": {"device": 1, "total_bytes": 5}}, 4 * SEGMENT),
        ({"oom": {"device": -1, "total_bytes": 5}}, 4 * SEGMENT),
        ({"oom": 3}, 4 * SEGMENT),
    ],
)
def test_a_limit_of_the_process(device_metadata: dict[str, Any], available_bytes: int) -> None:
    # GIVEN a process that may not use all of the device, and has reserved a segment
    oom = device_metadata.pop("oom", None)
    content = cuda_content(**device_metadata)
    content["pytracer"]["oom"] = oom
    content["device_traces"][0][5] |= {"device_free": 4 * SEGMENT, "size": 3 * SEGMENT}
    # WHEN memory runs out, THEN only memory within the limit is available
    (found,) = only_device(content).ooms
    assert (found.device_free_bytes, found.available_bytes) == (4 * SEGMENT, available_bytes)
    assert found.fits_if_joined is (available_bytes == 4 * SEGMENT)


@pytest.mark.parametrize(
    ("metadata", "is_of_this_device"),
    [
        ({"oom": {"device": 0}}, True),
        ({"oom": {"device": 1}}, False),
        ({"oom": {"device": -1}}, False),
        ({"oom": None}, False),
        (None, True),
    ],
)
def test_the_sites_at_an_out_of_memory(
    metadata: dict[str, Any] | None, is_of_this_device: bool
) -> None:
    # GIVEN a file of an out-of-memory after A's free; in torch's own files it is the last event
    content = cuda_content()
    if metadata is None:
        del content["pytracer"]
    else:
        content["pytracer"] |= metadata
    # WHEN it is reported, THEN it has the sites of the out-of-memory, and those of the peak
    device = only_device(content)
    assert [site.size_bytes for site in device.sites] == [1536]
    found = None if device.sites_at_oom is None else [s.size_bytes for s in device.sites_at_oom]
    assert found == ([1024] if is_of_this_device else None)
    # AND a file of torch's recorder with later events is not of an out-of-memory
    content["device_traces"][0].append(event("alloc", 0, 500))
    content["segments"][0]["blocks"][0] |= {"state": "active_allocated", "requested_size": 500}
    expected = is_of_this_device and metadata is not None
    assert (only_device(content).sites_at_oom is not None) == expected


def test_an_out_of_memory_of_the_cpu() -> None:
    # GIVEN an out-of-memory of the CPU, whose file has device -1
    content = run([("alloc", 10, 0)]).content()
    content["device_traces"][1].append(event("oom", 4096, 3000))
    content["pytracer"]["oom"] = {"device": -1, "total_bytes": 5}
    # WHEN it is reported, THEN it has sites; limits and joined memory apply to accelerators only
    device = only_device(content, device=1)
    assert [site.size_bytes for site in device.sites_at_oom or []] == [10]
    (oom,) = device.ooms
    assert (oom.fits_if_joined, oom.available_bytes) == (None, 4096)


def test_a_contradiction_leaves_the_end() -> None:
    # GIVEN a trace with an allocated block that is not in the state at the end
    content = cuda_content()
    content["device_traces"][0].insert(3, event("alloc", 4096, 512))
    # WHEN it is reported
    device = only_device(content)
    # THEN the report has the reason, the end, and the counts of events
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
    assert oom.sample is oom.fits_in_free_blocks is oom.free_in_segments_bytes is None
    assert oom.fits_in_largest_block is oom.fits_if_joined is oom.elsewhere_bytes is None
    assert device.sites_at_oom is device.peak_most_bytes is None


@pytest.mark.parametrize("trace", [[], [event("snapshot", 0, 0)]])
def test_without_events_there_is_no_peak(trace: list[dict[str, Any]]) -> None:
    # GIVEN a file without any events but the snapshot marker
    content = cuda_content()
    content["device_traces"] = [trace]
    # WHEN it is reported, THEN the report has only the end
    device = only_device(content)
    assert device.peak_allocated is device.peak_reserved is None
    assert device.contradiction is None
    assert device.end.allocated_bytes == 1024
    assert [site.size_bytes for site in device.sites] == [1024]
    assert device.series is None


def test_a_list_of_segments_alone() -> None:
    # GIVEN a file of a torch version that wrote no traces
    device = only_device(cuda_content()["segments"])
    assert (device.device, device.name, device.is_cpu, device.events) == (0, "device 0", None, 0)
    assert (device.first_us, device.peak_allocated, device.outside) == (None, None, None)
    assert device.end.reserved_bytes == SEGMENT
    assert device.steps == device.phases == device.ooms == []


def test_a_ring_that_lost_its_first_events() -> None:
    # GIVEN a trace that begins after A's and B's allocations, in a file with the number of losses
    content = cuda_content(overwritten=3)
    del content["device_traces"][0][:3]
    # WHEN it is reported
    device = only_device(content)
    # THEN the report has the bytes held before, whose phase is unknown
    assert device.lost.overwritten == 3
    assert device.lost.before_bytes == 1500
    assert device.peak_allocated is not None
    assert device.peak_allocated.event is device.peak_allocated.time_us is None
    assert device.peak_allocated.requested_bytes == 1500
    assert {phase.phase: phase.at_peak_bytes for phase in device.phases}[None] == 1536


def test_an_inexact_peak_is_uncertain(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a history whose second level may be 1000 bytes higher
    snapshot = reference_reader.convert(cuda_content())
    history = replace(inexact(replay(snapshot), 2), uncertain_bytes=np.array([0, 1000]))
    monkeypatch.setattr(device_data, "replay", lambda *_: history)

    # WHEN it is reported, THEN the peak is certain, because it is higher than this level's bound
    device = only_device(cuda_content())
    assert (device.is_peak_certain, device.peak_most_bytes) == (True, 1536)
    # AND a peak that is lower than the bound is uncertain
    history.uncertain_bytes[1] = 2000
    device = only_device(cuda_content())
    assert (device.is_peak_certain, device.peak_most_bytes) == (False, 2000)

    # AND samples of inexact levels say so, and have no quotients
    samples = [sample_at(snapshot, 0, history, level, []) for level in (0, 1, 2)]
    assert [sample.is_exact for sample in samples] == [True, False, True]
    assert [sample.uncertain_bytes for sample in samples] == [0, 2000, 0]
    assert [sample.free_concentration for sample in samples] == [None, None, 1]


def test_memory_outside_the_allocator() -> None:
    amounts = {"total_bytes": 100, "free_bytes": 30, "process_bytes": 50, "reserved_bytes": 20}
    outside = only_device(cuda_content(**amounts)).outside
    assert outside is not None
    assert (outside.elsewhere_bytes, outside.outside_bytes, outside.others_bytes) == (50, 30, 20)


@pytest.mark.parametrize(
    ("amounts", "elsewhere_bytes", "outside_bytes", "others_bytes"),
    [
        (
            {"total_bytes": 9, "free_bytes": 3, "process_bytes": None, "reserved_bytes": 2},
            4,
            None,
            None,
        ),
        ({"total_bytes": 9, "free_bytes": 8, "process_bytes": 4, "reserved_bytes": 1}, 0, 3, None),
        ({"total_bytes": 9, "free_bytes": 2, "process_bytes": 4, "reserved_bytes": 5}, 2, None, 3),
        ({"total_bytes": 9, "free_bytes": 2, "reserved_bytes": 8}, None, None, None),
        (
            {"total_bytes": 9, "free_bytes": "3", "process_bytes": 4, "reserved_bytes": []},
            None,
            None,
            None,
        ),
        ({"total_bytes": 9, "process_bytes": 2**63, "reserved_bytes": 1}, None, None, None),
    ],
)
def test_unknown_memory_outside_the_allocator(
    amounts: dict[str, object],
    elsewhere_bytes: int | None,
    outside_bytes: int | None,
    others_bytes: int | None,
) -> None:
    outside = only_device(cuda_content(**amounts)).outside
    assert outside is not None
    assert outside.elsewhere_bytes == elsewhere_bytes
    assert (outside.outside_bytes, outside.others_bytes) == (outside_bytes, others_bytes)


def test_retries() -> None:
    # GIVEN a trace in which segments are freed once for a retry, and once between other events
    content = cuda_content()
    content["device_traces"][0][1:1] = [
        event("segment_alloc", SEGMENT, 9),
        event("segment_free", SEGMENT, 9),
        event("segment_alloc", SEGMENT, 5),
        event("segment_free", SEGMENT, 5),
        event("snapshot", 0, 0),
        event("segment_alloc", SEGMENT, 7),
        event("segment_free", SEGMENT, 7),
    ]
    # WHEN it is reported, THEN the first counts as a retry, and so does that of the out-of-memory
    assert only_device(content).counts.retries == 2
    # AND the CPU has no retries, even with segment events
    content["pytracer"]["devices"][0]["is_cpu"] = True
    assert only_device(content).counts.retries is None


@pytest.mark.parametrize("name", ["cuda-2.12.1", "cuda-2.15.0", "npu-2.13.0"])
def test_golden_files_of_torchs_recorder(name: str) -> None:
    # GIVEN a file with all events, and the statistics that the allocator reported then
    statistics = json.loads((GOLDEN / f"native/{name}.json").read_text())
    # WHEN it is reported
    report = stats(load(GOLDEN / f"native/{name}.pickle"))
    # THEN both agree
    for device, expected in zip(report.devices, statistics, strict=True):
        reported = {
            "num_alloc_retries": device.counts.retries,
            "num_ooms": device.counts.ooms,
            **{key: getattr(device.end, key) for key in expected if not key.startswith("num_")},
        }
        assert reported == expected


@given(st.integers(1, 2000), st.integers(4, 400), st.integers(0, 2**32))
def test_a_series_keeps_highs_and_lows(entries: int, points: int, seed: int) -> None:
    # GIVEN random levels
    rows = np.random.default_rng(seed).integers(0, 2**40, (entries, 8))
    columns = dict(zip(Usage.__annotations__, rows.T, strict=True))
    usage = Usage(**columns)
    times = np.arange(len(rows) - 1) + FIRST_TIME_US
    history = History(usage, cast(Lifetimes, None), exact_from=3, uncertain_bytes=np.zeros(3, int))
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


def test_the_report_is_json() -> None:
    # GIVEN a report with all parts
    report = stats(load(GOLDEN / "snapshot-1.3-cuda.pickle"))
    # WHEN it is written as JSON, THEN its numbers are Python's, because numpy's would fail
    (device,) = json.loads(json.dumps(asdict(report)))["devices"]
    assert device["events"] == 52
    # AND `to_json` returns the same, with names in frames
    (same,) = to_json(report)["devices"]
    assert same["sites"][0]["call_site"].keys() == {"filename", "name", "line"}
    assert [*same["sites"][0]["call_site"].values()] == device["sites"][0]["call_site"]
    assert same["series"] == device["series"]


def test_a_device_that_is_not_used_is_left_out() -> None:
    # GIVEN a file with a device that has only the snapshot marker
    snapshot = load(GOLDEN / "snapshot-1.3-cuda.pickle")
    assert [len(trace) for trace in snapshot.traces] == [52, 1]
    # WHEN it is reported, THEN this device is left out unless it is requested
    assert [device.device for device in stats(snapshot).devices] == [0]
    assert [device.device for device in stats(snapshot, device=1).devices] == [1]


@pytest.mark.parametrize(
    ("content", "among"), [(cuda_content(), "it has 0"), ([], "it has no devices")]
)
def test_a_missing_device(content: Any, among: str) -> None:
    snapshot = reference_reader.convert(content, "made.pickle")
    with pytest.raises(PytracerError, match=rf"made\.pickle has no device 7: {among}"):
        stats(snapshot, device=7)


def test_top_limits_the_sites() -> None:
    snapshot = run([("alloc", 10, 0), ("alloc", 30, 2), ("alloc", 20, 3)]).snapshot()
    assert [len(stats(snapshot, 1, top).devices[0].sites) for top in (None, 2, 0)] == [3, 2, 0]


def test_malformed_metadata_is_ignored() -> None:
    # GIVEN a file whose `pytracer` key has values that pytracer does not write
    content = cuda_content()
    content["pytracer"] = {"devices": 7, "backends": "cuda", "stacks": None}
    # WHEN it is reported, THEN the report is that of a file without metadata
    device = only_device(content)
    assert (device.name, device.is_cpu, device.steps) == ("device 0", None, [])
    assert device.lost.overwritten is None


def test_levels_are_python_numbers() -> None:
    device = only_device(cuda_content())
    for sample in (device.end, device.peak_allocated):
        assert not any(isinstance(value, np.generic) for value in vars(sample).values())
