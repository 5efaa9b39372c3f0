"""Test that torch's own unchanged allocators behave on simulated devices as on real ones."""

import gc
import json
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from devices import simulated
from processes import HANG_S

if not simulated.active():
    pytest.skip("runs under tests/devices/simulate", allow_module_level=True)

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812
from devices import backends

# Warnings of torch and torch_npu do not matter here.
pytestmark = pytest.mark.filterwarnings("ignore")

MB = 1 << 20
CAPACITY = 512 * MB
backend = backends.backend


def empty(size_bytes, device=0):
    return torch.empty(size_bytes, dtype=torch.uint8, device=f"{backend.name}:{device}")


def device_bytes(size_bytes):
    """Return the bytes that the allocator requests from a device for a block of 10 MB or more."""
    padded = size_bytes + backend.padding
    return -(-padded // (2 * MB)) * 2 * MB


def statistic(name, device=0):
    return backend.api.memory_stats(device)[name]


def actions(device=0):
    return [event["action"] for event in backend.api.memory._snapshot()["device_traces"][device]]


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


@contextmanager
def history(**options):
    backend.api.memory._record_memory_history(**{"stacks": "python", **options})
    try:
        yield
    finally:
        backend.api.memory._record_memory_history(None)


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


def test_cached_memory_never_reaches_the_driver():
    block = empty(10 * MB)
    del block
    requests = simulated.counter("malloc")
    for _ in range(100):
        empty(10 * MB)
    assert simulated.counter("malloc") == requests


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


def test_cached_blocks_are_released_and_the_request_is_repeated():
    # The blocks differ in size, so that no cached block can serve the request.
    blocks = [empty(100 * MB) for _ in range(4)]
    del blocks
    assert simulated.used_bytes() >= 400 * MB
    block = empty(300 * MB)
    assert block.numel() == 300 * MB
    assert statistic("num_alloc_retries") == 1
    assert statistic("num_ooms") == 0
    assert simulated.used_bytes() == backend.api.memory_reserved()


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


def test_memory_fraction_limits_the_used_memory():
    # The fraction applies to the device's memory at torch's first query.
    total = backend.api.get_device_properties(0).total_memory
    backend.api.set_per_process_memory_fraction(128 * MB / total)
    try:
        held = empty(100 * MB)
        assert held.numel() == 100 * MB
        with pytest.raises(torch.OutOfMemoryError):
            empty(60 * MB)
    finally:
        backend.api.set_per_process_memory_fraction(1.0)
    assert empty(60 * MB).numel() == 60 * MB


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


# Streams and events.


def test_a_block_used_on_another_stream_is_free_when_its_event_has_happened():
    stream = backend.api.Stream()
    active = statistic("active_bytes.all.current")
    with history():
        block = empty(8 * MB)
        block.record_stream(stream)
        simulated.set_busy(True)
        del block
        empty(MB)
        assert statistic("active_bytes.all.current") > active
        assert actions().count("free_completed") == 1  # the event of the last request
        simulated.set_busy(False)
        deadline = time.monotonic() + 300
        while statistic("active_bytes.all.current") > active and time.monotonic() < deadline:
            empty(MB)
        assert statistic("active_bytes.all.current") == active
        assert actions().count("free_requested") == actions().count("free_completed")


def test_events_can_be_pending_for_some_queries():
    event = backend.api.Event()
    simulated.set_pending_queries(3)
    event.record()
    queries = 1
    while not event.query():
        queries += 1
        assert queries < 100_000
    # torch_npu records events in another thread, and reports until then that they have not
    # happened.
    assert queries == 4 if backend is backends.Cuda else queries >= 4
    event.record()
    event.synchronize()
    assert event.query()
    event.record()
    backend.api.synchronize()
    assert event.query()


def test_busy_until_something_waits():
    events = [backend.api.Event(), backend.api.Event()]
    streams = [backend.api.Stream(), backend.api.Stream()]
    simulated.set_busy(True)
    for event, stream in zip(events, streams, strict=True):
        event.record(stream)
    assert [event.query() for event in events] == [False, False]
    streams[0].synchronize()
    assert [event.query() for event in events] == [True, False]


def test_streams_have_separate_pools():
    streams = [backend.api.Stream() for _ in range(3)]
    blocks = []
    for stream in streams:
        with backend.api.stream(stream):
            blocks.append(empty(4 * MB))
    used = {segment["stream"] for segment in backend.api.memory._snapshot()["segments"]}
    assert len(used) >= 3
    assert len(blocks) == 3


def test_elapsed_time_is_not_negative():
    start = backend.api.Event(enable_timing=True)
    end = backend.api.Event(enable_timing=True)
    start.record()
    end.record()
    backend.api.synchronize()
    assert 0 <= start.elapsed_time(end) < 1000


# Pools and graphs.


def pools():
    return {
        tuple(segment["segment_pool_id"]) for segment in backend.api.memory._snapshot()["segments"]
    }


def test_memory_of_a_pool_is_separate():
    pool = backend.api.MemPool()
    with backend.api.use_mem_pool(pool):
        inside = empty(5 * MB)
    outside = empty(5 * MB)
    assert pools() == {(0, 0), tuple(pool.id)}
    assert inside.data_ptr() != outside.data_ptr()
    taken = simulated.used_bytes()
    del inside, pool
    backend.api.empty_cache()
    assert simulated.used_bytes() < taken
    assert pools() == {(0, 0)}


def test_a_graph_has_a_pool_for_all_streams_of_its_capture():
    graph = backend.graph()
    aside = backend.api.Stream()
    x = torch.zeros(1000, device=backend.name)
    with backend.api.graph(graph):
        y = x + 1
        aside.wait_stream(backend.api.current_stream())
        with backend.api.stream(aside):
            z = y * 2
        backend.api.current_stream().wait_stream(aside)
    pool = tuple(graph.pool())
    assert pools() >= {pool}
    for tensor in (y, z):
        (segment,) = (
            segment
            for segment in backend.api.memory._snapshot()["segments"]
            if 0 <= tensor.data_ptr() - segment["address"] < segment["total_size"]
        )
        assert tuple(segment["segment_pool_id"]) == pool
    launches = simulated.counter("launch")
    graph.replay()
    assert simulated.counter("launch") == launches + 1
    assert not backend.api.is_current_stream_capturing()


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


# Programs.


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        split = self.attention(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norms[1](x))


@pytest.mark.parametrize("optimizer", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_a_transformer_trains(optimizer):
    before = backend.api.memory_allocated()
    model = nn.Sequential(nn.Embedding(1000, 128), Block(128, 4), Block(128, 4))
    model.append(nn.Linear(128, 1000)).to(backend.name)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    assert backend.api.memory_allocated() - before >= weights
    steps = torch.optim.AdamW(model.parameters(), lr=1e-3, **optimizer)
    tokens = torch.zeros(4, 64, dtype=torch.long, device=backend.name)
    launches = simulated.counter("launch")
    after_step = []
    for _ in range(4):
        with torch.autocast(backend.name, dtype=torch.bfloat16):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        steps.zero_grad()
        del logits, loss
        after_step.append(backend.api.memory_allocated())
    assert simulated.counter("launch") - launches > 400
    # The optimizer's two moments are allocated in the first step, and nothing afterwards.
    assert after_step[0] - before >= 3 * weights
    assert len(set(after_step[1:])) == 1
    assert backend.api.max_memory_allocated() > after_step[0]
    assert simulated.used_bytes() == backend.api.memory_reserved()


def test_convolutions_work():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3))
    model.to(backend.name)
    image = torch.zeros(2, 3, 32, 32, device=backend.name)
    output = model(image)
    output.sum().backward()
    assert output.shape == (2, 8, 28, 28)
    assert model[0].weight.grad.device.type == backend.name


