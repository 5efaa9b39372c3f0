"""Test promises of torch's recorder that its callers rely on, under `patch_torch()`."""

import json
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import viewers
from patched_torch import Torch, blocks

import pytracer

pytestmark = pytest.mark.usefixtures("no_collector")


@pytest.fixture
def native(program: Torch) -> dict[str, Any]:
    """Return torch's own functions by name."""
    return program.before


@pytest.fixture
def memory(patched: Torch) -> Any:
    """Return torch's module with the replaced functions, on an empty device."""
    return patched.device.memory


def make_weights(backend: str, size: int = 4096) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=backend)


def actions(memory: Any) -> list[str]:
    return [event["action"] for event in memory._snapshot()["device_traces"][0]]


def test_a_snapshot_has_no_marker_of_its_own(memory: Any, native: Any, backend: str) -> None:
    # GIVEN both recorders, and a block
    native["_record_memory_history"]("all", stacks="python")
    memory._record_memory_history(stacks="python")
    block = make_weights(backend)
    # WHEN snapshots are taken by turns, THEN each ends with what the allocator did last, or with
    # the marker of an earlier snapshot
    assert actions(memory) == ["segment_alloc", "alloc"]
    assert [e["action"] for e in native["_snapshot"]()["device_traces"][0]][1:] == [
        "alloc",
        "snapshot",
    ]
    assert actions(memory) == ["segment_alloc", "alloc", "snapshot", "snapshot"]
    del block
    assert actions(memory)[-1] == "free_completed"


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 7])
def test_a_file_has_at_most_max_entries(
    memory: Any, backend: str, tmp_path: Path, most: int
) -> None:
    # GIVEN more events than `max_entries`, on each device
    memory._record_memory_history(stacks="python", max_entries=most)
    for _ in range(8):
        make_weights(backend)
    memory._dump_snapshot(tmp_path / "x.pickle")
    # WHEN a snapshot is written or returned
    for snapshot in (pickle.loads((tmp_path / "x.pickle").read_bytes()), memory._snapshot()):
        trace = snapshot["device_traces"][0]
        # THEN it has so many entries, or one less if an event has two
        assert most - 1 <= len(trace) <= most
        # AND it says how many events are left out, and viewers read it
        counts = snapshot["pytracer"]["devices"][0]
        assert counts["overwritten"] >= 1
        assert len(trace) >= counts["recorded"] - counts["overwritten"]
        viewers.check_snapshot(snapshot)


def test_the_history_in_the_mode_state(memory: Any, native: Any, backend: str) -> None:
    # GIVEN whether torch's own recorder keeps its history when only the state is recorded
    native["_record_memory_history"]("all", stacks="python")
    kept = [make_weights(backend) for _ in range(5)]
    native["_record_memory_history"]("state", stacks="python")
    trace = native["_snapshot"]()["device_traces"][0]
    is_kept = [event["action"] for event in trace].count("alloc") == 5
    native["_record_memory_history"](None)
    # AND a history
    memory._record_memory_history("all", stacks="python")
    kept += [make_weights(backend) for _ in range(5)]
    before = actions(memory)
    assert before.count("alloc") == 5
    # WHEN only the state is recorded from then on
    memory._record_memory_history("state", stacks="python", max_entries=2)
    later = make_weights(backend)
    # THEN the snapshot has as much of the history, without later events, and blocks have stacks
    snapshot = memory._snapshot()
    entries = [event["action"] for event in snapshot["device_traces"][0]]
    assert entries[: len(before)] == (before if is_kept else [])
    assert entries.count("alloc") == (5 if is_kept else 0)
    assert blocks(snapshot)[later.data_ptr()][0] == "make_weights"
    # AND it goes on when events are recorded again
    memory._record_memory_history("all", stacks="python")
    kept.append(make_weights(backend))
    assert actions(memory).count("alloc") == (6 if is_kept else 1)
    # AND it is gone when it is cleared
    if "clear_history" in str(memory._record_memory_history.__signature__):
        memory._record_memory_history("state", stacks="python", clear_history=True)
        assert actions(memory) == []
        memory._record_memory_history("all", stacks="python")
        kept.append(make_weights(backend))
    # AND it is gone when the recording ends
    memory._record_memory_history(None)
    memory._record_memory_history("state", stacks="python")
    assert actions(memory) == []


