"""Tests with files of every format version of pytracer, and of PyTorch's own recorder.

The files were written by tests/golden/make.py and make_native.py.
"""

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import reference_reader
from snapshot_equality import assert_same

from pytracer.analysis.history import Usage, replay
from pytracer.reading.reader import load
from pytracer.reading.snapshot import ALLOCATED, INACTIVE, OOM, Snapshot

GOLDEN = Path(__file__).parents[1] / "golden"
NATIVE = sorted(GOLDEN.glob("native/*.pickle"))
OURS = sorted(GOLDEN.glob("snapshot-*.pickle"))
assert NATIVE, "the golden files of PyTorch's own recorder are missing"
assert OURS, "the golden files of pytracer are missing"

MIB = 2**20

ours = pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
native = pytest.mark.parametrize("path", NATIVE, ids=lambda path: path.stem)
with_traces = pytest.mark.parametrize(
    "path", [path for path in NATIVE if path.stem != "cuda-1.13.1"], ids=lambda path: path.stem
)
native_and_ours = pytest.mark.parametrize("path", OURS + NATIVE, ids=lambda path: path.stem)


@pytest.mark.parametrize("script", ["make", "make_native"])
def test_the_scripts_can_be_imported(script: str) -> None:
    # No other test runs the scripts between two versions of the format.
    runpy.run_path(str(GOLDEN / f"{script}.py"), run_name=script)


@native_and_ours
def test_reads_what_the_reference_reader_reads(path: Path) -> None:
    # GIVEN a file, and its contents by the reference reader
    expected = reference_reader.read(path)
    # WHEN it is loaded
    snapshot = load(path)
    # THEN all columns agree
    assert_same(snapshot, expected)
    assert snapshot.path == str(path)


@native
def test_the_state_agrees_with_memory_stats(path: Path) -> None:
    # GIVEN memory_stats() of the same moment
    reported = memory_stats(path)
    # WHEN the file is loaded
    snapshot = load(path)
    # THEN the sums of its segments and blocks equal the statistics
    assert reported == [
        {**totals(snapshot, device), **counts(reported[device])} for device in range(2)
    ]


@with_traces
def test_the_replay_ends_at_memory_stats(path: Path) -> None:
    # GIVEN memory_stats() of the same moment
    snapshot = load(path)
    for device, reported in enumerate(memory_stats(path)):
        # WHEN the trace is replayed
        usage = replay(snapshot, device).usage
        # THEN the last usage equals the statistics
        assert last(usage) == without_counts(reported)


@ours
def test_the_replay_of_pytracers_files_ends_at_the_state(path: Path) -> None:
    # GIVEN a file of a released version
    snapshot = load(path)
    for device in range(len(snapshot.traces)):
        # WHEN a trace is replayed
        usage = replay(snapshot, device).usage
        # THEN the last usage equals the sums of the segments and blocks
        assert last(usage) == totals(snapshot, device)


@native
def test_a_file_has_what_its_version_records(path: Path) -> None:
    # GIVEN the version of torch in the file's name
    backend, numbers, variant = re.fullmatch(r"(cuda|npu)-([\d.]+)-?(\w*)", path.stem).groups()
    version = tuple(map(int, numbers.split(".")))
    # WHEN its file is loaded
    snapshot = load(path)
    # THEN it has times, labels, expandable segments and the out-of-memory if that version records
    # them
    events = variant != "state" and version >= (2, 0)
    cuda = backend == "cuda"
    for device, trace in enumerate(snapshot.traces):
        if device == snapshot.host_device:
            continue
        assert snapshot.has_times(device) == (cuda and version >= (2, 2))
        labels = {snapshot.strings[label] for label in np.unique(trace.user_metadata)} - {""}
        assert ("step 4" in labels) == (events and cuda and version >= (2, 11))
        assert ("a note" in labels) == (events and cuda and version >= (2, 14))
        failed = trace.action == OOM
        asked = 2048 * MIB + (0 if cuda else 512)  # torch_npu reports it padded and rounded
        assert trace.size_bytes[failed].tolist() == [asked] * events
        assert trace.address[failed].tolist() == [32 * MIB] * events
    assert snapshot.segments.is_expandable.any() == (version >= (2, 1))
    assert bool(snapshot.allocator_settings) == (cuda and version >= (2, 3))
    # THEN the keys that are left out are listed
    internal = ["event.internal_metadata"] if variant == "address" else []
    assert snapshot.unknown_keys == tuple(internal)
    # AND pinned memory is a device of its own
    assert (snapshot.host_device is not None) == (variant == "host")


@ours
def test_no_key_of_pytracers_files_is_unknown(path: Path) -> None:
    # GIVEN a file of a released version
    # WHEN it is loaded
    # THEN all of its keys are known
    assert load(path).unknown_keys == ()


@native
def test_names_no_path_of_the_machine_that_made_it(path: Path) -> None:
    # GIVEN a file
    # WHEN its frames are read
    stacks = load(path).stacks
    # THEN they are frames of the workload, or of libraries without their folders
    files = {stacks.strings[filename] for filename in stacks.filename}
    assert "train.py" in files
    assert not any("/" in file for file in files)


def memory_stats(path: Path) -> list[dict[str, int | None]]:
    """Return the recorded memory_stats() of each device."""
    reported = json.loads(path.with_suffix(".json").read_text())
    if reported[0]["requested_bytes"] is None:  # torch 1.13
        for device, snapshot_bytes in enumerate(requested_bytes(load(path))):
            reported[device]["requested_bytes"] = snapshot_bytes
    return reported


def counts(reported: dict[str, int]) -> dict[str, int]:
    """Return the counts, which a state does not have."""
    return {key: reported[key] for key in ("num_alloc_retries", "num_ooms")}


def without_counts(reported: dict[str, int]) -> dict[str, int]:
    return {key: value for key, value in reported.items() if key not in counts(reported)}


def requested_bytes(snapshot: Snapshot) -> list[int]:
    return [totals(snapshot, device)["requested_bytes"] for device in range(2)]


def totals(snapshot: Snapshot, device: int) -> dict[str, int]:
    """Return the sums over the segments and blocks."""
    segments, blocks = snapshot.segments, snapshot.blocks
    here = segments.device == device
    inside = here[blocks.segment]
    active = inside & (blocks.state != INACTIVE)
    used = np.zeros(len(segments), bool)
    used[blocks.segment[active]] = True
    split = inside & ~active & (used & ~segments.is_expandable)[blocks.segment]
    return {
        "allocated_bytes": int(blocks.size_bytes[inside & (blocks.state == ALLOCATED)].sum()),
        "active_bytes": int(blocks.size_bytes[active].sum()),
        "reserved_bytes": int(segments.size_bytes[here].sum()),
        "requested_bytes": int(blocks.requested_bytes[active].sum()),
        "inactive_split_bytes": int(blocks.size_bytes[split].sum()),
        "segments": int((here & ~segments.is_expandable).sum()),
    }


def last(usage: Usage) -> dict[str, int]:
    keys = ("allocated", "active", "reserved", "requested", "inactive_split")
    result = {f"{key}_bytes": int(getattr(usage, f"{key}_bytes")[-1]) for key in keys}
    return {**result, "segments": int(usage.segments[-1])}
