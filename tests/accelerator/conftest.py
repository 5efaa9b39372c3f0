"""Provide the fixtures of the tests on an accelerator."""

import gc
from types import ModuleType

import pytest
import torch


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