def test_who_allocated_a_live_block(memory: Any, native: Any, backend: str) -> None:
    if not hasattr(memory, "_allocation_traceback"):
        pytest.skip("this torch has no such function")
    # GIVEN a live block, one of before the recording, and one that is freed
    old = make_weights(backend)
    memory._record_memory_history(stacks="python")
    weights, gone = make_weights(backend), make_weights(backend)
    gone_at = gone.data_ptr()
    del gone
    # WHEN their tracebacks are asked for, THEN only the live block has one
    found = memory._allocation_traceback(weights.untyped_storage().data_ptr())
    assert found[0]["name"] == "make_weights"
    assert found[0]["filename"] == __file__
    assert found[1]["name"] == "test_who_allocated_a_live_block"
    for address in (old.data_ptr(), gone_at, weights.data_ptr() + 512, 0):
        assert memory._allocation_traceback(address) is None
    # AND it stays known when the recording ends
    memory._record_memory_history(None)
    assert memory._allocation_traceback(weights.data_ptr()) == found
    # AND torch's own recorder answers when it records
    native["_record_memory_history"]("all", stacks="python")
    later = make_weights(backend)
    assert memory._allocation_traceback(later.data_ptr())[0]["name"] == "make_weights"


def test_a_recording_of_torchs_own_after_a_session(memory: Any, native: Any, backend: str) -> None:
    # GIVEN a session that has ended
    memory._record_memory_history(stacks="python")
    memory._record_memory_history(None)
    # WHEN the program switches torch's own recorder on, past the replaced functions
    native["_record_memory_history"]("all", stacks="python")
    make_weights(backend)
    # THEN its events are read
    assert "alloc" in actions(memory)
    # AND those of a session, when one begins again
    memory._record_memory_history(stacks="python")
    assert "alloc" not in actions(memory)
    assert "pytracer" in memory._snapshot()


def test_arguments_that_pytracer_does_not_know(memory: Any, backend: str) -> None:
    if "clear_history" not in str(memory._record_memory_history.__signature__):
        pytest.skip("this torch has no such argument")
    # GIVEN a session
    memory._record_memory_history(stacks="python")
    # WHEN recording begins with an argument that only torch takes
    memory._record_memory_history(stacks="python", clear_history=1)
    make_weights(backend)
    # THEN torch's own recorder answers
    snapshot = memory._snapshot()
    assert "pytracer" not in snapshot
    assert "alloc" in [event["action"] for event in snapshot["device_traces"][0]]
    # AND it ends as it began
    memory._record_memory_history(None, clear_history=1)
    memory._record_memory_history(stacks="python")
    make_weights(backend)
    assert "pytracer" in memory._snapshot()


def test_a_pool_is_found_by_the_values_of_its_id(
    memory: Any, backend: str, device: ModuleType
) -> None:
    if not hasattr(device, "MemPool"):
        pytest.skip("this torch has no pools")
    # GIVEN a pool with a block
    memory._record_memory_history(stacks="python")
    pool = device.MemPool()
    with device.use_mem_pool(pool):
        block = make_weights(backend)
    # WHEN its segments are asked for by an id that was in a JSON file, THEN they are found
    for pool_id in (pool.id, json.loads(json.dumps(pool.id))):
        (segment,) = device.memory_snapshot(pool_id)
        assert segment["address"] == block.data_ptr()
    assert len(device.memory_snapshot([0, 0])) >= 1
    assert device.memory_snapshot([1 << 40, 0]) == []
    if backend == "cuda":
        assert device.memory_snapshot(include_traces=False)


def test_a_tracer_beside_has_all_events(memory: Any, backend: str) -> None:
    # GIVEN a tracer, and a session with a bound
    with pytracer.Tracer(None, device=backend) as tracer:
        memory._record_memory_history(stacks="python", max_entries=1)
        for _ in range(4):
            make_weights(backend)
        # THEN the bound is the session's alone
        assert len(memory._snapshot()["device_traces"][0]) <= 1
        assert len(tracer.snapshot()["device_traces"][0]) >= 12
