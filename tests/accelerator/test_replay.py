"""Compare replays, by the real allocator and by the simulator, with the recorded program."""

import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simulated
from processes import environment, run_python

from pytracer.analysis.report import count_events
from pytracer.analysis.requests import ALLOCATE, FREE, LEAVE, REQUEST_COLUMNS, extract_recording
from pytracer.errors import ConfigError, PytracerError
from pytracer.experiments.replay import Replay, replay
from pytracer.reading import load
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

EVENTS = 5_000
SEGMENTS, EXPANDABLE = "expandable_segments:False", "expandable_segments:True"
VARIABLES = {"cuda": "PYTORCH_CUDA_ALLOC_CONF", "npu": "PYTORCH_NPU_ALLOC_CONF"}
HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(
    not simulated.active(), reason="the recorded program needs a device of its own"
)


@pytest.fixture(
    params=[
        pytest.param(True, id="real", marks=pytest.mark.long),
        pytest.param(False, id="simulated"),
    ]
)
def real(request: pytest.FixtureRequest) -> bool:
    """Whether the real allocator of the device answers the requests, or the simulator does."""
    return bool(request.param)


Record = Callable[..., tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def record(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Return a function that runs the program once for each set of arguments.

    It takes settings, a seed, options, and variables by name, and returns the snapshot's path, and
    the allocator's statistics.
    """

    @functools.cache
    def record_once(
        settings: str, seed: int, *options: object, **env: str
    ) -> tuple[Path, dict[str, Any]]:
        folder = tmp_path_factory.mktemp("recorded")
        env = environment(**{VARIABLES[backend]: settings}, **env)
        arguments = (backend, folder / "recorded.pickle", seed, EVENTS, *options)
        done = run_python(HERE / "replayable.py", *arguments, cwd=folder, env=env)
        assert done.returncode == 0, done.stderr
        return folder / "recorded.pickle", json.loads(done.stdout.splitlines()[-1])

    return record_once


def replayed_trace(path: Path, folder: Path, backend: str, settings: str) -> Trace:
    """Run a replay's process for a recording, in a folder, and return its trace."""
    requests = extract_recording(load(path), 0).requests
    np.savez(folder / "requests.npz", **{name: getattr(requests, name) for name in REQUEST_COLUMNS})
    env = environment(**{VARIABLES[backend]: settings})
    done = run_python(
        "-m", "pytracer.experiments.replay_process", folder, "", "0", cwd=folder, env=env
    )
    assert done.returncode == 0, done.stderr
    return load(folder / "trace.pickle").traces[0]


def events(trace: Trace) -> list[tuple[int, int, int]]:
    """Return action, size and stream of each event, except events that depend on requests to free.

    Memory that is released at once is released in the order of addresses; here it is sorted by size
    and stream.
    """
    kept = ~np.isin(trace.action, (SNAPSHOT, FREE_REQUESTED, ANNOTATE))
    streams = list(dict.fromkeys(trace.stream[kept].tolist()))
    columns = (column[kept].tolist() for column in (trace.action, trace.size_bytes, trace.stream))
    found = [(row[0], row[1], streams.index(row[2])) for row in zip(*columns, strict=True)]
    runs = itertools.groupby(found, lambda row: row[0] in (SEGMENT_FREE, SEGMENT_UNMAP))
    return [row for released, run in runs for row in (sorted(run) if released else run)]


def reserved_after(trace: Trace) -> np.ndarray[Any, Any]:
    """Return the change in reserved bytes from the begin of the trace to after each event."""
    sign = np.zeros(256, np.int64)
    sign[[SEGMENT_ALLOC, SEGMENT_MAP]] = 1
    sign[[SEGMENT_FREE, SEGMENT_UNMAP]] = -1
    total: np.ndarray[Any, Any] = np.cumsum(sign[trace.action] * trace.size_bytes)
    return total


def peaks(done: Replay, place: int) -> tuple[int | None, int | None]:
    (outcome,) = done.replayed[place].setting.outcomes
    assert outcome.failure is None
    return outcome.peak_reserved_bytes, outcome.device_allocs


@pytest.mark.parametrize("real", [True, False], ids=["real", "simulated"])
@pytest.mark.parametrize("settings", [SEGMENTS, EXPANDABLE])
def test_a_replay_from_an_empty_allocator_equals_the_recording(
    record: Record, backend: str, tmp_path: Path, real: bool, settings: str
) -> None:
    # GIVEN a program that was recorded from its beginning, with pools and delayed frees
    path, statistics = record(settings, 31, "--delays", "--pools")
    # WHEN it is replayed with its own settings
    done = replay(path, [], real=real, device=0)
    # THEN the replay reserves the same memory after each request, and has the same events
    assert done.deviation is not None
    assert done.deviation.equal == done.deviation.requests > 1000
    assert done.older_blocks == 0
    assert done.fidelity().startswith("The replay is exact: ")
    assert peaks(done, 0)[0] == statistics["peak_reserved_bytes"]
    # AND blocks with a pending free are not allocated
    own = done.replayed[0].curve
    assert own is not None
    assert np.array_equal(own.allocated_bytes, done.recorded_curve.allocated_bytes)
    (outcome,) = done.replayed[0].setting.outcomes
    assert outcome.peak_allocated_bytes == statistics["peak_allocated_bytes"]
    recorded = load(path).traces[0]
    assert events(replayed_trace(path, tmp_path, backend, settings)) == events(recorded)


def test_a_recording_by_torch(record: Record, real: bool) -> None:
    # GIVEN a recording by torch's own recorder, with expandable segments
    path, statistics = record(EXPANDABLE, 32, "--native")
    # WHEN it is replayed
    done = replay(path, [], real=real, device=0)
    # THEN the replay equals the program
    assert done.deviation is not None
    assert done.deviation.equal == done.deviation.requests > 1000
    assert peaks(done, 0)[0] == statistics["peak_reserved_bytes"]
    assert EXPANDABLE in done.replayed[0].setting.settings


@pytest.mark.parametrize(
    ("before", "after"),
    [(SEGMENTS, EXPANDABLE), (EXPANDABLE, SEGMENTS), (SEGMENTS, "max_split_size_mb:21")],
)
def test_a_replay_with_other_settings_equals_the_program_with_them(
    record: Record, real: bool, before: str, after: str
) -> None:
    # GIVEN a program, recorded with two settings
    path, _ = record(before, 33)
    other, statistics = record(after, 33)
    # WHEN the first recording is replayed with the second settings
    done = replay(path, [after], real=real, device=0)
    # THEN it reserves what the program reserved there, after each allocation and free
    expected = extract_recording(load(other), 0)
    counts = count_events(expected.trace, is_cpu=False)
    assert peaks(done, 1) == (statistics["peak_reserved_bytes"], counts.device_allocs)
    curve = done.replayed[1].curve
    assert curve is not None
    requests = expected.requests.event[np.isin(expected.requests.kind, (ALLOCATE, FREE))]
    assert len(curve.request) == len(requests) > 1000
    expected_bytes = expected.history.usage.reserved_bytes[requests + 1]
    assert np.array_equal(curve.reserved_bytes, expected_bytes)
    # AND the first recording's reserved bytes are different
    assert not np.array_equal(curve.reserved_bytes, done.recorded_curve.reserved_bytes)


def test_memory_that_runs_out(record: Record, real: bool) -> None:
    # GIVEN a program that ran out of memory
    path, statistics = record(SEGMENTS, 31, SIMULATED_CAPACITY_MB="150")
    assert statistics["oom"]
    device = int(np.argmax([np.any(trace.action == OOM) for trace in load(path).traces]))
    # WHEN it is replayed with the same memory, with twice the memory, and with less
    own = replay(path, [], real=real, device=device)
    twice = replay(path, [], real=real, device=device, capacity_bytes=300 << 20)
    less = replay(path, [], real=real, device=device, capacity_bytes=60 << 20)
    # THEN memory runs out at the same request with the same memory
    assert own.capacity_bytes == 150 << 20
    (recorded,), (outcome,) = own.recorded.outcomes, own.replayed[0].setting.outcomes
    assert (recorded.ooms, outcome.ooms, own.replayed[0].fitted) == (1, 1, 0)
    # AND the levels at that time equal the recording's
    for result in (recorded, outcome):
        assert result.oom_unallocated_bytes is not None
        assert result.peak_unallocated_bytes is not None
        assert result.oom_unallocated_bytes <= result.peak_unallocated_bytes
        assert result.lower_bounds == []
    assert outcome.oom_unallocated_bytes == recorded.oom_unallocated_bytes
    assert outcome.peak_unallocated_bytes == recorded.peak_unallocated_bytes
    (first,), (second,) = (curve.failures.request for curve in own.curves.values())
    assert first == second
    (outcome,) = twice.replayed[0].setting.outcomes
    assert (outcome.ooms, twice.replayed[0].fitted) == (0, 1)
    assert outcome.oom_unallocated_bytes is None
    # AND the replay with less memory reports where the program would have ended
    (ended,) = less.replayed
    (outcome,) = ended.setting.outcomes
    assert (outcome.ooms, outcome.ended_early) == (1, True)
    assert outcome.peak_reserved_bytes is not None
    assert outcome.peak_reserved_bytes <= outcome.limit_bytes == 60 << 20
    assert outcome.oom_requested_bytes >= ended.failed_bytes
    assert ended.curve.failures.requested_bytes.tolist() == [outcome.oom_requested_bytes]
    trace = load(path).traces[device]
    assert ended.failed_event is not None
    assert trace.action[ended.failed_event] == ALLOC
    assert trace.size_bytes[ended.failed_event] == ended.failed_bytes
    # AND the deviation is measured in a replay with the recording's memory
    for done in (own, twice, less):
        assert done.deviation is not None
        assert done.deviation.equal == done.deviation.requests > 100


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--late", 2500), id="late"),
        pytest.param(("--entries", 1000), id="ring", marks=pytest.mark.long),
    ],
)
def test_the_deviation_of_an_incomplete_recording_is_reported(
    record: Record, backend: str, tmp_path: Path, options: tuple[object, ...]
) -> None:
    # GIVEN a recording that began late, or that lost its first events
    path, _ = record(SEGMENTS, 34, *options)
    # WHEN it is replayed
    done = replay(path, [], real=True, device=0)
    # THEN the reported deviation is the difference of the two traces
    recorded = load(path)
    trace = recorded.traces[0]
    replay_trace = replayed_trace(path, tmp_path, backend, SEGMENTS)
    end_bytes = recorded.segments.size_bytes[recorded.segments.device == 0].sum()
    recorded_bytes = reserved_after(trace)
    recorded_bytes += end_bytes - recorded_bytes[-1]
    replayed_bytes = reserved_after(replay_trace)
    (recorded_events,) = np.nonzero(np.isin(trace.action, (ALLOC, FREE_COMPLETED)))
    (replayed_events,) = np.nonzero(np.isin(replay_trace.action, (ALLOC, FREE_COMPLETED)))
    assert done.older_blocks > 10
    replayed_events = replayed_events[done.older_blocks :]
    difference = replayed_bytes[replayed_events] - recorded_bytes[recorded_events]
    deviation = done.deviation
    assert deviation is not None
    assert deviation.requests == len(difference)
    assert deviation.equal == np.count_nonzero(difference == 0) < len(difference)
    assert abs(deviation.largest_bytes) == np.abs(difference).max() > 0
    assert deviation.mean_bytes == pytest.approx(np.abs(difference).mean())
    recorded_peak_bytes = max(recorded_bytes.max(), recorded_bytes[0])
    assert deviation.peak_bytes == replayed_bytes.max() - recorded_peak_bytes
    # AND a note has the number of older blocks, and how many of them were freed
    ends = set(recorded.blocks.address[recorded.blocks.state > 0].tolist())
    assert f"{done.older_blocks} blocks are older than the trace" in done.notes[0]
    assert f"The trace frees {done.older_freed} of them." in done.notes[0]
    assert done.older_blocks - done.older_freed <= len(ends)
    assert "Smaller differences between settings mean nothing." in done.fidelity()


