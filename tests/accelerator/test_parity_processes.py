"""pytracer alone, PyTorch's recorder alone, and both, each in a process: the same record.

So nothing in ours comes from theirs, and theirs does not change because ours is there.
"""

import json
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import processes
import pytest
import simulated
from accelerator.parity import DifferenceError, Rules, Seen, Snapshot, check_parity, normalised

PROGRAM = Path(__file__).with_name("parity_process.py")
EVENTS = 45_000
PARTS = 3
CONFIGURATIONS = [
    pytest.param({"seed": 21, "expandable": "toggled", "context": "all", "depth": 32}, id="all"),
    pytest.param({"seed": 22, "expandable": "on", "context": "alloc", "depth": 5}, id="alloc"),
]


@dataclass
class Recorded:
    """What processes with the same activity recorded."""

    rules: Rules
    native_alone: Snapshot
    pytracer_alone: Snapshot
    native_beside: Snapshot  # with pytracer on
    native_off: Snapshot  # PyTorch's, not recording, in the process of pytracer alone


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def recorded(
    request: pytest.FixtureRequest, backend: str, tmp_path_factory: pytest.TempPathFactory
) -> Recorded:
    options: dict[str, Any] = {**request.param, "events": EVENTS, "parts": PARTS}
    folder = tmp_path_factory.mktemp("parity")
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(PROGRAM), backend]
    done = subprocess.run(
        [*command, json.dumps(options), str(folder)],
        # torch_npu: no thread that hands work to the device, at moments of its own.
        env=processes.environment(TASK_QUEUE_ENABLE="0"),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = {path.name: pickle.loads(path.read_bytes()) for path in folder.iterdir()}
    return Recorded(
        Rules(options["context"], options["depth"]),
        native_alone=results["native"][0],
        pytracer_alone=results["pytracer"][1],
        native_beside=results["both"][0],
        native_off=results["pytracer"][0],
    )


def comparable(snapshot: Snapshot) -> Snapshot:
    return normalised(snapshot, same_device=simulated.active())


def test_pytracer_alone_records_what_pytorch_alone_does(recorded: Recorded) -> None:
    # GIVEN the record of a process in which PyTorch's recorder was off
    assert not any(recorded.native_off["device_traces"])

    # WHEN it is compared with PyTorch's own of the same activity, in a process without pytracer
    compared = check_parity(
        comparable(recorded.native_alone), comparable(recorded.pytracer_alone), recorded.rules
    )

    # THEN they are the same, of everything there is
    assert compared >= EVENTS
    seen = Seen().add(recorded.native_alone)
    assert {"alloc", "segment_map", "segment_unmap", "oom"} <= seen.actions.keys()
    assert len(seen.streams) >= 4
    assert len(seen.pools) > 10
    assert len(seen.stacks) > (500 if recorded.rules.context == "all" else 200)
    if simulated.active():
        assert seen.delayed_frees > 100
        assert seen.pending_blocks >= 2


def test_pytorch_records_the_same_beside_pytracer(recorded: Recorded) -> None:
    # GIVEN PyTorch's records of the same activity with and without pytracer, which wrote snapshots
    alone, beside = recorded.native_alone, recorded.native_beside

    # THEN they are the same, but for one marker for each snapshot on each device
    assert comparable(beside) == comparable(alone)
    for trace_alone, trace_beside in zip(
        alone["device_traces"], beside["device_traces"], strict=True
    ):
        markers = [event for event in trace_beside if event["action"] == "snapshot"]
        assert len(markers) == PARTS
        assert len(trace_beside) == len(trace_alone) + PARTS
        actions = Counter(event["action"] for event in trace_alone)
        assert Counter(event["action"] for event in trace_beside) - actions == {"snapshot": PARTS}


def test_the_comparison_sees_addresses(recorded: Recorded) -> None:
    """Normalised ones too."""
    # GIVEN a record in which two blocks have changed places
    snapshot = comparable(recorded.pytracer_alone)
    trace = snapshot["device_traces"][0]
    places = [i for i, event in enumerate(trace) if event["action"] == "alloc"][-2:]
    one, other = (trace[place] for place in places)
    assert one["addr"] != other["addr"]
    one["addr"], other["addr"] = other["addr"], one["addr"]

    # THEN that shows
    with pytest.raises(DifferenceError):
        check_parity(comparable(recorded.native_alone), snapshot, recorded.rules)
