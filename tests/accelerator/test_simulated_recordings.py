"""Compare simulations of recordings with the recorded programs."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simulated
from processes import environment, run_python

from pytracer.analysis.report import count_events
from pytracer.analysis.requests import ALLOCATE, FAIL, FREE, Recording, extract_recording
from pytracer.reading import load
from pytracer.reading.snapshot import ALLOC, OOM, Column
from pytracer.recommendation import recommend
from pytracer.simulator.deviation import deviation_text, reference_of
from pytracer.simulator.rules import rules_of
from pytracer.simulator.simulate import Simulated, limits_of, simulate_recording
from pytracer.variables import merge_settings

EVENTS = 5_000
SEGMENTS, EXPANDABLE = "expandable_segments:False", "expandable_segments:True"
VARIABLES = {"cuda": "PYTORCH_CUDA_ALLOC_CONF", "npu": "PYTORCH_NPU_ALLOC_CONF"}
HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(
    not simulated.active(), reason="the recorded program needs a device of its own"
)


Record = Callable[..., tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def record(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Return a function that runs the program once for each set of arguments.

    It takes settings, a seed, the device's size in MiB, who records, and options, and returns the
    snapshot's path, and the allocator's statistics.
    """

    @functools.cache
    def record_once(
        settings: str, seed: int, mib: int = 0, by: str = "pytracer", **options: object
    ) -> tuple[Path, dict[str, Any]]:
        folder = tmp_path_factory.mktemp("recorded")
        size = {"SIMULATED_CAPACITY_MB": str(mib)} if mib else {}
        env = environment(**{VARIABLES[backend]: settings}, **size)
        given = {"recorders": [by], "seed": seed, "events": EVENTS, "pools": False, **options}
        arguments = (HERE / "recorded_workload.py", backend, json.dumps(given))
        done = run_python(*arguments, cwd=folder, env=env)
        assert done.returncode == 0, done.stderr
        return folder / f"{by}-{by}.pickle", json.loads(done.stdout.splitlines()[-1])

    return record_once


def simulated_under(recording: Recording, settings: str, capacity: int | None = None) -> Simulated:
    """Simulate a recording under settings that are merged with its own."""
    text = merge_settings(recording.settings, settings)
    rules = rules_of(text, recording.backend, recording.torch_version)
    return simulate_recording(recording, rules, limits_of(recording, capacity), with_curve=True)


def reserved_after(recording: Recording) -> Column:
    """Return the bytes that a recording has reserved after each allocation and free."""
    event = recording.requests.event[np.isin(recording.requests.kind, (ALLOCATE, FREE))]
    return recording.history.usage.reserved_bytes[event + 1]


def allocated_after(recording: Recording) -> Column:
    """Return the same of allocated bytes."""
    event = recording.requests.event[np.isin(recording.requests.kind, (ALLOCATE, FREE))]
    return recording.history.usage.allocated_bytes[event + 1]


@pytest.mark.parametrize("settings", [SEGMENTS, EXPANDABLE])
def test_a_recording_from_an_empty_allocator(record: Record, settings: str) -> None:
    # GIVEN a program that was recorded from its beginning, with pools and delayed frees
    path, statistics = record(settings, 31, delays=True, pools=True)
    recording = extract_recording(load(path), 0)
    # WHEN it is simulated with its own settings
    found = reference_of(recording)
    # THEN the simulation reserves the same memory after each request
    assert found.is_exact
    assert found.deviation.requests > 1000
    assert deviation_text(found.deviation).startswith("The simulation is exact: ")
    done = simulated_under(recording, "")
    assert done.peak_reserved_bytes == statistics["reserved_bytes.all.peak"]
    # AND blocks with a pending free are not allocated
    assert done.allocated_bytes is not None
    is_answered = np.isin(recording.requests.kind, (ALLOCATE, FREE))
    assert np.array_equal(done.allocated_bytes[is_answered], allocated_after(recording))
    assert done.allocated_bytes.max() == statistics["allocated_bytes.all.peak"]


def test_a_recording_by_torch(record: Record) -> None:
    # GIVEN a recording by torch's own recorder, with expandable segments
    path, statistics = record(EXPANDABLE, 32, by="torch", context=None)
    recording = extract_recording(load(path), 0)
    # THEN its simulation equals the program
    assert reference_of(recording).is_exact
    assert EXPANDABLE in recording.settings
    peak = simulated_under(recording, "").peak_reserved_bytes
    assert peak == statistics["reserved_bytes.all.peak"]


