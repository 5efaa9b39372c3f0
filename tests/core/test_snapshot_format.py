"""Test the file: its opcodes, shared values, large lists, documented keys, and old files."""

import pickle
from typing import Any

import pytest
from core_events import ALLOC, FREE, Probe, started_session
from viewed_pickles import check_opcodes
from viewers import check_snapshot

from pytracer import _core


def snapshot_bytes(recorder: Any, metadata: dict[str, Any] | None = None) -> bytes:
    data: bytes = recorder.view().to_bytes(metadata or {}, {})
    return data


def test_events_are_expanded_for_viewers() -> None:
    # GIVEN a block that stays allocated and one that is freed
    recorder = started_session()
    _core.testing.record(ALLOC, 4096, 100)
    _core.testing.record(ALLOC, 8192, 2**20)
    _core.testing.record(FREE, 4096, 0)
    # WHEN the snapshot is written
    data = snapshot_bytes(recorder)
    snapshot = pickle.loads(data)
    # THEN viewers accept the file, and each allocation is a segment of its own
    check_opcodes(data)
    check_snapshot(snapshot)
    (trace,) = snapshot["device_traces"]
    assert [(event["action"], event["addr"], event["size"]) for event in trace] == [
        ("segment_alloc", 4096, 100),
        ("alloc", 4096, 100),
        ("segment_alloc", 8192, 2**20),
        ("alloc", 8192, 2**20),
        ("free_requested", 4096, 100),
        ("free_completed", 4096, 100),
        ("segment_free", 4096, 100),
    ]
    (segment,) = snapshot["segments"]
    assert (segment["address"], segment["total_size"]) == (8192, 2**20)
    assert (segment["segment_type"], segment["device"]) == ("large", 0)


def test_every_stack_frame_and_string_is_written_once() -> None:
    # GIVEN events with several stacks, two of which differ only in the instruction within a line
    recorder = started_session()
    probe = Probe()
    for _ in range(50):
        probe(), probe()
        (lambda: probe())()
        [probe() for _ in range(2)]
    # WHEN the snapshot is written
    written = check_opcodes(snapshot_bytes(recorder))
    # THEN no value is written twice, and the two stacks of one line are merged
    assert written.repeated() == []
    assert recorder.stats()["stacks"]["stacks"] > len(written.stacks) >= 3


@pytest.mark.slow
@pytest.mark.long
def test_lists_longer_than_a_viewer_takes_at_once() -> None:
    # GIVEN more events and more live blocks than JavaScript can pass in one call
    recorder = started_session()
    for block in range(70_000):
        _core.testing.record(ALLOC, 64 + 64 * block, 8)
    # WHEN the snapshot is written, THEN batches are short (see `check_opcodes`), and complete
    snapshot = check_opcodes(snapshot_bytes(recorder)).root
    assert len(snapshot["device_traces"][0]) == 140_000
    assert len(snapshot["segments"]) == 70_000


def test_unsupported_values_are_refused() -> None:
    for value in (object(), 2**63, {1, 2}, b"bytes"):
        with pytest.raises(TypeError, match="a snapshot cannot hold"):
            started_session().view().to_bytes({"x": value}, {})
