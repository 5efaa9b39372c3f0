"""Test allocator settings that a program changes: their effects, and what is restored."""

import ctypes
import gc
import logging
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from processes import environment, run
from torch.multiprocessing import reductions

import pytracer
from pytracer import Tracer, log
from pytracer.errors import ConfigError, PytracerError
from pytracer.settings import change

MIB = 2**20
LARGE = 30 * MIB
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF")

# Settings next to expandable segments that a string without them resets to their defaults. On an
# NPU they can be changed only before it is initialised; see the tests with processes.
OTHER_SETTINGS = {"cuda": "garbage_collection_threshold:0.8,max_split_size_mb:100", "npu": ""}

REFUSED_BY_BACKEND: dict[str, list[tuple[str, str]]] = {
    "cuda": [
        ("max_split_size_mb:abc", '"max_split_size_mb:abc": a number is expected'),
        ("max_split_size_mb:3", '"max_split_size_mb:3": .* must be >= 20'),
        ("max_split_size_mb:200,foo:1", 'has no setting "foo"'),
        ("garbage_collection_threshold:2", '"garbage_collection_threshold:2"'),
        ("roundup_power2_divisions:[256:3]", "roundups"),
        ("backend:cudaMallocAsync", "start the program with PYTORCH_CUDA_ALLOC_CONF=backend:cuda"),
        ("per_process_memory_fraction:0.5", "per_process_memory_fraction cannot be changed"),
        ("pinned_use_background_threads:True", "cannot be changed while the program runs"),
        ("page_size:1g", "another version or device has it"),
    ],
    "npu": [
        ("page_size:1g", "start the program with PYTORCH_NPU_ALLOC_CONF=page_size:1g"),
        ("garbage_collection_threshold:0.5", "cannot change garbage_collection_threshold"),
        ("max_split_size_mb:abc", '"max_split_size_mb:abc": a number is expected'),
        ("expandable_segments:True,max_split_size_mb:100", "no expandable segments together"),
        ("release_lock_on_cudamalloc:True", "another version or device has it"),
    ],
}
REFUSED_BY_BOTH = [
    ("foo:1", 'no setting "foo"'),
    ("expandable_segment:True", "did you mean expandable_segments?"),
    ("expandable_segments:maybe", '"expandable_segments:maybe": Expected'),
    ("expandable_segments", 'cannot be read from "expandable_segments"'),
]


class State:
    """The allocator's settings and behaviour, for comparisons."""

    def __init__(self, backend: str, device: ModuleType) -> None:
        self.backend = backend
        self.device = device

    def settings(self) -> str | None:
        return change.in_force(self.backend)

    def values(self) -> dict[str, Any]:
        """Return the settings that CUDA shows."""
        found: dict[str, Any] = self.device.memory._snapshot().get("allocator_settings", {})
        unlimited = [name for name in found if name.startswith("max_") and found[name] < 0]
        return {**found, **dict.fromkeys(unlimited, -1)}

    def expandable(self) -> bool:
        """Return whether a new segment is expandable, from its events in a recording."""
        self.device.empty_cache()
        with Tracer(device=self.backend) as tracer:
            block = torch.empty(LARGE, dtype=torch.uint8, device=self.backend)
            del block
        actions = {
            event["action"]
            for event in tracer.snapshot()["device_traces"][0]
            if event["action"].startswith("segment") and event["size"] >= LARGE
        }
        self.device.empty_cache()
        assert actions in ({"segment_map"}, {"segment_alloc"})
        return actions == {"segment_map"}

    def all(self) -> tuple[object, ...]:
        return self.settings(), self.values(), self.expandable()


@pytest.fixture
def state(backend: str, device: ModuleType) -> Iterator[State]:
    gc.collect()
    if backend == "cuda":  # earlier tests may have left a string, which torch_npu would keep
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
        torch._C._accelerator_setAllocatorSettings("")
    state = State(backend, device)
    before = state.all()
    yield state
    assert state.all() == before


