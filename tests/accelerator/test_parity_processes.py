"""Check that pytracer and PyTorch's recorder write the same record, alone and together.

Each recorder runs in a process of its own, and both in a third. So pytracer's record does not
depend on PyTorch's recorder, and pytracer does not change PyTorch's record.
"""

import json
import pickle
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import processes
import pytest
import simulated
from accelerator import parity
from accelerator.parity import DifferenceError, Rules, Seen, Snapshot, check_parity, normalised
from amount import amount

PROGRAM = Path(__file__).with_name("recorded_workload.py")
EVENTS = amount(12_000, 45_000)
PARTS = 3
CONFIGURATIONS = [
    pytest.param({"seed": 21, "expandable": "toggled", "context": "all", "depth": 32}, id="all"),
    pytest.param({"seed": 22, "expandable": "on", "context": "alloc", "depth": 5}, id="alloc"),
]


@dataclass
class Recorded:
    """The records of processes with the same activity."""

    rules: Rules
    native_alone: Snapshot
    pytracer_alone: Snapshot
    native_with_pytracer: Snapshot
    native_off: Snapshot  # of PyTorch, not recording, in the process of pytracer alone


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def recorded(
    request: pytest.FixtureRequest, backend: str, tmp_path_factory: pytest.TempPathFactory
) -> Recorded:
    # Delays on a real device differ from run to run.
    options = {**request.param, "events": EVENTS, "parts": PARTS, "delays": simulated.active()}
    options |= {"late": 0, "recorders": ["torch", "pytracer", "both"]}
    folder = tmp_path_factory.mktemp("parity")
    # The task queue of torch_npu would use the device at times of its own.
    env = processes.environment(TASK_QUEUE_ENABLE="0")
    done = processes.run_python(PROGRAM, backend, json.dumps(options), cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    results = {path.stem: pickle.loads(path.read_bytes()) for path in folder.iterdir()}
    return Recorded(
        Rules(options["context"], options["depth"]),
        native_alone=results["torch-torch"],
        pytracer_alone=results["pytracer-pytracer"],
        native_with_pytracer=results["both-torch"],
        native_off=results["pytracer-torch"],
    )


def comparable(snapshot: Snapshot) -> Snapshot:
    return normalised(snapshot, same_device=simulated.active())


def test_pytracer_alone_writes_the_record_of_pytorch_alone(recorded: Recorded) -> None:
    # GIVEN the record of a process in which PyTorch's recorder was off
    assert not any(recorded.native_off["device_traces"])

    # WHEN it is compared with PyTorch's record of the same activity, in a process without pytracer
    compared = check_parity(
        comparable(recorded.native_alone), comparable(recorded.pytracer_alone), recorded.rules
    )

    # THEN they are equal, and the activity had all kinds of events
    assert compared >= EVENTS
    seen = Seen().add(recorded.native_alone)
    assert {"alloc", "segment_map", "segment_unmap", "oom"} <= seen.actions.keys()
    assert len(seen.streams) >= 4
    assert len(seen.pools) > 10 or not parity.HAS_POOLS
    assert len(seen.stacks) > (300 if recorded.rules.context == "all" else 120)
    if simulated.active():
        assert seen.delayed_frees > 100
        assert seen.pending_blocks >= 2


def test_pytracer_does_not_change_pytorchs_record(recorded: Recorded) -> None:
    # GIVEN PyTorch's records of the same activity, without pytracer and with its snapshots
    alone, together = recorded.native_alone, recorded.native_with_pytracer

    # THEN they are equal, except for one marker for each snapshot on each device
    assert comparable(together) == comparable(alone)
    for trace_alone, trace_together in zip(
        alone["device_traces"], together["device_traces"], strict=True
    ):
        markers = [event for event in trace_together if event["action"] == "snapshot"]
        assert len(markers) == PARTS
        assert len(trace_together) == len(trace_alone) + PARTS
        actions = Counter(event["action"] for event in trace_alone)
        counts = Counter(event["action"] for event in trace_together)
        assert counts - actions == {"snapshot": PARTS}


def test_the_comparison_detects_normalised_addresses(recorded: Recorded) -> None:
    # GIVEN a record with the addresses of two blocks swapped
    snapshot = comparable(recorded.pytracer_alone)
    trace = snapshot["device_traces"][0]
    places = [i for i, event in enumerate(trace) if event["action"] == "alloc"][-2:]
    first, second = (trace[place] for place in places)
    assert first["addr"] != second["addr"]
    first["addr"], second["addr"] = second["addr"], first["addr"]

    # THEN the comparison fails
    with pytest.raises(DifferenceError):
        check_parity(comparable(recorded.native_alone), snapshot, recorded.rules)
