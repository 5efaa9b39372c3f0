"""A training traced from end to end: training.py, run as a program, and what its file says."""

import json
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import processes
import pytest
import torch
import viewers

from pytracer.reading import load
from pytracer.reading.history import replay

PROGRAM = Path(__file__).parent / "training.py"


class Trained(NamedTuple):
    """What a training left."""

    path: Path
    snapshot: dict[str, Any]
    stats: dict[str, Any]  # the tracer's
    torch: list[dict[str, Any]]  # what torch said at the end, for each device


def train(folder: Path, *arguments: str) -> Trained:
    path = folder / "training.pickle"
    command = ["-W", "ignore::DeprecationWarning", PROGRAM, *arguments, path]
    done = processes.run_python(*command, cwd=folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    return Trained(path, pickle.loads(path.read_bytes()), told["stats"], told["devices"])


@pytest.fixture(scope="module")
def trained(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One training, on device 0."""
    return train(tmp_path_factory.mktemp("training"), f"{backend}:0")


def blocks(snapshot: dict[str, Any], device: int) -> list[dict[str, Any]]:
    """The active ones."""
    return [
        block
        for segment in snapshot["segments"]
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]


def functions(entry: dict[str, Any]) -> list[str]:
    return [frame["name"] for frame in entry["frames"]]


def check_against_torch(trained: Trained, device: int) -> None:
    """What the file says of a device is what torch says."""
    said = trained.torch[device]
    (about,) = (each for each in trained.snapshot["pytracer"]["devices"] if each["index"] == device)
    segments = [each for each in trained.snapshot["segments"] if each["device"] == device]
    alive = blocks(trained.snapshot, device)
    # Nothing was lost, and there is something.
    assert (about["overwritten"], about["unknown_frees"], about["live_dropped"]) == (0, 0, 0)
    assert trained.stats["stacks"]["dropped"] == 0
    assert said["allocated"] > 0
    # At the end.
    assert sum(block["size"] for block in alive) == said["allocated"]
    assert sum(segment["total_size"] for segment in segments) == said["reserved"]
    assert about["reserved_bytes"] == said["reserved"]
    requested = sum(block["requested_size"] for block in alive)
    assert requested == said["stats"]["requested_bytes.all.current"]
    # At the fullest moment.
    levels = replay(load(trained.path), device).levels
    assert levels.requested_bytes[0] == 0
    assert levels.requested_bytes[-1] == requested
    assert levels.requested_bytes.max() == said["stats"]["requested_bytes.all.peak"]
    assert levels.allocated_bytes.max() == said["most_allocated"]
    assert levels.requested_bytes[-1] < levels.requested_bytes.max() < said["most_allocated"]
    # All along.
    trace = trained.snapshot["device_traces"][device]
    allocations = [event for event in trace if event["action"] == "alloc"]
    assert len(allocations) == said["stats"]["allocation.all.allocated"]
    total = sum(event["size"] for event in allocations)
    assert total == said["stats"]["requested_bytes.all.allocated"]
    count = sum(event["action"] == "segment_alloc" for event in trace)
    assert count == said["stats"]["segment.all.allocated"]


def check_sites(trained: Trained, device: int) -> None:
    """Who allocated is found by the names of the program's functions."""
    # The model and the optimizer's state, two values for each parameter, are alive; gradients are
    # not.
    alive = blocks(trained.snapshot, device)
    parameters = [block for block in alive if "make_model" in functions(block)]
    state = [block for block in alive if "optimizer_step" in functions(block)]
    assert len(parameters) == 3 * 12 + 4
    parameter_bytes = sum(block["requested_size"] for block in parameters)
    state_bytes = sum(block["requested_size"] for block in state)
    assert 2 * parameter_bytes <= state_bytes < 2.2 * parameter_bytes
    assert all("train" in functions(block) for block in parameters + state)

    trace = trained.snapshot["device_traces"][device]
    allocations = [event for event in trace if event["action"] == "alloc"]
    # Activations come from the model's methods, on the thread that trains.
    forward = [event for event in allocations if "forward_step" in functions(event)]
    assert {"attend", "feed_forward"} <= {name for event in forward for name in functions(event)}
    # One layer's are made again in the backward, on autograd's thread: that one did not come there
    # from `train`.
    again = [event for event in allocations if {"attend", "feed_forward"} & {*functions(event)}]
    again = [event for event in again if "train" not in functions(event)]
    assert {"attend", "feed_forward"} <= {name for event in again for name in functions(event)}
    # The rest of the backward is C++, on a thread without Python frames.
    backward = [event for event in allocations if not event["frames"]]
    assert len(backward) > 100
    # Every free has the frames of who let go: for the activations that is the backward.
    frees = [event for event in trace if event["action"] == "free_completed"]
    assert any(not event["frames"] for event in frees)
    assert any("optimizer_step" in functions(event) for event in frees)


def test_viewers_open_it(trained: Trained, tmp_path: Path) -> None:
    # GIVEN the snapshot of a training, THEN the page and torch's own tool read it
    viewers.check_opcodes(trained.path.read_bytes())
    viewers.check_snapshot(trained.snapshot)
    stats = viewers.run_memory_viz(trained.path, "stats")
    assert "segments: " in stats
    text = viewers.run_memory_viz(trained.path, "trace")
    assert "alloc(" in text
    for command in ("trace_plot", "segment_plot", "memory", "segments"):
        output = tmp_path / f"{command}.out"
        assert len(viewers.run_memory_viz(trained.path, command, output=output)) > 1_000
    # AND frames of the program are in it
    assert "optimizer_step" in (tmp_path / "memory.out").read_text()


def test_it_agrees_with_torch(trained: Trained) -> None:
    check_against_torch(trained, 0)


def test_sites_are_found_by_function_names(trained: Trained) -> None:
    check_sites(trained, 0)


def test_the_other_device_is_not_touched(trained: Trained) -> None:
    assert trained.torch[1]["reserved"] == 0
    assert blocks(trained.snapshot, 1) == []
    assert {event["action"] for event in trained.snapshot["device_traces"][1]} <= {"snapshot"}


def test_two_models_on_two_devices_by_two_threads(backend: str, tmp_path: Path) -> None:
    if getattr(torch, backend).device_count() < 2:
        pytest.skip("needs two devices")
    # WHEN two threads train at the same time, each on a device
    trained = train(tmp_path, f"{backend}:0,{backend}:1")
    # THEN each device has a whole and consistent trace of its own
    viewers.check_snapshot(trained.snapshot)
    for device in (0, 1):
        check_against_torch(trained, device)
        check_sites(trained, device)


def test_workers_disturb_nothing(backend: str, trained: Trained, tmp_path: Path) -> None:
    # WHEN the batches come from forked processes
    with_workers = train(tmp_path, f"{backend}:0", "--workers=2")
    # THEN the recording is as without
    viewers.check_opcodes(with_workers.path.read_bytes())
    viewers.check_snapshot(with_workers.snapshot)
    check_against_torch(with_workers, 0)
    check_sites(with_workers, 0)
    # AND there is one file, and no message
    assert [path.name for path in tmp_path.iterdir()] == ["training.pickle"]
    counts = [
        [event["action"] for event in each.snapshot["device_traces"][0]].count("alloc")
        for each in (trained, with_workers)
    ]
    assert counts[0] == counts[1]