@pytest.fixture
def warnings(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[str]]:
    """Return a function that lists pytracer's warnings; repeated warnings are logged again."""
    monkeypatch.setattr(log, "_logged", set())
    caplog.set_level(logging.WARNING, "pytracer")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "pytracer"]


def test_segments_are_of_the_requested_kind(state: State, backend: str) -> None:
    # GIVEN a recording
    with Tracer(device=backend) as tracer:
        for on in (True, False, True, False):
            state.device.empty_cache()
            tracer.clear()
            # WHEN expandable segments are switched on or off
            with pytracer.expandable_segments(on):
                block = torch.empty(LARGE, dtype=torch.uint8, device=backend)
                address = block.data_ptr()
                del block
                state.device.empty_cache()
            # THEN the events that follow are of such segments, until the change ends
            actions = [
                event["action"]
                for event in tracer.snapshot()["device_traces"][0]
                if event["size"] >= LARGE
                and event["addr"] <= address < event["addr"] + event["size"]
            ]
            begin = "segment_map" if on else "segment_alloc"
            end = "segment_unmap" if on else "segment_free"
            assert [action for action in actions if action.startswith("segment")] == [begin, end]
    assert state.expandable() is False


@pytest.mark.parametrize("on", [True, False])
def test_other_settings_are_kept(state: State, on: bool, backend: str) -> None:
    # GIVEN other settings
    with pytracer.allocator_settings(OTHER_SETTINGS[backend]):
        before = state.settings(), state.values()
        # WHEN expandable segments are switched
        with pytracer.expandable_segments(on):
            # THEN only this setting changes
            assert state.expandable() is on
            others = f"{OTHER_SETTINGS[backend]},".lstrip(",")
            assert state.settings() == f"{others}expandable_segments:{on}"
            expected = {**before[1], "expandable_segments": on}
            expected["PYTORCH_CUDA_ALLOC_CONF"] = state.settings()
            assert state.values() in ({}, expected)
        # AND after the change all settings are restored
        assert (state.settings(), state.values()) == before


def test_nested_changes(state: State) -> None:
    # GIVEN WHEN a change inside another
    begin = state.settings()
    with pytracer.expandable_segments(True):
        outer = state.settings()
        with pytracer.expandable_segments(False):
            assert state.expandable() is False
            with pytracer.expandable_segments(True):
                assert state.expandable() is True
            assert state.expandable() is False
        # THEN each restores the settings that it found
        assert state.expandable() is True
        assert state.settings() == outer
    assert state.settings() == begin
    assert state.expandable() is False


def test_an_exception_ends_a_change(state: State) -> None:
    # GIVEN WHEN a block that raises an exception
    before = state.settings()
    with pytest.raises(RuntimeError, match=r"^mine$"), pytracer.expandable_segments(True):
        raise RuntimeError("mine")
    # THEN the settings are restored, and the exception is the block's
    assert state.settings() == before
    assert state.expandable() is False


def test_a_permanent_change(state: State) -> None:
    with pytracer.expandable_segments(False):  # restores the settings from before the test
        # GIVEN a change whose object is dropped
        pytracer.expandable_segments(True)
        gc.collect()
        # WHEN THEN it lasts until the next change
        assert state.expandable() is True
        change = pytracer.expandable_segments(False)
        assert state.expandable() is False
        # AND an object can be used later, and repeatedly
        with change:
            assert state.expandable() is False
        assert state.expandable() is True
        with change:
            assert state.expandable() is False
        assert state.expandable() is True


