"""Test windows on an accelerator: each file has all events of its step, and a consistent state."""

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import viewers
from processes import environment, run
from step_files import Snapshot, timeless

from pytracer import Tracer, annotate, patch_torch, text, unpatch_torch
from pytracer.tracing import description

STEPS = 4


@pytest.fixture
def patched() -> Iterator[None]:
    patch_torch()
    yield
    unpatch_torch()


def read(folder: Path) -> Snapshot:
    """Load the only file in a folder."""
    (path,) = folder.glob("*.pickle")
    snapshot = pickle.loads(path.read_bytes())
    viewers.check_snapshot(snapshot)
    return snapshot


def roll_out(backend: str, length: int) -> torch.Tensor:
    with annotate("rollout"):
        return torch.cat([torch.ones(length, 64, device=backend) for _ in range(3)])


def update(weights: torch.Tensor, batch: torch.Tensor) -> None:
    with annotate("update"):
        (batch @ weights).relu().sum().backward()
        weights.grad = None


def test_overlapping_sessions_have_the_same_events(
    backend: str, device: ModuleType, tmp_path: Path, patched: None
) -> None:
    # GIVEN a tracer of the complete run, a session of torch's functions that is restarted at each
    # step, and windows of some steps and of their phases
    memory = device.memory
    sessions = []
    weights = torch.ones(64, 64, device=backend, requires_grad=True)
    torch.ones(1, device=backend, requires_grad=True).sum().backward()  # start autograd's threads
    with Tracer(device=backend) as complete:
        memory._record_memory_history()
        with Tracer(tmp_path, device=backend, steps=[2, 3], discrete=True) as windows:
            held = torch.empty(12345, device=backend)
            for step in range(1, STEPS + 1):
                update(weights, roll_out(backend, 10 * step))
                sessions.append(memory._snapshot())
                memory._record_memory_history(enabled=None)
                memory._record_memory_history()
                windows.step()
        memory._record_memory_history(enabled=None)
        at_the_end = complete.snapshot()
    # THEN the sessions together equal the complete run, and each window equals a session
    by_step = [timeless(session) for session in sessions]
    assert all(len(step_events) > 20 for step_events in by_step)
    run_events = [event for step_events in by_step for event in step_events]
    assert run_events == timeless(at_the_end)
    folders = {path.name for path in tmp_path.glob("[!.]*")}
    assert folders == {"step2", "step3"}
    for step in (2, 3):
        snapshot = read(tmp_path / f"step{step}")
        assert timeless(snapshot) == by_step[step - 1]
        # AND a block from before the window has the stack of its allocation
        (block,) = (
            block
            for segment in snapshot["segments"]
            for block in segment["blocks"]
            if block["address"] == held.data_ptr()
        )
        assert block["frames"][0]["name"] == "test_overlapping_sessions_have_the_same_events"
        # AND each phase's file has its events, including those of autograd's threads
        for phase in ("rollout", "update"):
            expected = [e for e in by_step[step - 1] if e["user_metadata"] == phase]
            assert timeless(read(tmp_path / f"step{step}" / phase)) == expected
            assert any(not event["frames"] for event in expected) == (phase == "update")


def test_a_device_that_is_initialised_during_a_step(backend: str, tmp_path: Path) -> None:
    # GIVEN a program that sees a device only in its second step, which is recorded
    variable = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}[backend]
    program = """
import os, sys, torch
if sys.argv[1] == "npu": import torch_npu
import pytracer
backend, variable = sys.argv[1:]
with pytracer.Tracer("out", steps=[2], discrete=True) as tracer:
    torch.empty(1000, dtype=torch.uint8)
    tracer.step()
    os.environ[variable] = "0,1"
    with pytracer.annotate("open"):
        first = torch.empty(2000, dtype=torch.uint8, device=backend)
    with pytracer.annotate("later"):
        second = torch.empty(3000, dtype=torch.uint8, device=backend)
    tracer.step()
    third = torch.empty(4000, dtype=torch.uint8, device=backend)
"""
    env = environment(**{variable: ""})
    done = run(program, backend, variable, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    # THEN the file has the step's events on the device
    folder = tmp_path / "out" / "step2"
    content = read(folder)
    assert content["pytracer"]["backends"] == [backend]
    assert [e["size"] for e in timeless(content) if e["action"] == "alloc"] == [2000, 3000]
    devices = content["pytracer"]["devices"]
    assert {step for device in devices for step, _ in device["steps"]} == {2}
    # AND a phase has a file if it began on the device
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"later"}
    assert [e["size"] for e in timeless(read(folder / "later")) if e["action"] == "alloc"] == [3000]


def test_the_summary_line_has_the_allocators_peak(
    backend: str,
    device: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # GIVEN a recording with a peak of 5 MiB, which is the highest since the reset
    monkeypatch.setattr(description, "_reporting_pid", None)
    device.empty_cache()
    before = device.memory_allocated()
    for index in range(device.device_count()):
        device.reset_peak_memory_stats(index)
    with Tracer(tmp_path / "x.pickle", device=backend) as tracer:
        held = torch.empty(5 * 2**20, dtype=torch.uint8, device=backend)
        del held
    # THEN the line has the peak and the source of the number
    peak = text.size(device.max_memory_allocated())
    assert device.max_memory_allocated() >= before + 5 * 2**20
    err = capsys.readouterr().err
    assert re.search(
        rf"x\.pickle: \d+ events?, peak {peak} allocated on {backend}:0.* "
        rf"\(torch\.{backend}\.max_memory_allocated\)\n$",
        err,
    )
    assert repr(tracer) == "<pytracer.Tracer, not recording>"
    device.empty_cache()
