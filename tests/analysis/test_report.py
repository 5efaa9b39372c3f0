"""What does the report say of memory at the peak and at the end?"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_reader
from small_reports import SEGMENT, cuda_content, event, only_device
from synthetic_program import FIRST_TIME_US
from synthetic_snapshots import inexact

from pytracer.analysis import device_data
from pytracer.analysis.history import replay
from pytracer.analysis.report import DeviceReport, stats
from pytracer.analysis.usage import UsageSample, sample_at
from pytracer.errors import PytracerError
from pytracer.reading import load
from pytracer.reading.to_json import to_json

GOLDEN = Path(__file__).parents[1] / "golden"


def held_by(device: DeviceReport, by: str, *moments: str) -> list[tuple[int, int]]:
    held = device.held_by(by, *moments)
    return [] if held is None else [(group.size_bytes, group.count) for group in held.groups]


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
    assert device.end == replace(
        device.peak_allocated,
        event=6,
        time_us=FIRST_TIME_US + 60,
        step=5,
        phase="",
        requested_bytes=1000,
        allocated_bytes=1024,
        active_bytes=1024,
        fragmentation_bytes=SEGMENT - 1024,
        rounding_bytes=24,
        inactive_split_bytes=SEGMENT - 1024,
        free_concentration=(512**2 + tail**2) / (512 + tail) ** 2,
    )


def test_a_block_with_a_pending_free_is_active_and_not_allocated() -> None:
    # GIVEN the time when the program has freed A, which a stream still uses
    snapshot = reference_reader.convert(cuda_content())
    # WHEN usage is sampled, THEN A is active, and its rounding counts
    sample = sample_at(device_data.device_data(snapshot, 0), 4)
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
    assert held_by(device, "line", "peak") == [(1536, 2)]
    assert [(step.step, step.peak_bytes) for step in device.steps] == [(4, 1536), (5, 1536)]
    held = {phase.phase: (phase.at_peak_bytes, phase.end_bytes) for phase in device.phases}
    assert held == {"": (0, 0), "rollout": (512, 0), "update": (1024, 1024)}
    assert device.outside is None
    counts = device.counts
    assert (counts.allocs, counts.frees, counts.ooms) == (2, 1, 1)
    assert (counts.device_allocs, counts.device_frees, counts.retries) == (1, 0, 1)


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
    assert not any(step.is_exact for step in device.steps)
    # AND other files have no such phase
    assert only_device(cuda_content()).only_phase is None


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
    assert (device.lost.before_bytes, device.lost.exact_from) == (None, None)
    assert device.end.allocated_bytes == 1024
    assert [held.moment.name for held in device.held] == ["end"]
    assert held_by(device, "line", "end") == [(1024, 1)]
    assert device.counts.allocs == 3
    assert [(step.step, step.peak_bytes) for step in device.steps] == [(4, None), (5, None)]
    (oom,) = device.ooms
    assert oom.sample is oom.fits_in_free_blocks is oom.free_in_segments_bytes is None
    assert oom.fits_in_largest_block is oom.fits_if_joined is oom.elsewhere_bytes is None


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
    assert held_by(device, "line", "peak", "end") == [(1024, 1)]


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
    assert only_device(cuda_content()).is_peak_certain
    # AND a peak that is lower than the bound is uncertain
    history.uncertain_bytes[1] = 2000
    assert not only_device(cuda_content()).is_peak_certain

    # AND samples of inexact levels say so, and have no quotients
    data = device_data.device_data(snapshot, 0)
    samples = [sample_at(data, level) for level in (0, 1, 2)]
    assert [sample.is_exact for sample in samples] == [True, False, True]
    assert [sample.uncertain_bytes for sample in samples] == [0, 2000, 0]
    assert [sample.free_concentration for sample in samples] == [None, None, 1]


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


def test_the_report_is_json() -> None:
    # GIVEN a report with all parts
    report = stats(load(GOLDEN / "snapshot-1.3-cuda.pickle"))
    # WHEN it is written as JSON, THEN its numbers are Python's, because numpy's would fail
    (device,) = json.loads(json.dumps(asdict(report)))["devices"]
    assert device["events"] == 52
    # AND `to_json` returns the same, with names in frames
    (same,) = to_json(report)["devices"]
    named, plain = (each["held"][0]["groups"][0]["frames"][0] for each in (same, device))
    assert named.keys() == {"filename", "name", "line"}
    assert [*named.values()] == plain


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
