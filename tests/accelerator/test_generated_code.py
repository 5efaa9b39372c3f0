"""Frames in generated code are followed by the model's, as in torch's own recorder."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch._inductor.codecache import PyCodeCache

import pytracer

SOURCE = """import torch
def call(device):
    a = torch.ones(1000, device=device)
    b = torch.ones(2000, device=device)
    c = torch.ones(3000, device=device)
    return a, b, c
"""
TRACE = 'File "model.py", line 30, in forward\n    x\nFile "layers.py", line 7, in gelu\n    y\n'


def test_frames_are_those_of_torchs_recorder(
    backend: str, device: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN generated code, of which torch knows the origin of lines 3 and 4, and both recorders
    path = str(tmp_path / "generated.py")
    monkeypatch.setitem(PyCodeCache.linemaps, path, ([1, 3, 5], ["", TRACE, ""]))
    names: dict[str, Any] = {}
    exec(compile(SOURCE, path, "exec"), names)
    device.memory._record_memory_history(max_entries=1000, stacks="python", context="all")
    try:
        with pytracer.Tracer(device=backend, stack_depth=200) as tracer:
            kept = names["call"](backend)
            theirs = device.memory._snapshot()
            ours = tracer.snapshot()
    finally:
        device.memory._record_memory_history(enabled=None)
    frames = [
        [
            event["frames"]
            for event in snapshot["device_traces"][0]
            if event["action"] == "alloc" and event["addr"] in [each.data_ptr() for each in kept]
        ]
        for snapshot in (ours, theirs)
    ]
    # THEN both have the same frames, the model's among them
    assert len(frames[0]) == 3
    assert [[frame["name"] for frame in stack[:3]] for stack in frames[0][:2]] == (
        [["call", "gelu", "forward"]] * 2
    )
    assert frames[0] == frames[1]
