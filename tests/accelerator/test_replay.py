"""`pytracer replay` asks the real allocator again: the oracle is the program itself."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simulated
from processes import environment, run_python

from pytracer.errors import ConfigError, PytracerError
from pytracer.reading import load
from pytracer.reading.counts import counts_of
from pytracer.reading.requests import ALLOCATE, ASKED, FREE, LEAVE, recording_of
from pytracer.reading.snapshot import (
    ALLOC,
    ANNOTATE,
    FREE_COMPLETED,
    FREE_REQUESTED,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    SNAPSHOT,
    Trace,
)
from pytracer.replay import Replay, replay

EVENTS = 5_000
SEGMENTS, EXPANDABLE = "expandable_segments:False", "expandable_segments:True"
VARIABLES = {"cuda": "PYTORCH_CUDA_ALLOC_CONF", "npu": "PYTORCH_NPU_ALLOC_CONF"}
HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(
    not simulated.active(), reason="the recording's program has the device for itself"
)


def record(
    folder: Path, backend: str, settings: str, seed: int, *options: object, **env: str
) -> dict[str, Any]:
    """Runs the program under these settings; its snapshot is `folder`/recorded.pickle."""
    env = environment(**{VARIABLES[backend]: settings}, **env)
    arguments = (backend, folder / "recorded.pickle", seed, EVENTS, *options)
    done = run_python(HERE / "replayable.py", *arguments, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def replayed_trace(folder: Path, backend: str, settings: str) -> Trace:
    """The trace of a replay's process, on its own."""
    requests = recording_of(load(folder / "recorded.pickle"), 0).requests
    np.savez(folder / "requests.npz", **{name: getattr(requests, name) for name in ASKED})
    env = environment(**{VARIABLES[backend]: settings})
    done = run_python("-m", "pytracer.replay_process", folder, "", "0", cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return load(folder / "trace.pickle").traces[0]


def events(trace: Trace) -> list[tuple[int, int, int]]:
    """What happened, on which stream, without what depends on when a free was asked for.

    What is given back at once is so in the order of addresses: here by size and stream.
    """
    kept = ~np.isin(trace.action, (SNAPSHOT, FREE_REQUESTED, ANNOTATE))
    streams = list(dict.fromkeys(trace.stream[kept].tolist()))
    columns = (column[kept].tolist() for column in (trace.action, trace.size_bytes, trace.stream))
    found = [(each[0], each[1], streams.index(each[2])) for each in zip(*columns, strict=True)]
    runs = itertools.groupby(found, lambda each: each[0] in (SEGMENT_FREE, SEGMENT_UNMAP))
    return [each for given, run in runs for each in (sorted(run) if given else run)]


def reserved_after(trace: Trace) -> np.ndarray[Any, Any]:
    """What changed in reserved bytes until after each event."""
    sign = np.zeros(256, np.int64)
    sign[[SEGMENT_ALLOC, SEGMENT_MAP]] = 1
    sign[[SEGMENT_FREE, SEGMENT_UNMAP]] = -1
    total: np.ndarray[Any, Any] = np.cumsum(sign[trace.action] * trace.size_bytes)
    return total


def peaks(done: Replay, place: int) -> tuple[int | None, int | None]:
    (outcome,) = done.replayed[place].setting.outcomes
    assert outcome.failure is None
    return outcome.peak_reserved_bytes, outcome.device_allocs


@pytest.mark.parametrize("settings", [SEGMENTS, EXPANDABLE])
def test_from_an_empty_allocator_it_is_the_recording(
    backend: str, tmp_path: Path, settings: str
) -> None:
    # GIVEN a program that was recorded from its beginning, with pools, and frees that wait
    told = record(tmp_path, backend, settings, 31, "--delays", "--pools")
    # WHEN it is replayed under the settings that it had
    done = replay(tmp_path / "recorded.pickle", [], device=0)
    # THEN it needs as much at every moment, and does the same
    assert done.deviation is not None
    assert done.deviation.equal == done.deviation.requests > 1000
    assert done.older_blocks == 0
    assert "reserved bytes are the recording's after each of" in done.fidelity()
    assert peaks(done, 0)[0] == told["peak_reserved_bytes"]
    # AND the blocks whose free waits are not allocated
    own = done.replayed[0].curve
    assert own is not None
    assert np.array_equal(own.allocated_bytes, done.recorded_curve.allocated_bytes)
    assert done.replayed[0].setting.outcomes[0].peak_allocated_bytes == told["peak_allocated_bytes"]
    recorded = load(tmp_path / "recorded.pickle").traces[0]
    assert events(replayed_trace(tmp_path, backend, settings)) == events(recorded)


def test_torch_s_own_recording(backend: str, tmp_path: Path) -> None:
    # GIVEN a recording of torch's own recorder, under segments that expand
    told = record(tmp_path, backend, EXPANDABLE, 32, "--native")
    # WHEN it is replayed
    done = replay(tmp_path / "recorded.pickle", [], device=0)
    # THEN it is the program
    assert done.deviation is not None
    assert done.deviation.equal == done.deviation.requests > 1000
    assert peaks(done, 0)[0] == told["peak_reserved_bytes"]
    assert EXPANDABLE in done.replayed[0].setting.settings


@pytest.mark.parametrize(
    ("before", "after"),
    [(SEGMENTS, EXPANDABLE), (EXPANDABLE, SEGMENTS), (SEGMENTS, "max_split_size_mb:21")],
)
def test_under_other_settings_it_is_the_program_under_them(
    backend: str, tmp_path: Path, before: str, after: str
) -> None:
    # GIVEN a program, recorded under two settings
    record(tmp_path, backend, before, 33)
    (tmp_path / "other").mkdir()
    told = record(tmp_path / "other", backend, after, 33)
    # WHEN the one recording is replayed under the other's settings
    done = replay(tmp_path / "recorded.pickle", [after], device=0)
    # THEN it comes to what the program came to there, after each allocation and free
    other = recording_of(load(tmp_path / "other" / "recorded.pickle"), 0)
    counts = counts_of(other.trace, is_cpu=False)
    assert peaks(done, 1) == (told["peak_reserved_bytes"], counts.device_allocs)
    curve = done.replayed[1].curve
    assert curve is not None
    asked = other.requests.event[np.isin(other.requests.kind, (ALLOCATE, FREE))]
    assert len(curve.request) == len(asked) > 1000
    assert np.array_equal(curve.reserved_bytes, other.history.levels.reserved_bytes[asked + 1])
    # AND that is not what it came to before
    assert not np.array_equal(curve.reserved_bytes, done.recorded_curve.reserved_bytes)


def test_memory_that_runs_out(backend: str, tmp_path: Path) -> None:
    # GIVEN a program that ran out of memory
    assert record(tmp_path, backend, SEGMENTS, 31, SIMULATED_CAPACITY_MB="150")["oom"]
    path = tmp_path / "recorded.pickle"
    device = int(np.argmax([np.any(each.action == OOM) for each in load(path).traces]))
    # WHEN it is replayed as it was, with twice the memory, and with less
    own = replay(path, [], device=device)
    twice = replay(path, [], device=device, capacity_bytes=300 << 20)
    less = replay(path, [], device=device, capacity_bytes=60 << 20)
    # THEN memory runs out in the same place, or not
    assert own.capacity_bytes == 150 << 20
    (recorded,), (outcome,) = own.recorded.outcomes, own.replayed[0].setting.outcomes
    assert (recorded.ooms, outcome.ooms, own.replayed[0].fitted) == (1, 1, 0)
    (outcome,) = twice.replayed[0].setting.outcomes
    assert (outcome.ooms, twice.replayed[0].fitted) == (0, 1)
    # AND the replay that had less tells where the program would have ended
    (ended,) = less.replayed
    (outcome,) = ended.setting.outcomes
    assert (outcome.ooms, outcome.ended_early) == (1, True)
    assert outcome.peak_reserved_bytes is not None
    assert outcome.peak_reserved_bytes <= 60 << 20
    trace = load(path).traces[device]
    assert ended.failed_event is not None
    assert trace.action[ended.failed_event] == ALLOC
    assert trace.size_bytes[ended.failed_event] == ended.failed_bytes
    # AND how near each is is measured where there is as much memory as there was
    for done in (own, twice, less):
        assert done.deviation is not None
        assert done.deviation.equal == done.deviation.requests > 100


@pytest.mark.parametrize("options", [("--late", 2500), ("--entries", 1500)], ids=["late", "ring"])
def test_from_the_middle_the_deviation_is_told(
    backend: str, tmp_path: Path, options: tuple[object, ...]
) -> None:
    # GIVEN a recording that begins in the middle, or has lost its beginning
    record(tmp_path, backend, SEGMENTS, 34, *options)
    # WHEN it is replayed
    done = replay(tmp_path / "recorded.pickle", [], device=0)
    # THEN what it is wrong by is told, and is what the two traces tell
    recorded = load(tmp_path / "recorded.pickle")
    trace = recorded.traces[0]
    other = replayed_trace(tmp_path, backend, SEGMENTS)
    in_the_end = recorded.segments.size_bytes[recorded.segments.device == 0].sum()
    there = reserved_after(trace)
    there += in_the_end - there[-1]
    here = reserved_after(other)
    (theirs,) = np.nonzero(np.isin(trace.action, (ALLOC, FREE_COMPLETED)))
    (ours,) = np.nonzero(np.isin(other.action, (ALLOC, FREE_COMPLETED)))
    assert done.older_blocks > 10
    difference = here[ours[done.older_blocks :]] - there[theirs]
    deviation = done.deviation
    assert deviation is not None
    assert deviation.requests == len(difference)
    assert deviation.equal == np.count_nonzero(difference == 0) < len(difference)
    assert abs(deviation.largest_bytes) == np.abs(difference).max() > 0
    assert deviation.mean_bytes == pytest.approx(np.abs(difference).mean())
    assert deviation.peak_bytes == here.max() - max(there.max(), there[0])
    # AND that blocks are older, and how many of them were freed
    ends = set(recorded.blocks.address[recorded.blocks.state > 0].tolist())
    assert f"{done.older_blocks} blocks are older than the trace" in done.notes[0]
    assert f"{done.older_freed} are freed in it" in done.notes[0]
    assert done.older_blocks - done.older_freed <= len(ends)
    assert "may be wrong by as much" in done.fidelity()


def test_training(backend: str, tmp_path: Path) -> None:
    # GIVEN a training loop, recorded from its beginning
    arguments = (HERE / "training.py", backend, tmp_path / "recorded.pickle")
    done = run_python(*arguments, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])["devices"][0]
    # WHEN it is replayed
    replayed = replay(tmp_path / "recorded.pickle", [EXPANDABLE])
    # THEN it is the training
    assert replayed.deviation is not None
    assert replayed.deviation.equal == replayed.deviation.requests > 500
    assert peaks(replayed, 0)[0] == told["stats"]["reserved_bytes.all.peak"]