def test_history_has_events_with_stacks():
    with history(max_entries=1000):
        block = empty(12 * MB)
        address, size = block.data_ptr(), block.numel()
        del block
        backend.api.empty_cache()
        (trace,) = (trace for trace in backend.api.memory._snapshot()["device_traces"] if trace)
    own = [event for event in trace if event["action"] != "snapshot"]
    assert [event["action"] for event in own] == [
        "segment_alloc",
        "alloc",
        "free_requested",
        "free_completed",
        "segment_free",
    ]
    assert own[1]["addr"] == address
    assert 0 <= own[1]["size"] - size < 512
    assert any(Path(frame["filename"]) == Path(__file__) for frame in own[1]["frames"])


def test_threads_allocate_at_the_same_time():
    before = backend.api.memory_allocated()
    failures = []

    def work(seed):
        try:
            held = []
            for i in range(300):
                held.append(empty((seed * 7919 + i * 104729) % (2 * MB) + 1, device=seed % 2))
                if len(held) > 8:
                    held.pop(i % 8)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)
    assert not failures
    assert backend.api.memory_allocated() == before
    for device in range(2):
        assert simulated.used_bytes(device) == backend.api.memory_reserved(device)


def test_a_forked_child_gets_an_error():
    empty(MB)
    child = os.fork()
    if child == 0:
        # Call the allocator itself, because torch's Python code would refuse earlier.
        status = 1
        try:
            torch.empty(300 * MB, dtype=torch.uint8, device=backend.name)
        except RuntimeError:
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert empty(MB).numel() == MB


