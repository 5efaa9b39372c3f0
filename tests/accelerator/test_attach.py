"""Test when pytracer attaches to the allocator, and what it reports if it cannot."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from amount import amount
from processes import Done, environment, run

BEGIN = """
import json, logging, os, signal, sys, threading, torch
logging.basicConfig(format="%(message)s")
backend = sys.argv[1]
device = getattr(torch, backend)
"""
PROGRAM = """
if len(sys.argv) > 2:
    allocator = getattr(device.memory, backend.upper() + "PluggableAllocator")
    device.memory.change_current_allocator(allocator(sys.argv[2], "allocate", "release"))
import pytracer
if not os.environ.get("EARLY"):
    device.init()
tracer = pytracer.Tracer(device=backend).start()
device.init()
stats = tracer.stats()
blocks = [torch.empty(1000, device=backend) for _ in range(3)]
print(json.dumps([stats["recording"], stats["untraced"], len(tracer.events())]))
"""
PLUGGABLE = """
#include <stdlib.h>
void* allocate(size_t size, int device, void* stream) { return malloc(size); }
void release(void* block, size_t size, int device, void* stream) { free(block); }
"""


@pytest.fixture(params=["", "1"], ids=["initialised", "not yet"])
def early(request: pytest.FixtureRequest) -> str:
    """Return whether the tracer starts before the device is initialised."""
    return str(request.param)


def begun(program: str, backend: str, *arguments: object, cwd: Path, **options: Any) -> Done:
    return run(BEGIN + program, backend, *arguments, cwd=cwd, **options)


def check_end(done: Done) -> None:
    """Check that a program has come to its last line."""
    assert done.stdout.splitlines()[-1:] == ["fine"], done.stderr


def refusal_reason(done: Done) -> str:
    """Return why nothing was recorded; check that it is logged once and kept in the statistics."""
    assert done.returncode == 0, done.stderr
    recording, untraced, events = json.loads(done.stdout.splitlines()[-1])
    assert not recording
    assert events == 0
    assert untraced
    assert done.stderr.count(untraced) == 1
    return str(untraced)


def test_another_allocator_of_torch(backend: str, tmp_path: Path) -> None:
    if backend == "npu":
        # GIVEN torch_npu, which refuses this setting itself
        env = environment(PYTORCH_NPU_ALLOC_CONF="backend:other")
        assert "Unrecognized key 'backend'" in begun(PROGRAM, backend, cwd=tmp_path, env=env).stderr
        return
    # GIVEN an allocator that reports no events
    env = environment(EARLY="1", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    # WHEN it is to be traced; torch's import reads which allocator it is
    reason = refusal_reason(begun(PROGRAM, backend, cwd=tmp_path, env=env, new=True))
    # THEN the error names it, and the remedy
    assert "the allocator in use, cudaMallocAsync, reports no events" in reason
    assert 'no "backend" in PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF' in reason


def test_a_pluggable_allocator(backend: str, early: str, tmp_path: Path) -> None:
    # GIVEN a program with an allocator of its own
    source, library = tmp_path / "allocator.c", tmp_path / "allocator.so"
    source.write_text(PLUGGABLE)
    assert os.system(f"gcc -shared -fPIC -o {library} {source}") == 0
    # WHEN it is to be traced
    reason = refusal_reason(
        begun(PROGRAM, backend, library, cwd=tmp_path, env=environment(EARLY=early))
    )
    # THEN the error says so
    assert f"the {backend.upper()} allocator is not torch's own" in reason


def test_caching_switched_off(backend: str, tmp_path: Path) -> None:
    # GIVEN the setting for memory checkers, under which torch's allocator reports nothing
    variable = f"PYTORCH_NO_{backend.upper()}_MEMORY_CACHING"
    env = environment(**{variable: "1"})
    # WHEN it is to be traced
    reason = refusal_reason(begun(PROGRAM, backend, cwd=tmp_path, env=env))
    # THEN the error names the variable
    assert reason == f"{variable} is set, so torch's allocator reports no events; unset it"


def test_a_missing_device(backend: str, tmp_path: Path) -> None:
    # GIVEN a tracer of a device beyond the last, and of a backend that this torch does not have
    other_backend = {"cuda": "npu", "npu": "cuda"}[backend]
    program = """
import pytracer
tracer = pytracer.Tracer(device=["cpu", sys.argv[1] + ":63", sys.argv[2]]).start()
block = torch.empty(1000)
print(len(tracer.events()), tracer.stats()["untraced"])
"""
    # WHEN it starts
    done = begun(program, backend, other_backend, cwd=tmp_path)
    # THEN both are reported, and the CPU is recorded
    assert done.returncode == 0, done.stderr
    count, reason = done.stdout.splitlines()[-1].split(" ", 1)
    assert count == "1"
    assert f"{backend}:63 does not exist: torch finds " in reason
    assert f"choose from {backend}:0 to {backend}:" in reason
    missing = {"cuda": ["torch_npu is not installed"], "npu": ["without CUDA", "no CUDA device"]}
    assert any(text in reason for text in missing[backend])


def test_a_start_before_the_device_is_initialised(backend: str, tmp_path: Path) -> None:
    # GIVEN tracers that start before torch has initialised the device
    program = """
import pytracer
from pytracer import ACTIONS
def names(tracer):
    return [ACTIONS[number] for number in tracer.events()["action"]]
first = pytracer.Tracer(device=backend).start()
second = pytracer.Tracer(device=[backend, "cpu"]).start()
third = pytracer.Tracer().start()
assert not device.is_initialized() and names(first) == []
assert first.snapshot()["segments"] == []
# WHEN a forked child uses the device first, with a tracer of its own
child = os.fork()
if child == 0:
    with pytracer.Tracer(device=backend) as own:
        block = torch.empty(1000, device=backend)
        # THEN this tracer records it, and the parent's records nothing
        fine = names(own) == ["segment_alloc", "alloc"] and names(first) == []
    os._exit(0 if fine else 1)