@pytest.mark.parametrize(
    ("before", "after"),
    [(SEGMENTS, EXPANDABLE), (EXPANDABLE, SEGMENTS), (SEGMENTS, "max_split_size_mb:21")],
)
def test_other_settings_equal_the_program_with_them(
    record: Record, before: str, after: str
) -> None:
    # GIVEN a program, recorded with two settings
    path, _ = record(before, 33)
    other, statistics = record(after, 33)
    recording, expected = (extract_recording(load(each), 0) for each in (path, other))
    # WHEN the first recording is simulated with the second settings
    done = simulated_under(recording, after)
    # THEN it reserves what the program reserved there, after each allocation and free
    counts = count_events(expected.trace, is_cpu=False)
    assert done.peak_reserved_bytes == statistics["reserved_bytes.all.peak"]
    assert done.device_allocs + done.maps == counts.device_allocs
    assert done.reserved_bytes is not None
    found = done.reserved_bytes[np.isin(recording.requests.kind, (ALLOCATE, FREE))]
    assert len(found) > 1000
    assert np.array_equal(found, reserved_after(expected))
    # AND the first recording's reserved bytes are different
    assert not np.array_equal(found, reserved_after(recording))


def test_memory_that_runs_out(record: Record) -> None:
    # GIVEN a program that ran out of memory
    path, statistics = record(SEGMENTS, 31, mib=150)
    assert statistics["oom"]
    device = int(np.argmax([np.any(trace.action == OOM) for trace in load(path).traces]))
    recording = extract_recording(load(path), device)
    # WHEN it is simulated with the same memory, with twice the memory, and with less
    own = simulated_under(recording, "")
    twice = simulated_under(recording, "", 300 << 20)
    less = simulated_under(recording, "", 60 << 20)
    # THEN memory runs out at the same request with the same memory
    assert recording.limit_bytes == 150 << 20
    assert own.oom_requests.tolist() == np.flatnonzero(recording.requests.kind == FAIL).tolist()
    assert (own.failed_request, own.fitted, own.ooms) == (None, 0, 1)
    assert reference_of(recording).is_exact
    # AND the level at that time equals the recording's
    (event,) = np.flatnonzero(recording.trace.action == OOM)
    (failed,) = own.oom_requests
    assert own.reserved_bytes is not None
    assert own.reserved_bytes[failed] == recording.history.usage.reserved_bytes[event + 1]
    # AND with twice the memory, the request succeeds
    assert (twice.ooms, twice.fitted) == (0, 1)
    # AND with less, an earlier one fails
    assert (less.ooms, less.peak_reserved_bytes <= 60 << 20) == (1, True)
    assert less.failed_request is not None
    earlier = int(recording.requests.event[less.failed_request])
    assert recording.trace.action[earlier] == ALLOC
    assert recording.requests.size_bytes[less.failed_request] > 0


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"late": 2500}, id="late"),
        pytest.param({"entries": 1000}, id="ring", marks=pytest.mark.long),
    ],
)
def test_an_incomplete_recording_is_simulated_from_its_first_event(
    record: Record, options: dict[str, int]
) -> None:
    # GIVEN a recording that began late, or that lost its first events
    path, _ = record(SEGMENTS, 34, **options)
    recorded = load(path)
    # WHEN it is simulated
    found = recommend(path, settings=[EXPANDABLE], device=0)
    # THEN it has the recorded levels, after each request
    recording = extract_recording(recorded, 0)
    requests, done = recording.requests, simulated_under(recording, "")
    assert done.reserved_bytes is not None
    is_compared = np.isin(requests.kind, (ALLOCATE, FREE)) & (requests.event >= 0)
    levels = recording.history.usage.reserved_bytes
    difference = done.reserved_bytes[is_compared] - levels[requests.event[is_compared] + 1]
    deviation = found.deviation
    assert requests.older_blocks > 10
    assert not np.any(difference)
    assert deviation.requests == deviation.equal == len(difference) > 500
    assert deviation.peak_bytes == done.peak_reserved_bytes - levels.max() == 0
    # AND notes have the number of older blocks, and name the simulations that start otherwise
    older = f"{requests.older_blocks} blocks"
    kept, other = (note for note in found.notes if older in note)
    assert kept.startswith("The simulation of own settings")
    assert other.startswith(f"The simulation of {EXPANDABLE} starts with an empty cache")


def test_training(backend: str, tmp_path: Path) -> None:
    # GIVEN a training loop, recorded from its beginning
    arguments = (HERE / "training.py", backend, tmp_path / "recorded.pickle")
    done = run_python(*arguments, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    statistics = json.loads(done.stdout.splitlines()[-1])["devices"][0]
    # WHEN it is compared with other settings
    found = recommend(tmp_path / "recorded.pickle", settings=[EXPANDABLE])
    # THEN the simulation of its own settings equals the training
    assert found.deviation.equal == found.deviation.requests > 500
    assert found.own.peak_reserved_bytes == statistics["stats"]["reserved_bytes.all.peak"]