def test_what_cannot_be_replayed_is_said(backend: str, tmp_path: Path) -> None:
    # GIVEN a recording
    record(tmp_path, backend, SEGMENTS, 31)
    path = tmp_path / "recorded.pickle"
    # WHEN a setting has a typo, the device here is too small, or the file has no such device
    # THEN each is an error that names it
    with pytest.raises(ConfigError, match="expandable_segment"):
        replay(path, ["expandable_segment:True"])
    with pytest.raises(PytracerError, match="64 GiB"):
        replay(path, [], capacity_bytes=64 << 30)
    with pytest.raises(PytracerError, match="device 9: this snapshot has 2"):
        replay(path, [], device=9)


def answer_to(
    folder: Path, asked: list[tuple[int, int, int, int]], capacity: int | None = None, **env: str
) -> dict[str, Any]:
    """What a replay's process answers to requests: kind, block, MiB, pool."""
    kind, block, size, pool = np.array(asked).T
    columns = {"kind": kind, "block": block, "size_bytes": size << 20, "pool": pool}
    np.savez(folder / "requests.npz", **columns, stream=np.zeros_like(kind))
    limit = "" if capacity is None else str(capacity << 20)
    command = ("-m", "pytracer.replay_process", folder, limit, "0")
    done = run_python(*command, cwd=folder, env=environment(**env))
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return told


