"""Test the file: its opcodes, shared values, large lists, documented keys, and old files."""

import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from core_events import ALLOC, FREE, Probe, started_session
from viewed_pickles import check_opcodes
from viewers import check_snapshot

from pytracer import _core

ACCELERATOR_KEYS = {"reserved_bytes", "total_bytes", "free_bytes", "process_bytes"}
STATISTICS_KEYS = {
    *("peak_reserved_bytes", "peak_allocated_bytes"),
    *("device_allocs", "device_frees", "retries", "ooms"),
}
GOLDEN = Path(__file__).parents[1] / "golden"
DEVICE_KEYS = {"index", "is_cpu", "recorded", "overwritten", "unknown_frees", "live_dropped"}
STACKS_KEYS = {"count", "truncated", "dropped", "bytes", "max_bytes"}


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


def test_integers_and_strings_of_any_size() -> None:
    # GIVEN values at the limits of the opcodes
    numbers = [0, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**39, 2**40, 2**62, 2**63 - 1]
    numbers += [-number for number in numbers] + [-(2**63)]
    metadata: dict[str, Any] = {
        "n": numbers,
        "s": ["", "x" * 255, "x" * 256, "é" * 200_000, "\ud800"],
        "f": [0.5, -1e300],
    }
    metadata |= {"d": {"a": {"b": [None, True, False]}}}
    # WHEN they are written and read back, THEN they are the same
    snapshot = pickle.loads(snapshot_bytes(started_session(), metadata))
    assert {key: snapshot["pytracer"][key] for key in metadata} == metadata


def test_unsupported_values_are_refused() -> None:
    for value in (object(), 2**63, {1, 2}, b"bytes"):
        with pytest.raises(TypeError, match="a snapshot cannot hold"):
            started_session().view().to_bytes({"x": value}, {})


def test_times_are_wall_times_and_never_change() -> None:
    # GIVEN events recorded between two known times
    recorder = started_session()
    before = time.time_ns()
    for block in range(1, 50):
        _core.testing.record(ALLOC, 64 * block, 8)
        time.sleep(0.001)
    after = time.time_ns()
    # WHEN their times are read
    first = recorder.events()["time_ns"]
    # THEN the times lie between the two, in order, with the original distances
    slack = 1_000_000
    assert before - slack <= first[0] <= first[-1] <= after + slack
    assert (first[1:] >= first[:-1]).all()
    assert first[-1] - first[0] > 40_000_000
    # AND later reads return the same times
    time.sleep(0.05)
    assert (recorder.events()["time_ns"] == first).all()


def test_stacks_beyond_the_bound_are_left_out_and_counted() -> None:
    # GIVEN a stack table with little room
    recorder = started_session(stack_bytes=2**16)
    # WHEN many stacks are recorded
    for number in range(2_000):
        scope = {"record": _core.testing.record}
        exec(f"def f{number}():\n record(0, 64 + 64 * {number}, 8)\nf{number}()", scope)
    # THEN the bound holds, some events have a stack, and the file counts the dropped stacks
    stacks = recorder.stats()["stacks"]
    without = int((recorder.events()["stack"] == 0).sum())
    assert stacks["bytes"] <= stacks["max_bytes"] == 2**16
    assert 0 < without < 2_000
    assert stacks["dropped"] == without
    assert pickle.loads(snapshot_bytes(recorder))["pytracer"]["stacks"]["dropped"] == without


def golden_files() -> list[Path]:
    files = sorted(GOLDEN.glob("snapshot-*.pickle"))
    assert files, "the golden files are missing"
    return files


@pytest.mark.parametrize("path", golden_files(), ids=lambda path: path.stem)
def test_files_of_every_format_version(path: Path) -> None:
    # GIVEN a file that a released version wrote (with tests/golden/make.py of that version)
    # WHEN the file is read
    check_opcodes(path.read_bytes())
    snapshot = pickle.loads(path.read_bytes())
    # THEN viewers accept it, and it has the documented keys
    check_snapshot(snapshot)
    metadata = snapshot["pytracer"]
    major, minor = metadata["format_version"]
    assert f"{path.stem}-".startswith(f"snapshot-{major}.{minor}-")
    assert set(metadata) >= {"version", "written_ns", "pid", "host", "torch", "python", "backends"}
    assert set(metadata) >= {"trace_alloc_max_entries", "stack_depth", "context", "max_stack_bytes"}
    assert set(metadata) >= {"untraced", "metadata", "devices", "stacks"}
    assert set(metadata["devices"][0]) >= DEVICE_KEYS
    assert set(metadata["stacks"]) >= STACKS_KEYS
    if minor >= 1:
        assert "torch_npu" in metadata
        assert "labels_dropped" in metadata["devices"][0]
    if minor >= 4:
        assert "settings" in metadata
    if minor >= 5:
        assert set(metadata["tensors"]) >= {"read", "unread", "unread_gradients"}
        blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
        named = {(block["category"], block["owner"]) for block in blocks if "owner" in block}
        weight = "weight" if minor == 5 else "0.weight"
        assert named >= {("parameter", weight), ("gradient", f"grad of {weight}")}
    if minor >= 6:
        named = {"models": ["Sequential"], "paths": ["0", "1"]}
        assert metadata["module_phases"].items() >= named.items()
        forward = {event.get("forward_phase") for event in snapshot["device_traces"][0]}
        assert forward >= {"0", None}
    if minor >= 8:
        uses = metadata["devices"][0]["uses"]
        assert [role for _, _, role in uses] == ["argument", "result"]
        known = {event["addr"] for event in snapshot["device_traces"][0] if "addr" in event}
        assert {address for _, address, _ in uses} <= known
    if minor >= 9:
        assert metadata["torch_folders"] == ["/venv/lib/python3.11/site-packages/torch"]
    if minor >= 10:
        assert [5, "return x.relu() @ x.T"] in metadata["source_lines"]["/tmp/golden/train.py"]
    if path.stem.endswith("-cuda"):
        if minor >= 4:
            assert set(metadata["devices"][0]["statistics"]) >= STATISTICS_KEYS
        assert set(metadata["devices"][0]) >= ACCELERATOR_KEYS
        assert "expandable_segments" in snapshot["allocator_settings"]
        # The marker of a snapshot is in the files of the first versions only.
        is_marked = snapshot["device_traces"][0][-1]["action"] == "snapshot"
        assert is_marked == (minor < 9)
    events = snapshot["device_traces"][0]
    assert {frame["name"] for event in events for frame in event["frames"]} >= {"step", "forward"}
