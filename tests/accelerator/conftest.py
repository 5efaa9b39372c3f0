"""Provide the fixtures of the tests on an accelerator."""

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