def test_frees_that_wait_are_waited_for_if_there_is_no_other_memory(
    backend: str, tmp_path: Path
) -> None:
    # GIVEN a program whose free waits while it needs as much again
    asked = [(ALLOCATE, 0, 60, 0), (LEAVE, 0, 0, 0), (ALLOCATE, 1, 60, 0), (FREE, 0, 0, 0)]
    # WHEN there is room for both, or for one
    both = answer_to(tmp_path, asked, 160)
    one = answer_to(tmp_path, asked, 100)
    none = answer_to(tmp_path, asked, 40)
    # THEN the free takes effect when it did, or when it is needed
    assert (both["failed_request"], both["freed_early"], both["retries"]) == (None, 0, 0)
    assert (one["failed_request"], one["freed_early"], one["retries"]) == (None, 1, 1)
    assert (none["failed_request"], none["freed_early"]) == (0, 0)


def test_a_replay_that_ends_in_a_pool(backend: str, tmp_path: Path) -> None:
    # GIVEN requests of which the last is of a pool, and one that runs out of memory there
    ends, fails = [(ALLOCATE, 0, 30, 1)], [(ALLOCATE, 0, 30, 1), (ALLOCATE, 1, 90, 1)]
    # THEN the process ends well
    assert answer_to(tmp_path, ends)["failed_request"] is None
    assert answer_to(tmp_path, fails, 100)["failed_request"] == 1


