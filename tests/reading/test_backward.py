"""What files say of allocations in the backward pass: pytracer's keys, and torch's alone."""

import pickle
from typing import Any

import pytest
from snapshot_equality import backward

from pytracer.analysis.call_sites import call_sites, frame_at
from pytracer.errors import PytracerError
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Frame, Snapshot

FORWARD = [
    '  File "/app/train.py", line 9, in main\n    loss = model(x)\n',
    '  File "/app/model, line 3.py", line 41, in forward\n    return x.log_softmax(-1)\n',
    "  [Previous line repeated 3 more times]\n",
    '  File "/py/lib/python3.11/site-packages/torch/nn/functional.py", line 5, in relu\n',
]
FRAMES = (
    Frame("/py/lib/python3.11/site-packages/torch/nn/functional.py", "relu", 5),
    Frame("/app/model, line 3.py", "forward", 41),
    Frame("/app/train.py", "main", 9),
)
ENGINE = {"filename": "/py/site-packages/torch/autograd/graph.py", "line": 1}
ENGINE["name"] = "_engine_run_backward"
PROGRAM = {"filename": "/app/train.py", "name": "main", "line": 10}


def snapshot(**keys: Any) -> Snapshot:
    event = {"action": "alloc", "addr": 64, "size": 8, "stream": 0, "frames": [], **keys}
    content = {"segments": [], "device_traces": [[event]]}
    return load(pickle.dumps(content, protocol=4))


def site(loaded: Snapshot) -> str:
    frame = frame_at(loaded.stacks, int(call_sites(loaded.stacks)[loaded.traces[0].stack[0]]))
    return "" if frame is None else f"{frame.filename}:{frame.line} {frame.name}"


def test_forward_frames_of_torch_are_exact() -> None:
    # GIVEN an event as torch's recorder writes it in anomaly mode
    loaded = snapshot(forward_frames=FORWARD)
    # THEN its stack has the forward frames, innermost first, and nothing is unknown
    stack = int(loaded.traces[0].stack[0])
    assert loaded.stacks.frames(stack) == ()
    assert backward(loaded, stack) == ("", FRAMES, "", True)
    assert loaded.unknown_keys == ()
    # AND its call site is the program's line of the forward call
    assert site(loaded) == "/app/model, line 3.py:41 backward of forward"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {"forward_frames": FORWARD, "forward_exact": True, "autograd_node": "ReluBackward0"},
            "/app/model, line 3.py:41 backward of forward (ReluBackward0)",
        ),
        (
            {"forward_frames": FORWARD, "forward_exact": False, "autograd_node": "ReluBackward0"},
            "/app/model, line 3.py:41 backward near forward (ReluBackward0)",
        ),
        ({"autograd_node": "AccumulateGrad"}, ":0 backward (AccumulateGrad)"),
        # On the CPU the engine runs below the program's frames.
        (
            {"forward_frames": FORWARD, "frames": [ENGINE, PROGRAM]},
            "/app/model, line 3.py:41 backward of forward",
        ),
        # Python code that a node runs, as a recomputation, is the program's own call.
        ({"forward_frames": FORWARD, "frames": [PROGRAM, ENGINE]}, "/app/train.py:10 main"),
        ({"frames": [ENGINE, PROGRAM]}, "/app/train.py:10 main"),
        ({"forward_frames": ["no frame"]}, ""),
        ({"forward_frames": None, "autograd_node": None}, ""),
    ],
)
def test_call_sites(keys: dict[str, Any], expected: str) -> None:
    assert site(snapshot(**keys)) == expected


def test_the_phase_of_the_forward_call() -> None:
    loaded = snapshot(forward_frames=FORWARD, forward_phase="layers.3.mlp")
    stack = int(loaded.traces[0].stack[0])
    assert backward(loaded, stack) == ("", FRAMES, "layers.3.mlp", True)
    assert loaded.unknown_keys == ()
    # AND stacks that differ in the phase alone are two
    event = {"action": "alloc", "addr": 64, "size": 8, "stream": 0, "frames": []}
    events = [{**event, "forward_frames": FORWARD, "forward_phase": name} for name in "aba"]
    content = {"segments": [], "device_traces": [events]}
    loaded = load(pickle.dumps(content, protocol=4))
    stacks = loaded.traces[0].stack.tolist()
    assert stacks[0] == stacks[2] != stacks[1]


@pytest.mark.parametrize(
    "keys",
    [
        {"forward_frames": 3},
        {"forward_frames": [3]},
        {"forward_phase": 3},
        {"autograd_node": [1]},
    ],
)
def test_a_wrong_type_is_an_error(keys: dict[str, Any]) -> None:
    with pytest.raises(PytracerError, match="is damaged"):
        snapshot(**keys)


@pytest.mark.parametrize("text", ['  File "', '  File "a", line ', '  File "a", line x, in f', ""])
def test_a_text_that_is_no_frame_is_left_out(text: str) -> None:
    loaded = snapshot(forward_frames=[text, FORWARD[0]])
    _, frames, _, _ = backward(loaded, int(loaded.traces[0].stack[0]))
    assert frames == (Frame("/app/train.py", "main", 9),)