# Settings of the environment.

CHILD = """
import importlib.util, json, os, sys
import torch
backend = "npu" if importlib.util.find_spec("torch_npu") else "cuda"
import simulated
api = getattr(torch, backend)
values = torch.arange(1000, dtype=torch.float32).to(backend)
event = api.Event()
event.record()
queries = 1
while not event.query() and queries < 100_000:
    queries += 1
print(json.dumps({
    "devices": api.device_count(),
    "total": [api.mem_get_info(device)[1] for device in range(api.device_count())],
    "used": [simulated.used_bytes(device) for device in range(simulated.devices())],
    "expandable": [s["is_expandable"] for s in api.memory._snapshot()["segments"]],
    "queries": queries,
    "round_trip": values.cpu().sum().item(),
}))
"""


def run_child(**environment):
    result = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**os.environ, "PYTHONPATH": str(Path(simulated.__file__).parent), **environment},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == 0, result.stderr
    return SimpleNamespace(**json.loads(result.stdout))


def test_the_environment_configures_the_devices():
    child = run_child(
        **{backend.settings: "expandable_segments:True", backend.visible: "2,1"},
        SIMULATED_DEVICES="3",
        SIMULATED_CAPACITY_MB="700",
        SIMULATED_BACKED="1",
        SIMULATED_PENDING_QUERIES="2",
    )
    assert child.devices == 2
    assert child.total == [700 * MB] * 2
    assert child.used[2] > 0
    assert child.used[:2] == [0, 0]
    assert child.expandable == [True]
    assert child.queries == 3 if backend is backends.Cuda else child.queries >= 3
    assert child.round_trip == sum(range(1000))


def test_busy_from_the_start():
    child = run_child(PYTORCH_ALLOC_CONF="expandable_segments:True", SIMULATED_BUSY="1")
    assert child.devices == 2
    assert child.expandable == [True]
    assert child.queries == 100_000
    assert child.round_trip == 0


# The module itself.


def test_wrong_names_and_devices_are_refused():
    with pytest.raises(ValueError, match="no counter"):
        simulated.counter("mallocs")
    with pytest.raises(ValueError, match="there are 2"):
        simulated.used_bytes(2)


def test_outside_a_simulation():
    code = "import simulated; assert not simulated.active(); simulated.devices()"
    environment = {
        k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "LD_PRELOAD")
    }
    folder = Path(simulated.__file__).parent
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert "tests/devices/simulate" in result.stderr


@pytest.mark.slow
def test_the_libraries_are_made_once(tmp_path):
    script = Path(simulated.__file__).parent / "simulate"
    command = [script, backend.name, sys.executable, "-c", "import simulated; simulated.devices()"]
    environment = {**os.environ, "SIMULATED_BUILD_DIR": str(tmp_path)}
    both = [
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    stderr = "".join(process.communicate(timeout=HANG_S)[1] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert stderr.count("making") == 1
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1
