"""What does the report say of memory at the peak and at the end?"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_reader
from small_reports import SEGMENT, cuda_content, event, only_device
from synthetic_snapshots import inexact

from pytracer.analysis import device_data
from pytracer.analysis.history import replay
from pytracer.analysis.report import DeviceReport, stats
from pytracer.analysis.usage import sample_at
from pytracer.errors import PytracerError
from pytracer.reading import load

GOLDEN = Path(__file__).parents[1] / "golden"


def held_by(device: DeviceReport, by: str, *moments: str) -> list[tuple[int, int]]:
    held = device.held_by(by, *moments)
    return [] if held is None else [(group.size_bytes, group.count) for group in held.groups]


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