@pytest.mark.parametrize(
    ("change", "name", "value"),
    [
        ("max_split_size_mb:64", "max_split_size", 64 * MIB),
        ("garbage_collection_threshold:0.25", "garbage_collection_threshold", 0.25),
        ("roundup_power2_divisions:4", "roundup_power2_divisions", None),
        ("roundup_power2_divisions:[256:1,512:2,>:8]", "roundup_power2_divisions", None),
        ("pinned_num_register_threads:8", "pinned_num_register_threads", 8),
        ("pinned_use_cuda_host_register:True", "pinned_use_cuda_host_register", True),
        ("release_lock_on_cudamalloc:True", "release_lock_on_cudamalloc", True),
        ("graph_capture_record_stream_reuse:True", "graph_capture_record_stream_reuse", True),
        ("pinned_max_cached_size_mb:64", "max_cached_size", 64 * MIB),
        ("pinned_max_round_threshold_mb:64", "max_round_threshold", 64 * MIB),
    ],
)
def test_values_shown_by_cuda(state: State, change: str, name: str, value: object) -> None:
    # GIVEN a setting of this version
    before = state.values()
    if name not in before:
        pytest.skip("not in this version")
    # WHEN it is changed, THEN the allocator shows the new value, and after the change the old one
    with pytracer.allocator_settings(change):
        assert state.values()[name] == value or (value is None and any(state.values()[name]))
    after = state.values()
    assert after == before


def test_values_not_shown_by_cuda(state: State, backend: str) -> None:
    # GIVEN the size of a segment for a block of 5 MiB
    if backend == "npu":
        pytest.skip("torch_npu cannot change this setting")

    def segment() -> int:
        state.device.empty_cache()
        before = state.device.memory_reserved()
        block = torch.empty(5 * MIB, dtype=torch.uint8, device=backend)
        size = state.device.memory_reserved() - before
        del block
        state.device.empty_cache()
        return int(size)

    assert segment() == 20 * MIB
    # WHEN this size is changed, THEN new segments have it, and the old one is restored
    with pytracer.allocator_settings("large_segment_size_mb:40"):
        assert segment() == 40 * MIB
    assert segment() == 20 * MIB


@pytest.mark.parametrize(("wrong", "message"), REFUSED_BY_BOTH)
def test_refused_settings(state: State, wrong: str, message: str) -> None:
    _check_refusal(state, wrong, message)


@pytest.mark.parametrize("index", range(max(map(len, REFUSED_BY_BACKEND.values()))))
def test_settings_refused_by_this_backend(state: State, index: int, backend: str) -> None:
    if index >= len(REFUSED_BY_BACKEND[backend]):
        pytest.skip("the other backend has more of them")
    _check_refusal(state, *REFUSED_BY_BACKEND[backend][index])


def _check_refusal(state: State, wrong: str, message: str) -> None:
    # GIVEN settings in force
    with pytracer.allocator_settings(OTHER_SETTINGS[state.backend]):
        before = state.all()
        # WHEN wrong settings are requested
        with pytest.raises(ConfigError, match=message) as error:
            pytracer.allocator_settings(wrong)
        # THEN the one-line error names the setting, and no setting has changed
        assert "\n" not in str(error.value)
        assert "ERR0" not in str(error.value)
        assert state.all() == before


def test_a_value_that_the_allocator_misreads(state: State, backend: str) -> None:
    # GIVEN a value of which CUDA's allocator reads only the first digits
    if backend == "npu":
        pytest.skip("torch_npu shows no values")
    before = state.all()
    # WHEN THEN this is detected, reported and undone
    message = '"max_split_size_mb:100x" .* max_split_size_mb is 100; .* than 100x'
    with pytest.raises(ConfigError, match=message):
        pytracer.allocator_settings("max_split_size_mb:100x")
    assert state.all() == before
    # AND it is detected in a new process
    with pytest.raises(ConfigError, match=message):
        change.check_in_new_process("max_split_size_mb:100x")


