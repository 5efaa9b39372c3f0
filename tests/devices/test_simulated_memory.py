"""Does torch's own allocator find the memory of a simulated device as that of a real one?"""

import re
from contextlib import contextmanager

import pytest
import simulated
import torch
from devices import backends
from simulated_memory import CAPACITY, MB, actions, backend, empty, history, statistic

if not simulated.active():
    pytest.skip("runs under tests/devices/simulate", allow_module_level=True)
# Warnings of torch and torch_npu do not matter here.
pytestmark = pytest.mark.filterwarnings("ignore")


def device_bytes(size_bytes):
    """Return the bytes that the allocator requests from a device for a block of 10 MB or more."""
    padded = size_bytes + backend.padding
    return -(-padded // (2 * MB)) * 2 * MB


@contextmanager
def expandable_segments():
    backend.api.empty_cache()
    backend.set_allocator("expandable_segments:True")
    try:
        yield
    finally:
        backend.api.empty_cache()
        backend.set_allocator("expandable_segments:False")


# Devices.


def test_two_devices_have_separate_memory():
    before = [simulated.used_bytes(device) for device in range(2)]
    mine = [empty(40 * MB, 0), empty(100 * MB, 1)]
    assert [block.device.index for block in mine] == [0, 1]
    taken = [simulated.used_bytes(device) - before[device] for device in range(2)]
    assert taken == [device_bytes(40 * MB), device_bytes(100 * MB)]
    for device in range(2):
        assert simulated.used_bytes(device) == backend.api.memory_reserved(device)
        free, total = backend.api.mem_get_info(device)
        assert total == CAPACITY
        assert free == CAPACITY - simulated.used_bytes(device)
    simulated.set_capacity(1024 * MB, device=1)
    assert backend.api.mem_get_info(0)[1] == CAPACITY
    assert backend.api.mem_get_info(1)[1] == 1024 * MB
    # More than the free memory of the other device.
    empty(600 * MB, 1)
    with pytest.raises(torch.OutOfMemoryError):
        empty(600 * MB, 0)


def test_empty_cache_returns_all_free_memory():
    blocks = [empty(30 * MB) for _ in range(3)]
    reserved = backend.api.memory_reserved()
    del blocks
    assert backend.api.memory_reserved() == reserved == simulated.used_bytes()
    freed = simulated.counter("free")
    backend.api.empty_cache()
    assert simulated.counter("free") > freed
    assert simulated.used_bytes() == backend.api.memory_reserved()
    assert reserved - simulated.used_bytes() >= 90 * MB


def test_process_bytes_are_used_bytes_and_a_context():
    held = empty(64 * MB, 1)
    assert held.numel() == 64 * MB
    for device in range(2):
        context = simulated.context_bytes(device)
        assert context == 300 * MB
        assert backend.process_bytes(device) == simulated.used_bytes(device) + context


def test_pinned_host_memory_is_not_counted_on_the_device():
    before = simulated.used_bytes()
    host = torch.empty(MB, dtype=torch.uint8, pin_memory=True)
    assert host.is_pinned()
    assert simulated.used_bytes() == before
    there = host.to(f"{backend.name}:0", non_blocking=True)
    assert there.device.type == backend.name


# Out of memory.


def test_out_of_memory_reports_the_devices_memory():
    held = empty(200 * MB)
    with pytest.raises(torch.OutOfMemoryError) as failure:
        empty(400 * MB)
    message = str(failure.value)
    requested = 400 * MB if backend is backends.Cuda else device_bytes(400 * MB)
    assert f"Tried to allocate {requested / MB:.2f} MiB" in message
    assert "512.00 MiB" in message
    free_mb = (CAPACITY - simulated.used_bytes()) / MB
    assert f"{free_mb:.2f} MiB" in message
    assert statistic("num_ooms") == 1
    assert held.numel() == 200 * MB
    if backend is backends.Cuda:
        process = re.search(r"this process has ([\d.]+) MiB", message)
        assert float(process[1]) == simulated.used_bytes() / MB + 300


def test_the_observer_sees_an_out_of_memory():
    seen = []
    backend.attach_observer(lambda *arguments: seen.append(arguments))
    with pytest.raises(torch.OutOfMemoryError):
        empty(4096 * MB)
    ((device, requested, total, free),) = seen
    assert device == 0
    assert requested == device_bytes(4096 * MB)
    assert total == CAPACITY
    assert free == CAPACITY - simulated.used_bytes()


# Expandable segments.


def test_expandable_segments_are_mapped_and_unmapped():
    before = simulated.used_bytes()
    counted = {name: simulated.counter(name) for name in ("map", "unmap", "create", "release")}
    with expandable_segments(), history():
        small = empty(30 * MB)
        large = empty(100 * MB)
        growing = [
            segment
            for segment in backend.api.memory._snapshot()["segments"]
            if segment["is_expandable"]
        ]
        assert sum(segment["total_size"] for segment in growing) >= 130 * MB
        assert simulated.used_bytes() == backend.api.memory_reserved()
        assert simulated.counter("map") > counted["map"]
        del small, large
        backend.api.empty_cache()
        assert "segment_map" in actions()
        assert "segment_unmap" in actions()
    for done_name, undone_name in (("map", "unmap"), ("create", "release")):
        done = simulated.counter(done_name) - counted[done_name]
        assert done == simulated.counter(undone_name) - counted[undone_name] > 0
    assert simulated.used_bytes() == before


def test_expandable_segments_run_out_of_memory():
    with expandable_segments():
        blocks = [empty(100 * MB) for _ in range(4)]
        with pytest.raises(torch.OutOfMemoryError):
            empty(120 * MB)
        assert simulated.used_bytes() == backend.api.memory_reserved() <= CAPACITY
        del blocks
        # Cached memory is released for a request that does not fit next to it.
        assert empty(450 * MB).numel() == 450 * MB
