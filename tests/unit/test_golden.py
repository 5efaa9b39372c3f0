"""Files of every format version of ours, and of PyTorch's own recorder, as they were written.

tests/golden/make.py and make_native.py made them.
"""

import json
import re
from pathlib import Path

import numpy as np
import plain_reader
import pytest
from same_snapshot import assert_same

from pytracer.reading.history import Levels, replay
from pytracer.reading.reader import load
from pytracer.reading.snapshot import ALLOCATED, INACTIVE, OOM, Snapshot

GOLDEN = Path(__file__).parents[1] / "golden"
NATIVE = sorted(GOLDEN.glob("native/*.pickle"))
OURS = sorted(GOLDEN.glob("snapshot-*.pickle"))
assert NATIVE, "the golden files of PyTorch's own recorder are missing"
assert OURS, "the golden files of ours are missing"

MIB = 2**20

ours = pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
native = pytest.mark.parametrize("path", NATIVE, ids=lambda path: path.stem)
with_traces = pytest.mark.parametrize(
    "path", [path for path in NATIVE if path.stem != "cuda-1.13.1"], ids=lambda path: path.stem
)
native_and_ours = pytest.mark.parametrize("path", OURS + NATIVE, ids=lambda path: path.stem)


@native_and_ours
def test_reads_as_the_plain_reader_does(path: Path) -> None:
    # GIVEN a file, and what Python's own pickle makes of it
    expected = plain_reader.read(path)
    # WHEN it is loaded
    snapshot = load(path)
    # THEN all columns agree
    assert_same(snapshot, expected)
    assert snapshot.path == str(path)


@native
def test_state_is_what_the_allocator_said(path: Path) -> None:
    # GIVEN memory_stats() of the moment
    said = memory_stats(path)
    # WHEN the file is loaded
    snapshot = load(path)
    # THEN the segments and blocks add up to it
    assert said == [{**totals(snapshot, device), **counts(said[device])} for device in range(2)]


@with_traces
def test_replay_ends_at_what_the_allocator_said(path: Path) -> None:
    # GIVEN memory_stats() of the moment
    snapshot = load(path)
    for device, said in enumerate(memory_stats(path)):
        # WHEN the trace is run
        levels = replay(snapshot, device).levels
        # THEN it ends there
        assert last(levels) == without_counts(said)


@ours
def test_replay_of_ours_ends_at_the_state(path: Path) -> None:
    # GIVEN a file of a released version
    snapshot = load(path)
    for device in range(len(snapshot.traces)):
        # WHEN a trace is run
        levels = replay(snapshot, device).levels
        # THEN it ends at the segments and blocks
        assert last(levels) == totals(snapshot, device)


@native
def test_tells_what_its_version_knows(path: Path) -> None:
    # GIVEN the version's number
    backend, numbers, variant = re.fullmatch(r"(cuda|npu)-([\d.]+)-?(\w*)", path.stem).groups()
    version = tuple(map(int, numbers.split(".")))
    # WHEN its file is loaded
    snapshot = load(path)
    # THEN it has times, labels, segments that expand and the out-of-memory where that version does
    events = variant != "state" and version >= (2, 0)
    cuda = backend == "cuda"
    for device, trace in enumerate(snapshot.traces):
        assert snapshot.has_times(device) == (cuda and version >= (2, 2))
        labels = {snapshot.strings[label] for label in np.unique(trace.user_metadata)} - {""}
        assert ("step 4" in labels) == (events and cuda and version >= (2, 11))
        assert ("a note" in labels) == (events and cuda and version >= (2, 14))
        failed = trace.action == OOM
        asked = 2048 * MIB + (0 if cuda else 512)  # torch_npu tells it padded and rounded
        assert trace.size_bytes[failed].tolist() == [asked] * events
        assert trace.address[failed].tolist() == [32 * MIB] * events
    assert snapshot.segments.is_expandable.any() == (version >= (2, 1))
    assert bool(snapshot.allocator_settings) == (cuda and version >= (2, 3))
    # THEN what is left out of it is said
    host = ["snapshot.host_segments", "snapshot.host_traces"] if variant == "host" else []
    internal = ["event.internal_metadata"] if variant == "address" else []
    assert snapshot.unknown_keys == (*internal, *host)


@ours
def test_leaves_nothing_of_ours_out(path: Path) -> None:
    # GIVEN a file of a released version
    # WHEN it is loaded
    # THEN all of its keys are known
    assert load(path).unknown_keys == ()


@native
def test_names_no_path_of_the_machine_that_made_it(path: Path) -> None:
    # GIVEN a file
    # WHEN its frames are read
    stacks = load(path).stacks
    # THEN they are of the workload, or of libraries without their folders
    files = {stacks.strings[filename] for filename in stacks.filename}
    assert "train.py" in files
    assert not any("/" in file for file in files)


def memory_stats(path: Path) -> list[dict[str, int | None]]:
    """For each device."""
    said = json.loads(path.with_suffix(".json").read_text())
    if said[0]["requested_bytes"] is None:  # torch 1.13
        for device, snapshot_bytes in enumerate(requested_bytes(load(path))):
            said[device]["requested_bytes"] = snapshot_bytes
    return said


def counts(said: dict[str, int]) -> dict[str, int]:
    """What a state does not show."""
    return {key: said[key] for key in ("num_alloc_retries", "num_ooms")}


def without_counts(said: dict[str, int]) -> dict[str, int]:
    return {key: value for key, value in said.items() if key not in counts(said)}


def requested_bytes(snapshot: Snapshot) -> list[int]:
    return [totals(snapshot, device)["requested_bytes"] for device in range(2)]


def totals(snapshot: Snapshot, device: int) -> dict[str, int]:
    """What the segments and blocks add up to."""
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


def last(levels: Levels) -> dict[str, int]:
    keys = ("allocated", "active", "reserved", "requested", "inactive_split")
    result = {f"{key}_bytes": int(getattr(levels, f"{key}_bytes")[-1]) for key in keys}
    return {**result, "segments": int(levels.segments[-1])}