def test_after_a_string_that_the_allocator_refused(state: State, backend: str) -> None:
    # GIVEN a string that the allocator refused after it had applied a part of it
    if backend == "npu":
        pytest.skip("torch_npu shows no values")
    with pytest.raises(ValueError, match="foo"):
        torch._C._accelerator_setAllocatorSettings("max_split_size_mb:200,foo:1")
    # WHEN THEN the settings in force are known
    assert state.settings() == "max_split_size_mb:200"
    # AND they can be changed and restored
    with pytracer.expandable_segments(True):
        assert state.expandable() is True
        assert state.values()["max_split_size"] == 200 * MIB
    assert state.expandable() is False
    assert state.settings() == "max_split_size_mb:200"
    torch._C._accelerator_setAllocatorSettings("")


@pytest.mark.parametrize("wrong", ["oops", "max_split_size_mb:", "max_split_size_mb:x"])
def test_after_a_malformed_string(state: State, wrong: str, backend: str) -> None:
    # GIVEN a string that the allocator could not read
    if backend == "npu":
        pytest.skip("torch_npu shows no values")
    with pytest.raises((RuntimeError, ValueError)):
        torch._C._accelerator_setAllocatorSettings(wrong)
    # WHEN THEN no setting of it is in force, and other changes work
    assert state.settings() == ""
    with pytracer.expandable_segments(True):
        assert state.expandable() is True
    torch._C._accelerator_setAllocatorSettings("")


def test_settings_of_several_strings(state: State, backend: str) -> None:
    # GIVEN two strings of settings, the second without the first setting
    if backend == "npu":
        pytest.skip("torch_npu shows no values")
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    torch._C._accelerator_setAllocatorSettings("max_split_size_mb:200")
    # WHEN THEN both are in force
    assert split_settings(state.settings()) == {"expandable_segments:True", "max_split_size_mb:200"}
    with pytracer.expandable_segments(False):
        assert state.expandable() is False
    assert state.expandable() is True
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    torch._C._accelerator_setAllocatorSettings("")


def split_settings(text: str | None) -> set[str]:
    return set((text or "").split(","))


def test_a_change_leaves_no_memory_reserved(state: State) -> None:
    # GIVEN an empty allocator
    state.device.empty_cache()
    before = state.device.memory_reserved(), state.device.memory._snapshot()["segments"]
    # WHEN THEN after a change, the allocator has the same segments
    with pytracer.expandable_segments(True):
        assert (state.device.memory_reserved(), state.device.memory._snapshot()["segments"]) == (
            before
        )


def test_during_a_capture(state: State, backend: str) -> None:
    # GIVEN a graph that is being captured during a change
    graph = torch.cuda.CUDAGraph() if backend == "cuda" else state.device.NPUGraph()
    capture = state.device.graph
    change = pytracer.expandable_segments(True)
    with capture(graph):
        # WHEN settings are to be changed, THEN the change is refused
        with pytest.raises(PytracerError, match="a graph is being captured"):
            pytracer.allocator_settings("expandable_segments:False")
        # AND the end of the earlier change works
        with change:
            pass
    assert state.expandable() is False


PROGRAM = """
import sys, torch
backend, change = sys.argv[1:3]
if backend == "npu":
    import torch_npu
import pytracer
from pytracer.settings.change import in_force
device = getattr(torch, backend)

def show():
    block = torch.empty(30 << 20, dtype=torch.uint8, device=backend)
    segment, = device.memory._snapshot()["segments"]
    print(in_force(backend), segment["is_expandable"])
    del block, segment
    device.empty_cache()

print(in_force(backend))
change = pytracer.allocator_settings(change)
print(in_force(backend), device.is_initialized())
if sys.argv[3:] == ["before"]:
    change.__exit__(None, None, None)
    print(in_force(backend), device.is_initialized())
    show()
else:
    show()
    change.__exit__(None, None, None)
    show()
"""


def _environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in environment().items() if name not in VARIABLES}
    return {**kept, **changes}


