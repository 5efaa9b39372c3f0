"""Provide the fixtures of the tests on an accelerator."""

import gc
from collections.abc import Iterator
from types import ModuleType

import pytest
import simulated
import torch
from accelerator.extension import Extension
from patched_torch import Torch
from settings_state import State

from pytracer.backends import oom
from pytracer.torch_recorder.patch import patch_torch, unpatch_torch


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """Return "cuda" or "npu"."""
    name: str = request.config.getoption("--device")
    return name


@pytest.fixture(scope="session")
def device(backend: str) -> ModuleType:
    """Return `torch.cuda` or `torch.npu`, initialised."""
    module: ModuleType = getattr(torch, backend)
    module.init()
    return module


@pytest.fixture(scope="session")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Extension:
    """Return the threads without Python, which are compiled once."""
    return Extension(tmp_path_factory.mktemp("extension"))


@pytest.fixture
def simulated_device() -> None:
    """Skip a test on a real device, whose capacity it cannot choose."""
    if not simulated.active():
        pytest.skip("needs a device of a chosen capacity")


@pytest.fixture
def two_devices(device: ModuleType) -> None:
    """Skip a test on a machine with one device."""
    if device.device_count() < 2:
        pytest.skip("needs two devices")


@pytest.fixture(scope="module", autouse=True)
def free_other_modules_memory(backend: str) -> None:
    """Free what other modules' tests left in the allocator, such as the workspaces of cuBLAS.

    Without this, what a test finds in the allocator depends on the order of the tests.
    """
    module: ModuleType = getattr(torch, backend)
    if not module.is_initialized():
        return
    gc.collect()
    if backend == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
    module.synchronize()
    module.empty_cache()


@pytest.fixture
def program(backend: str, device: ModuleType) -> Iterator[Torch]:
    """Provide a program on an empty device, and restore torch's functions after the test."""
    gc.collect()
    device.empty_cache()
    program = Torch(backend, device)
    yield program
    unpatch_torch()
    program.before["_record_memory_history"](None)
    for watch in oom._watches.values():
        watch.observers.clear()
    assert program.now() == list(map(program.before.get, [name for _, name in program.places]))


@pytest.fixture
def patched(program: Torch) -> Torch:
    patch_torch()
    return program


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
