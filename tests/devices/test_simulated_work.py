"""Do streams, graphs, models and threads work on a simulated device?"""

import time

import pytest
import simulated
import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812
from devices import backends
from simulated_memory import MB, actions, backend, empty, history, pools, statistic
from thread_failures import failures_of

if not simulated.active():
    pytest.skip("runs under tests/devices/simulate", allow_module_level=True)
# Warnings of torch and torch_npu do not matter here.
pytestmark = pytest.mark.filterwarnings("ignore")


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


def test_elapsed_time_is_not_negative():
    start = backend.api.Event(enable_timing=True)
    end = backend.api.Event(enable_timing=True)
    start.record()
    end.record()
    backend.api.synchronize()
    assert 0 <= start.elapsed_time(end) < 1000


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


# Programs.


@pytest.mark.parametrize("optimizer", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_a_transformer_trains(optimizer):
    before = backend.api.memory_allocated()
    layers = [nn.TransformerEncoderLayer(128, 4, 512, 0, batch_first=True) for _ in range(2)]
    model = nn.Sequential(nn.Embedding(1000, 128), *layers, nn.Linear(128, 1000)).to(backend.name)
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
    backend.api.synchronize()  # torch_npu launches on a thread of its own
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


def test_threads_allocate_at_the_same_time():
    before = backend.api.memory_allocated()
    seeds = iter(range(6))

    def work():
        held, seed = [], next(seeds)
        for i in range(300):
            held.append(empty((seed * 7919 + i * 104729) % (2 * MB) + 1, device=seed % 2))
            if len(held) > 8:
                held.pop(i % 8)

    assert failures_of(work, 6) == []
    assert backend.api.memory_allocated() == before
    for device in range(2):
        assert simulated.used_bytes(device) == backend.api.memory_reserved(device)


# What is read back, and what is not known.


@pytest.mark.skipif(backend is not backends.Cuda, reason="copies on an NPU are operators")
def test_a_small_copy_can_be_read_back_until_something_is_launched():
    sent = torch.arange(8, dtype=torch.int64)
    device = sent.to(backend.name)
    launches = simulated.counter("launch")
    assert device.cpu().tolist() == list(range(8))
    assert device[2:4].cpu().tolist() == [2, 3]
    copied = torch.empty_like(device)
    copied.copy_(device)
    assert copied.cpu().tolist() == list(range(8))
    device[:4].copy_(torch.tensor([7, 7, 7, 7]))
    assert simulated.counter("launch") == launches
    assert device.cpu().tolist() == [7, 7, 7, 7, 4, 5, 6, 7]
    device[2:6].copy_(torch.tensor([1, 2, 3, 4]))
    assert device[1:].cpu().tolist() == [7, 1, 2, 3, 4, 6, 7]
    device.add_(1)
    assert device.cpu().tolist() == [0] * 8
    assert torch.ones(1 << 20).to(backend.name).cpu().sum() == 0  # it is large


@pytest.mark.skipif(backend is not backends.Cuda, reason="cuDNN's")
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"proj_size": 9}], ids=str)
def test_recurrent_networks_have_the_real_weights(options):
    network = nn.LSTM(11, 23, 3, dropout=0.1, **options).cuda()
    weights = network.all_weights[0][0].untyped_storage().nbytes()
    assert weights == sum(each.numel() for each in network.parameters()) * 4
    unknown = simulated.counter("unknown_workspaces")
    network(torch.randn(5, 2, 11, device="cuda"))[0].sum().backward()
    assert simulated.counter("unknown_workspaces") > unknown


@pytest.mark.skipif(backend is not backends.Cuda, reason="cuDNN's")
def test_workspaces_of_convolutions_are_counted_as_unknown():
    unknown = simulated.counter("unknown_workspaces")
    torch.relu(torch.ones(3, 3, device="cuda") @ torch.ones(3, 3, device="cuda"))
    assert simulated.counter("unknown_workspaces") == unknown
    nn.Conv2d(1, 1, 3).cuda()(torch.ones(1, 1, 5, 5, device="cuda"))
    assert simulated.counter("unknown_workspaces") > unknown


@pytest.mark.skipif(backend is not backends.Cuda, reason="cuSOLVER's and cuSPARSE's")
def test_stubs_answer_with_sizes():
    matrix = torch.ones(5, 5, device="cuda")
    assert torch.linalg.qr(matrix).Q.shape == torch.linalg.cholesky(matrix).shape == (5, 5)
    assert (torch.eye(5).to_sparse_csr().cuda() @ matrix).shape == (5, 5)
