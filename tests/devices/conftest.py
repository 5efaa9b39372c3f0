"""Give each test idle, empty devices."""

import gc

import pytest
import simulated
from simulated_memory import CAPACITY, backend


@pytest.fixture(scope="module", autouse=True)
def fast_collections():
    """Exclude the objects of torch's import from collections."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def full_devices_afterwards():
    """Give other modules' tests of the same process devices of the size that they had."""
    before = [simulated.capacity(device) for device in range(simulated.devices())]
    yield
    gc.collect()
    backend.api.synchronize()
    backend.api.empty_cache()
    for device, capacity in enumerate(before):
        simulated.set_capacity(capacity, device)


@pytest.fixture(autouse=True)
def clean():
    """Start every test with idle, empty devices of 512 MB and the default settings."""
    # A caught exception keeps the objects of its frames until the collection.
    gc.collect()
    backend.api.synchronize()
    backend.api.empty_cache()
    for device in range(2):
        backend.api.reset_peak_memory_stats(device)
        backend.api.reset_accumulated_memory_stats(device)
    simulated.set_capacity(CAPACITY)
    yield
    simulated.set_busy(False)
    simulated.set_pending_queries(0)
    simulated.set_capacity(CAPACITY)
    backend.api.memory._record_memory_history(None)