def test_the_limit_is_kept_to_the_byte(backend: str, tmp_path: Path) -> None:
    # GIVEN a device whose size is no power of two, and of whose share no float is exact
    asked, env = [(ALLOCATE, 0, 1000, 0)], {"SIMULATED_CAPACITY_MB": "15999"}
    room = 1000 if backend == "cuda" else 1002  # torch_npu pads
    # THEN what fits exactly has room, and nothing more
    assert answer_to(tmp_path, asked, room, **env)["failed_request"] is None
    assert answer_to(tmp_path, asked, room - 2, **env)["failed_request"] == 0


def test_a_smaller_device_and_the_user_s_own_tracing(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a recording of a device of 16 GiB, and tracing that is switched off
    told = record(tmp_path, backend, SEGMENTS, 31)
    monkeypatch.setenv("PYTRACER", "0")
    monkeypatch.setenv("PYTRACER_OUTPUT", str(tmp_path / "own.pickle"))
    # WHEN it is replayed on one that has less, but enough
    monkeypatch.setenv("SIMULATED_CAPACITY_MB", "1024")
    done = replay(tmp_path / "recorded.pickle", [], device=0)
    # THEN what the replays had is told
    assert done.capacity_bytes == 1 << 30
    assert any("the device here has 1 GiB free" in note for note in done.notes)
    assert peaks(done, 0)[0] == told["peak_reserved_bytes"]
    assert not (tmp_path / "own.pickle").exists()
    # AND retries and levels are the allocator's own
    (outcome,) = done.replayed[0].setting.outcomes
    assert (outcome.retries, outcome.ooms) == (0, 0)
    assert outcome.peak_allocated_bytes == told["peak_allocated_bytes"]
