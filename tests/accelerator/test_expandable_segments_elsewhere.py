"""Is a program warned that uses what expandable segments break?"""

import ctypes
import gc
import logging
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from settings_state import LARGE, State
from torch.multiprocessing import reductions

import pytracer
from pytracer import log


@pytest.fixture
def warnings(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[str]]:
    """Return a function that lists pytracer's warnings; repeated warnings are logged again."""
    monkeypatch.setattr(log, "_logged", set())
    caplog.set_level(logging.WARNING, "pytracer")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "pytracer"]


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
