"""Define `--device`, which selects the real or simulated accelerator for tests/accelerator."""

import gc
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import passed
import processes
import pytest
import simulated
from amount import LONG
from devices_of_tests import runs_here
from hypothesis import HealthCheck, settings
from suite_summary import pytest_terminal_summary  # noqa: F401

# Before torch is imported: several processes test at a time, and threads that wait for each other
# on few processors take several times as long as one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run, so that a commit that passed once passes again. A busy machine is
# slow, which is no failure. `--hypothesis-profile=explore` looks for new examples.
settings.register_profile(
    "explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("same", settings.get_profile("explore"), derandomize=True)
settings.load_profile("same")

LONGEST = ("test_core_cpp", "test_screens", "test_boxes", "test_attacks", "test_page_data")
"""What takes longest comes first: at the end, one process would wait for another."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("cpu", "cuda", "npu"),
        default="cpu",
        help="cuda or npu: runs tests/accelerator on that device, instead of the rest",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Import the backend before anything imports torch, as user programs do.
    if config.getoption("--device") == "npu":
        import torch_npu  # noqa: F401


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long tests, those that have passed, and those that other devices run."""
    backend = config.getoption("--device")
    left_out = {item for item in items if not LONG and _is_left_out(item)}
    if backend != "cpu" and simulated.active():
        torch = importlib.import_module("torch")
        version = str(torch.__version__).split("+")[0]
        left_out |= {
            item
            for item in items
            if item.path.parent.name in ("accelerator", "corpus", "devices")
            and not runs_here(item.path.stem, item.name.split("[")[0], backend, version)
        }
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def _is_left_out(item: pytest.Item) -> bool:
    if item.get_closest_marker("long"):
        return True
    return "SUITES" in os.environ and passed.is_left_out(item.path, item.nodeid)  # in `make test`


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    here = Path(__file__).parent
    if collection_path == here or not collection_path.is_relative_to(here):
        return None
    folder = collection_path.relative_to(here).parts[0]
    on_accelerator = config.getoption("--device") != "cpu"
    if folder == "reliability" and config.getoption("--device") != "npu":
        return None  # each attack selects the device that it needs, and none an NPU
    if folder == "corpus":
        return None
    if folder == "devices":
        return None if on_accelerator and simulated.active() else True
    return None if (folder == "accelerator") == on_accelerator else True


@pytest.fixture(scope="session", autouse=True)
def default_signals() -> Iterator[None]:
    """Give tests and their children default signal handlers, wherever pytest was started."""
    with processes.default_signals():
        yield


@pytest.fixture(scope="session", autouse=True)
def time_for_objects() -> Iterator[None]:
    """Read graphs and look for holders for as long as it takes, and of whatever is small."""
    from pytracer.owners import holders

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holders, "MAX_GRAPH_SECONDS", 60.0)
        patch.setattr(holders, "MAX_SECONDS", 10.0)
        patch.setattr(holders, "LEAST_PART", 0.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def library_for_autograd() -> None:
    """Have forward stacks in each test, as with the hooks of the package."""
    from pytracer.backends.hook_attach import HOOKS

    HOOKS.attach_autograd(build=True)


@pytest.fixture(scope="module", autouse=True)
def only_own_objects() -> Iterator[None]:
    """Hide what was there before a module's tests, which have no tensors of it.

    The modules of a process gather millions of objects, and each snapshot and collection looks at
    all of them. What other tests have left is freed: their tracers would keep the ring of this
    process's one recorder. What is hidden already is not looked at again, which would take a fifth
    of a second for each module.
    """
    from pytracer.owners import holders

    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holders, "gc", SimpleNamespace(get_freeze_count=lambda: 0))
        yield


@pytest.fixture(scope="module", autouse=True)
def own_environment() -> Iterator[None]:
    """Unset the variables that a module's imports have set, such as Ray's.

    Otherwise, the programs of later modules' tests would be new processes, not forks.
    """
    before = {*os.environ}
    yield
    for name in {*os.environ} - before:
        del os.environ[name]


@pytest.fixture(scope="module")
def no_collector() -> Iterator[None]:
    """Disable the collector, so that it frees no other test's objects during a recording."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def own_module_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the paths of a test's modules out of the files of other tests in this process."""
    from pytracer.tracing import snapshot_writer, training_phases

    monkeypatch.setattr(training_phases, "MODULE_PHASES", training_phases.ModulePhases())
    monkeypatch.setattr(snapshot_writer, "MODULE_PHASES", training_phases.MODULE_PHASES)


@pytest.fixture
def process_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be the only rank of a process group."""
    from torch import distributed as dist

    from pytracer.tracing import ranks

    monkeypatch.setattr(ranks, "_last_group", None)  # other tests have no group, and had none
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