@pytest.mark.parametrize(
    ("on", "restored"),
    [
        (True, "after"),
        (False, "before"),
        pytest.param(True, "before", marks=pytest.mark.long),
        pytest.param(False, "after", marks=pytest.mark.long),
    ],
)
def test_before_the_device_is_initialised(
    on: bool, restored: str, backend: str, tmp_path: Path
) -> None:
    # GIVEN a program that is started with the opposite, and with settings that a change resets
    others = "garbage_collection_threshold:0.8" if backend == "cuda" else "base_addr_aligned_kb:0"
    others = f"{others},roundup_power2_divisions:4"
    variable = f"PYTORCH_{backend.upper()}_ALLOC_CONF"
    begin = f"{others},expandable_segments:{not on}"
    env = _environment(**{variable: begin})
    # WHEN it changes settings before the device is initialised, and restores them before or after
    change = f"expandable_segments:{on}"
    done = run(PROGRAM, backend, change, restored, cwd=tmp_path, env=env, new=True)
    # THEN the change is in force until the original settings are restored
    assert done.returncode == 0, done.stderr
    changed = f"{others},expandable_segments:{on}"
    if restored == "before":
        expected = [begin, f"{changed} False", f"{begin} False", f"{begin} {not on}"]
    else:
        expected = [begin, f"{changed} False", f"{changed} {on}", f"{begin} {not on}"]
    assert done.stdout.splitlines() == expected


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_new_process_has_the_settings(
    variable: str, backend: str, device: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # GIVEN any of the variables, with a setting that a change resets
    setting = "roundup_power2_divisions:4"
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, setting)
    # WHEN a process is started for a change
    env = _environment(**{variable: setting, **change.variables("expandable_segments:True")})
    done = run(PROGRAM, backend, "expandable_segments:False", cwd=tmp_path, env=env, new=True)
    # THEN it has both settings, except that of another backend's variable
    assert done.returncode == 0, done.stderr
    is_foreign = (variable, backend) == ("PYTORCH_NPU_ALLOC_CONF", "cuda")
    begin = f"{'' if is_foreign else setting + ','}expandable_segments:True"
    assert done.stdout.splitlines()[0] == begin
    assert done.stdout.splitlines()[-1] == f"{begin} True"
    # AND the check in a new process accepts the change
    assert change.check_in_new_process("expandable_segments:True") == backend


@pytest.mark.parametrize(
    "wrong",
    [
        "foo:1",
        pytest.param("expandable_segments:maybe", marks=pytest.mark.long),
        pytest.param("max_split_size_mb:abc", marks=pytest.mark.long),
    ],
)
def test_a_new_process_refuses(wrong: str, backend: str) -> None:
    with pytest.raises(ConfigError, match=wrong.split(":")[0]) as error:
        change.check_in_new_process(wrong)
    assert "\n" not in str(error.value)


ENVIRONMENT_PROGRAM = """
import torch, pytracer

def segment():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    block = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
    print((torch.cuda.memory_reserved() - before) >> 20)

segment()
torch._C._accelerator_setAllocatorSettings("max_split_size_mb:200")
segment()
with pytracer.allocator_settings("large_segment_size_mb:64"):
    segment()
segment()
"""


def test_settings_of_the_environment(backend: str, tmp_path: Path) -> None:
    # GIVEN a setting of the environment that CUDA does not show, and that another string left
    # unchanged; WHEN it is changed, THEN the environment's value is restored
    if backend == "npu":
        pytest.skip("torch_npu cannot change this setting")
    env = _environment(PYTORCH_CUDA_ALLOC_CONF="large_segment_size_mb:40")
    done = run(ENVIRONMENT_PROGRAM, cwd=tmp_path, env=env, new=True)
    assert done.stdout.split() == ["40", "40", "64", "40"], done.stderr


FORK_PROGRAM = """
import os, sys, torch
backend = sys.argv[1]
if backend == "npu":
    import torch_npu
import pytracer
from pytracer.settings import change
getattr(torch, backend).init()
if os.fork() == 0:
    print(change.in_force(backend))
    try:
        pytracer.expandable_segments(True, device=backend)
    except pytracer.HookError as error:
        print(error)
else:
    os.wait()
"""