assert os.waitpid(child, 0)[1] == 0
# WHEN the parent's first use initialises the device
block = torch.empty(1000, device=backend)
# THEN no event is lost
for tracer in (first, second, third):
    assert names(tracer) == ["segment_alloc", "alloc"], names(tracer)
(segment,) = first.snapshot()["segments"]
assert segment["blocks"][0]["frames"][0]["filename"] == __file__
print("fine")
"""
    check_end(begun(program, backend, cwd=tmp_path))


def test_a_torch_npu_without_a_tracker(backend: str, tmp_path: Path) -> None:
    if backend != "npu":
        return  # torch's own allocator has had a tracker since 2.1
    # GIVEN the headers of a torch_npu whose allocator has no tracker
    program = """
import importlib.util, logging, pathlib, torch, torch_npu, pytracer
logging.basicConfig(format="%(message)s")
real = pathlib.Path(torch_npu.__file__).parent / "include"
name = "torch_npu/csrc/core/npu/NPUCachingAllocator.h"
header = pathlib.Path("old/include", name)
header.parent.mkdir(parents=True)
header.write_text((real / name).read_text().replace("AllocatorTraceTracker", "Nothing"))
spec = importlib.util.find_spec("torch_npu")
spec.origin = str(pathlib.Path("old/__init__.py").absolute())
importlib.util.find_spec = lambda name: spec
tracer = pytracer.Tracer(device="npu").start()
block = torch.empty(1000, device="npu")
print(tracer.stats()["recording"], tracer.stats()["untraced"])
"""
    # WHEN it is to be traced
    done = run(program, cwd=tmp_path)
    # THEN it is refused with the version to install, and the program continues
    reason = done.stdout.splitlines()[-1]
    assert reason.startswith("False the allocator of torch_npu 2."), done.stderr
    assert "install torch_npu 2.13.0 or newer, or 2.12.0.post3" in reason


def test_pinned_memory_initialises_the_allocator_only(backend: str, tmp_path: Path) -> None:
    # GIVEN a program in which C++ has initialised the allocator, and Python does not know
    program = """
import pytracer
pinned = torch.zeros(1).pin_memory()
tracer = pytracer.Tracer(device=backend).start()
# WHEN the device is used
block = torch.empty(1000, device=backend)
# THEN no event is lost
assert [int(number) for number in tracer.events()["action"]] == [3, 0]
print("fine")
"""
    check_end(begun(program, backend, cwd=tmp_path))


def test_a_child_forked_after_the_device_was_used(backend: str, tmp_path: Path) -> None:
    # GIVEN a traced program that has used the device, with threads that take snapshots
    program = """
import pytracer
tracer = pytracer.Tracer(device=backend).start()
block = torch.empty(1000, device=backend)
ended = threading.Event()
def snapshots():
    while not ended.is_set():
        tracer.snapshot()
threads = [threading.Thread(target=snapshots) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(int(sys.argv[2])):
    # WHEN a child traces all devices, and the device that it cannot use
    child = os.fork()
    if child == 0:
        signal.alarm(600)
        here = pytracer.Tracer().start()
        lost = pytracer.Tracer(device=backend).start()
        held = torch.empty(1000)
        # THEN the CPU is recorded, the device is refused, and no child waits for the parent's locks
        fine = [int(index) for index in here.events()["device"]] == [-1]
        fine = fine and len(here.snapshot()["segments"]) == 1
        fine = fine and "forked from one that used" in lost.stats()["untraced"]
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
ended.set()
for thread in threads:
    thread.join()
print("fine")
"""
    check_end(begun(program, backend, amount(6, 20), cwd=tmp_path))


@pytest.mark.parametrize("visible", ["0", ""], ids=["one before", "none before"])
def test_devices_that_become_visible_late(backend: str, tmp_path: Path, visible: str) -> None:
    # GIVEN tracers that start when one device is visible, or none
    program = """
import pytracer
requests = ["auto", backend, backend + ":0", ["cpu", backend]]
tracers = [pytracer.Tracer(device=request).start() for request in requests]
stopped = pytracer.Tracer(device=backend).start()
stopped.stop()
held = torch.empty(1000)
# WHEN others become visible before the process initialises them, as in Ray's workers
os.environ[sys.argv[2]] = "0,1"
last = getattr(torch, backend).device_count() - 1
blocks = [torch.empty(1000, device=f"{backend}:{index}") for index in {0, last}]
results = [
    [sorted({*tracer.events()["device"].tolist()}), tracer.stats()["untraced"]]
    for tracer in tracers
]
assert len(stopped.events()) == 0 and not stopped.stats()["recording"]
print(json.dumps([last, results]))
"""
    variable = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}[backend]
    env = environment(**{variable: visible})
    done = begun(program, backend, variable, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    last, results = json.loads(done.stdout.splitlines()[-1])
    automatic, all_of_them, first, with_cpu = results
    # THEN all devices are recorded, or the named one
    assert automatic == all_of_them == [sorted({0, last}), None], done.stderr
    assert first == [[0], None]
    # THEN other devices are not added to a tracer that records the CPU, which is reported
    before = [0] if visible else []
    assert with_cpu[0] == [-1, *before]
    if missing := sorted({0, last} - {*before}):
        names = ", ".join(f"{backend}:{index}" for index in missing)
        assert f"{names.upper()} is not recorded: the device appeared after the" in done.stderr
        assert "the device appeared after the recording of the CPU began" in with_cpu[1]
        assert "give the CPU a tracer of its own\n" in done.stderr  # the job is not untraced
