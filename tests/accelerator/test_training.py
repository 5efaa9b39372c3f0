"""Test a training traced from begin to end: run training.py as a program, and check its file."""

import json
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import processes
import pytest
import viewed_pickles
import viewers

from pytracer.analysis.history import replay
from pytracer.reading import load

PROGRAM = Path(__file__).parent / "training.py"


class Trained(NamedTuple):
    """The file and the statistics of a training."""

    path: Path
    snapshot: dict[str, Any]
    stats: dict[str, Any]  # statistics of the tracer
    torch: list[dict[str, Any]]  # statistics of torch at the end, for each device


def train(folder: Path, *arguments: str) -> Trained:
    path = folder / "training.pickle"
    command = ["-W", "ignore::DeprecationWarning", PROGRAM, *arguments, path]
    done = processes.run_python(*command, cwd=folder)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    return Trained(path, pickle.loads(path.read_bytes()), result["stats"], result["devices"])


@pytest.fixture(scope="module")
def trained(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Run one training on device 0."""
    return train(tmp_path_factory.mktemp("training"), f"{backend}:0")


def blocks(snapshot: dict[str, Any], device: int) -> list[dict[str, Any]]:
    """Return the allocated blocks of a device."""
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
    """Check that the file's numbers of a device equal torch's."""
    expected = trained.torch[device]
    devices = trained.snapshot["pytracer"]["devices"]
    (metadata,) = (entry for entry in devices if entry["index"] == device)
    segments = [entry for entry in trained.snapshot["segments"] if entry["device"] == device]
    alive = blocks(trained.snapshot, device)
    # No event was lost, and the device was used.
    losses = (metadata["overwritten"], metadata["unknown_frees"], metadata["live_dropped"])
    assert losses == (0, 0, 0)
    assert trained.stats["stacks"]["dropped"] == 0
    assert expected["allocated"] > 0
    # The state at the end.
    assert sum(block["size"] for block in alive) == expected["allocated"]
    assert sum(segment["total_size"] for segment in segments) == expected["reserved"]
    assert metadata["reserved_bytes"] == expected["reserved"]
    requested = sum(block["requested_size"] for block in alive)
    assert requested == expected["stats"]["requested_bytes.all.current"]
    # The peaks.
    usage = replay(load(trained.path), device).usage
    assert usage.requested_bytes[0] == 0
    assert usage.requested_bytes[-1] == requested
    assert usage.requested_bytes.max() == expected["stats"]["requested_bytes.all.peak"]
    assert usage.allocated_bytes.max() == expected["most_allocated"]
    assert usage.requested_bytes[-1] < usage.requested_bytes.max() < expected["most_allocated"]
    # The totals of the recording.
    trace = trained.snapshot["device_traces"][device]
    allocations = [event for event in trace if event["action"] == "alloc"]
    assert len(allocations) == expected["stats"]["allocation.all.allocated"]
    total = sum(event["size"] for event in allocations)
    assert total == expected["stats"]["requested_bytes.all.allocated"]
    count = sum(event["action"] == "segment_alloc" for event in trace)
    assert count == expected["stats"]["segment.all.allocated"]


def check_sites(trained: Trained, device: int) -> None:
    """Check that call sites are found by the names of the program's functions."""
    # The model and the optimizer's state, with two values for each parameter, are live at the end;
    # the gradients are not.
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
    # Activations are allocated by the model's methods, on the training thread.
    forward = [event for event in allocations if "forward_step" in functions(event)]
    assert {"attend", "feed_forward"} <= {name for event in forward for name in functions(event)}
    # The backward recomputes one layer's activations on autograd's thread, without `train`.
    recomputed = [e for e in allocations if {"attend", "feed_forward"} & {*functions(e)}]
    recomputed = [event for event in recomputed if "train" not in functions(event)]
    assert {"attend", "feed_forward"} <= {name for e in recomputed for name in functions(e)}
    # The rest of the backward runs in C++, on a thread without Python frames.
    backward = [event for event in allocations if not event["frames"]]
    assert len(backward) > 100
    # A free has the frames of its caller. The backward frees the activations, so those have none.
    frees = [event for event in trace if event["action"] == "free_completed"]
    assert any(not event["frames"] for event in frees)
    assert any("optimizer_step" in functions(event) for event in frees)


def test_viewers_open_it(trained: Trained, tmp_path: Path) -> None:
    # GIVEN the snapshot of a training, THEN the viewers' checks and torch's own tool accept it
    viewed_pickles.check_opcodes(trained.path.read_bytes())
    viewers.check_snapshot(trained.snapshot)
    stats = viewers.run_memory_viz(trained.path, "stats")
    assert "segments: " in stats
    text = viewers.run_memory_viz(trained.path, "trace")
    assert "alloc(" in text
    for command in ("trace_plot", "segment_plot", "memory", "segments"):
        output = tmp_path / f"{command}.out"
        assert len(viewers.run_memory_viz(trained.path, command, output=output)) > 1_000
    # AND the output has frames of the program
    assert "optimizer_step" in (tmp_path / "memory.out").read_text()


def test_it_agrees_with_torch(trained: Trained) -> None:
    check_against_torch(trained, 0)


def test_call_sites_have_function_names(trained: Trained) -> None:
    check_sites(trained, 0)


@pytest.mark.usefixtures("two_devices")
def test_the_other_device_is_not_touched(trained: Trained) -> None:
    assert trained.torch[1]["reserved"] == 0
    assert blocks(trained.snapshot, 1) == []
    assert {event["action"] for event in trained.snapshot["device_traces"][1]} <= {"snapshot"}


@pytest.mark.usefixtures("two_devices")
def test_two_models_on_two_devices_by_two_threads(backend: str, tmp_path: Path) -> None:
    # WHEN two threads train at the same time, each on a device
    trained = train(tmp_path, f"{backend}:0,{backend}:1")
    # THEN each device has a complete and consistent trace of its own
    viewers.check_snapshot(trained.snapshot)
    for device in (0, 1):
        check_against_torch(trained, device)
        check_sites(trained, device)


def test_data_loader_workers_do_not_interfere(
    backend: str, trained: Trained, tmp_path: Path
) -> None:
    # WHEN the batches come from forked processes
    with_workers = train(tmp_path, f"{backend}:0", "--workers=2")
    # THEN the recording is correct
    viewed_pickles.check_opcodes(with_workers.path.read_bytes())
    viewers.check_snapshot(with_workers.snapshot)
    check_against_torch(with_workers, 0)
    check_sites(with_workers, 0)
    # AND there is one file, with as many allocations as without workers
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["training.pickle"]
    counts = [
        [event["action"] for event in result.snapshot["device_traces"][0]].count("alloc")
        for result in (trained, with_workers)
    ]
    assert counts[0] == counts[1]