def test_training(backend: str, tmp_path: Path, real: bool) -> None:
    # GIVEN a training loop, recorded from its beginning
    arguments = (HERE / "training.py", backend, tmp_path / "recorded.pickle")
    done = run_python(*arguments, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    statistics = json.loads(done.stdout.splitlines()[-1])["devices"][0]
    # WHEN it is replayed
    replayed = replay(tmp_path / "recorded.pickle", [EXPANDABLE], real=real)
    # THEN the replay equals the training
    assert replayed.deviation is not None
    assert replayed.deviation.equal == replayed.deviation.requests > 500
    assert peaks(replayed, 0)[0] == statistics["stats"]["reserved_bytes.all.peak"]


def test_recordings_and_options_that_cannot_be_replayed(record: Record) -> None:
    # GIVEN a recording
    path, _ = record(SEGMENTS, 31)
    # WHEN a setting has a typo, this device is too small, or the file has no such device
    # THEN the error names the reason
    with pytest.raises(ConfigError, match="expandable_segment"):
        replay(path, ["expandable_segment:True"], real=True)
    with pytest.raises(PytracerError, match="64 GiB"):
        replay(path, [], real=True, capacity_bytes=64 << 30)
    with pytest.raises(PytracerError, match="has no device 9: it has 2 devices"):
        replay(path, [], real=True, device=9)


def replay_requests(
    folder: Path,
    requests: list[tuple[int, int, int, int]],
    capacity: int | None = None,
    **env: str,
) -> dict[str, Any]:
    """Return the answer of a replay's process to requests of (kind, block, MiB, pool)."""
    kind, block, size, pool = np.array(requests).T
    columns = {"kind": kind, "block": block, "size_bytes": size << 20, "pool": pool}
    np.savez(folder / "requests.npz", **columns, stream=np.zeros_like(kind))
    limit = "" if capacity is None else str(capacity << 20)
    command = ("-m", "pytracer.experiments.replay_process", folder, limit, "0")
    done = run_python(*command, cwd=folder, env=environment(**env))
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return answer


def test_delayed_frees_complete_early_if_memory_is_needed(backend: str, tmp_path: Path) -> None:
    # GIVEN a program that needs as much memory again while a free is delayed
    requests = [(ALLOCATE, 0, 60, 0), (LEAVE, 0, 0, 0), (ALLOCATE, 1, 60, 0), (FREE, 0, 0, 0)]
    # WHEN there is room for both blocks, for one, or for none
    both = replay_requests(tmp_path, requests, 160)
    one = replay_requests(tmp_path, requests, 100)
    none = replay_requests(tmp_path, requests, 40)
    # THEN the free completes when it did in the recording, or when its memory is needed
    assert (both["failed_request"], both["freed_early"], both["retries"]) == (None, 0, 0)
    assert (one["failed_request"], one["freed_early"], one["retries"]) == (None, 1, 1)
    assert (none["failed_request"], none["freed_early"]) == (0, 0)
    # AND an out-of-memory is counted only if the request failed
    assert (both["ooms"], one["ooms"], none["ooms"]) == ([], [-1], [0])


def test_without_nvml(tmp_path: Path, backend: str) -> None:
    # GIVEN a container where NVML does not answer, but torch finds the device
    requests = [(ALLOCATE, 0, 30, 0)]
    # THEN the replay runs on the device
    answer = replay_requests(tmp_path, requests, SIMULATED_NVML="0")
    assert (answer["backend"], answer["failed_request"]) == (backend, None)


def test_a_replay_that_ends_in_a_pool(backend: str, tmp_path: Path) -> None:
    # GIVEN requests that end in a pool, and requests that run out of memory there
    ends, fails = [(ALLOCATE, 0, 30, 1)], [(ALLOCATE, 0, 30, 1), (ALLOCATE, 1, 90, 1)]
    # THEN the process ends normally
    assert replay_requests(tmp_path, ends)["failed_request"] is None
    assert replay_requests(tmp_path, fails, 100)["failed_request"] == 1


def test_the_limit_is_exact_to_the_byte(backend: str, tmp_path: Path) -> None:
    # GIVEN a device whose size is not a power of two, so that no float represents a share exactly
    requests, env = [(ALLOCATE, 0, 1000, 0)], {"SIMULATED_CAPACITY_MB": "15999"}
    room = 1000 if backend == "cuda" else 1002  # torch_npu pads requests
    # THEN a request that fits exactly succeeds, and with less room it fails
    assert replay_requests(tmp_path, requests, room, **env)["failed_request"] is None
    assert replay_requests(tmp_path, requests, room - 2, **env)["failed_request"] == 0


def test_a_smaller_device_and_the_users_own_tracing(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a recording of a device of 16 GiB, and tracing switched off by the environment
    path, statistics = record(SEGMENTS, 31)
    monkeypatch.setenv("PYTRACER", "0")
    monkeypatch.setenv("PYTRACER_OUTPUT", str(tmp_path / "own.pickle"))
    # WHEN it is replayed on a device with less memory, but enough
    monkeypatch.setenv("SIMULATED_CAPACITY_MB", "1024")
    done = replay(path, [], real=True, device=0)
    # THEN a note reports the memory of the replays
    assert done.capacity_bytes == 1 << 30
    assert any("the device here has 1 GiB free" in note for note in done.notes)
    assert peaks(done, 0)[0] == statistics["peak_reserved_bytes"]
    assert not (tmp_path / "own.pickle").exists()
    # AND retries and levels are the allocator's own
    (outcome,) = done.replayed[0].setting.outcomes
    assert (outcome.retries, outcome.ooms) == (0, 0)
    assert outcome.peak_allocated_bytes == statistics["peak_allocated_bytes"]
