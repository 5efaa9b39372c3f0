"""`--device`: the accelerator that tests/accelerator runs on, real or simulated."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import simulated


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("cpu", "cuda", "npu"),
        default="cpu",
        help="cuda or npu: runs tests/accelerator on that device, instead of the rest",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Before torch is imported by anything, so that it finds the backend as users' programs do.
    if config.getoption("--device") == "npu":
        import torch_npu  # noqa: F401


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    here = Path(__file__).parent
    if collection_path == here or not collection_path.is_relative_to(here):
        return None
    folder = collection_path.relative_to(here).parts[0]
    on_accelerator = config.getoption("--device") != "cpu"
    if folder == "devices":
        return None if on_accelerator and simulated.active() else True
    return None if (folder == "accelerator") == on_accelerator else True


@pytest.fixture(scope="module", autouse=True)
def no_others_tracers() -> None:
    """The recorder is the process's: a tracer in another module's garbage would keep its ring."""
    gc.collect()


@pytest.fixture(scope="module")
def no_collector() -> Iterator[None]:
    """Other tests' garbage is not freed in the middle of a recording."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