def test_a_forked_child(backend: str, tmp_path: Path) -> None:
    # GIVEN a child of a process that used the device, WHEN THEN pytracer does not query CUDA's
    # allocator, whose locks may be held; on an NPU the settings come from torch's own string
    done = run(FORK_PROGRAM, backend, cwd=tmp_path)
    known, refused = done.stdout.splitlines()
    assert known == ("None" if backend == "cuda" else "")
    assert "was forked from one that used" in refused


def test_another_allocator(backend: str, tmp_path: Path) -> None:
    # GIVEN a process with CUDA's own allocator, WHEN it changes settings, THEN an error is raised
    if backend == "npu":
        pytest.skip("torch_npu has no such allocator")
    env = _environment(PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    done = run(PROGRAM, backend, "expandable_segments:True", cwd=tmp_path, env=env, new=True)
    assert "ConfigError: the CUDA allocator is cudaMallocAsync" in done.stderr
    # AND the setting can be tried in a new process
    assert change.check_in_new_process("backend:cudaMallocAsync") == "cuda"


def test_a_process_with_a_wrong_variable(backend: str, tmp_path: Path) -> None:
    # GIVEN a variable that the allocator refuses, WHEN THEN the error of a change says so
    variable = f"PYTORCH_{backend.upper()}_ALLOC_CONF"
    env = _environment(**{variable: "foo:1"})
    done = run(PROGRAM, backend, "expandable_segments:True", cwd=tmp_path, env=env, new=True)
    assert "ConfigError: " in done.stderr
    assert "'foo'" in done.stderr.splitlines()[-1]
    assert "started with" in done.stderr.splitlines()[-1]


PLUGGABLE_ALLOCATOR = """
#include <cstdlib>
extern "C" int calls = 0;
extern "C" void* plugged_alloc(size_t size, int, void*) {
  ++calls;
  return aligned_alloc(1 << 21, (size + (1 << 21) - 1) >> 21 << 21);
}
extern "C" void plugged_free(void* block, size_t, int, void*) { free(block); }
"""


def test_a_pool_with_an_allocator_of_its_own(
    state: State, backend: str, tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    # GIVEN a pool that gets its memory from an allocator of its own
    source, library = tmp_path / "plugged.cpp", tmp_path / "plugged.so"
    source.write_text(PLUGGABLE_ALLOCATOR)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    name = f"{backend.upper()}PluggableAllocator"
    allocator = getattr(state.device.memory, name)(str(library), "plugged_alloc", "plugged_free")
    calls = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "calls")
    pool = state.device.MemPool(allocator.allocator())
    # WHEN expandable segments are switched on
    with pytracer.expandable_segments(True):
        with state.device.use_mem_pool(pool):
            block = torch.empty(LARGE, dtype=torch.uint8, device=backend)
        del block
    # THEN there is one warning if the pool gets expandable segments, past its allocator
    bypassed = calls.value == 0
    assert bypassed is (backend == "npu")
    assert [("MemPool" in warning, "#147851" in warning) for warning in warnings()] == (
        [(True, True)] if bypassed else []
    )
    # AND no warning if they are switched off, or for pools without an allocator
    del pool, allocator
    gc.collect()
    log._logged.clear()
    default_pool = state.device.MemPool()
    with pytracer.expandable_segments(True), pytracer.expandable_segments(False):
        pass
    del default_pool
    assert len(warnings()) == bypassed


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("vllm.device_allocator.cumem", "CuMemAllocator"),
        ("vllm_ascend.device_allocator.camem", "CaMemAllocator"),
    ],
)
def test_sleep_mode(
    state: State,
    module: str,
    name: str,
    used: bool,
    warnings: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN vLLM's allocator (a stand-in with its class and its one instance), loaded or also used
    loaded: Any = types.ModuleType(module)
    setattr(loaded, name, type(name, (), {"instance": object() if used else None}))
    monkeypatch.setitem(sys.modules, module, loaded)
    # WHEN expandable segments are switched off and on
    with pytracer.expandable_segments(False):
        assert warnings() == []
    for _ in range(2):
        with pytracer.expandable_segments(True):
            pass
    # THEN one warning gives the reason if the allocator is used
    is_explained = ["sleep mode" in text and "vllm#14189" in text for text in warnings()]
    assert is_explained == [True] * used
    # AND there is none if they are already on
    with pytracer.expandable_segments(True):
        log._logged.clear()
        with pytracer.expandable_segments(True):
            assert len(warnings()) == used


def test_a_memory_saver(
    state: State, warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN torch_memory_saver, loaded (a stand-in)
    monkeypatch.setitem(sys.modules, "torch_memory_saver", types.ModuleType("torch_memory_saver"))
    # WHEN THEN a warning refers to its issue
    with pytracer.allocator_settings("expandable_segments:True"):
        pass
    assert ["torch_memory_saver#24" in warning for warning in warnings()] == [True]


def share_by_file_name(tensor: torch.Tensor) -> None:
    """Share a CPU tensor through torch's manager process, which has a second to answer.

    On a busy machine the manager may need longer, so sharing is tried again.
    """
    strategy = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        while True:
            try:
                reductions.reduce_storage(tensor.untyped_storage())
                return
            except RuntimeError as error:
                if "timed out" not in str(error):
                    raise
    finally:
        torch.multiprocessing.set_sharing_strategy(strategy)


@pytest.mark.parametrize("key", [b"\x02c" + bytes(64), (b"\x02c" + bytes(64), 512)])
def test_tensors_shared_with_other_processes(
    state: State,
    key: object,
    warnings: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN CPU tensors that torch shared
    shared = torch.ones(10), torch.ones(10)
    reductions.reduce_storage(shared[0].untyped_storage())
    share_by_file_name(shared[1])
    with pytracer.expandable_segments(True):
        assert warnings() == []
    # WHEN a device tensor was sent or received (the entry that torch keeps then; not simulated)
    reductions.shared_cache[key] = reductions.StorageWeakRef(shared[0].untyped_storage())
    try:
        with pytracer.expandable_segments(True):
            pass
    finally:
        del reductions.shared_cache[key]
    # THEN there is a warning
    (warning,) = warnings()
    assert "shares device tensors" in warning
    assert ("pidfd_getfd" in warning) == (state.backend == "cuda")


@pytest.mark.parametrize(
    ("group", "register", "graphs", "warned"),
    [
        ("nccl", None, True, True),
        ("cpu:gloo,cuda:nccl", "1", True, True),
        ("nccl", "0", True, False),
        ("nccl", None, False, False),
        ("gloo", None, True, False),
    ],
)
def test_graphs_with_buffers_registered_by_nccl(
    state: State,
    backend: str,
    group: str,
    register: str | None,
    graphs: bool,
    warned: bool,
    warnings: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a graph, and a stand-in for a process group, because there is no NCCL here
    if backend == "npu":
        pytest.skip("NCCL is CUDA's")
    graph = torch.cuda.CUDAGraph() if graphs else None
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: group)
    monkeypatch.delenv("NCCL_GRAPH_REGISTER", raising=False)
    if register is not None:
        monkeypatch.setenv("NCCL_GRAPH_REGISTER", register)
    # WHEN expandable segments are switched on, THEN there is a warning if NCCL registers buffers
    with pytracer.expandable_segments(True):
        pass
    assert ["NCCL_GRAPH_REGISTER=0" in warning for warning in warnings()] == [True] * warned
    del graph


def test_no_warning_without_a_reason(state: State, warnings: Callable[[], list[str]]) -> None:
    # GIVEN a graph and a pool only, WHEN THEN there is no warning
    kept = [torch.cuda.CUDAGraph() if state.backend == "cuda" else state.device.NPUGraph()]
    pool = state.device.MemPool()
    with pytracer.expandable_segments(True):
        pass
    assert warnings() == []
    del kept, pool
