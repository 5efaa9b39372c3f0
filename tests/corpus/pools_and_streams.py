"""Programs whose memory is in other pools, on other streams, in pieces, or pinned on the host."""

import functools
import random

import torch
from corpus.kept_by_objects import MIB, data, linear, sgd
from corpus.out_of_memory import EXPANDS, runs_out, update
from corpus.truth import DEVICE, FIXED, REMEDY, leak, steps, truth
from torch import nn

pinned = functools.partial(torch.empty, dtype=torch.uint8, pin_memory=True)


def room(mib: float) -> torch.Tensor:
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device=DEVICE)


class Graphs:
    def __init__(self) -> None:
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self.pool = torch.cuda.graph_pool_handle() if FIXED else None

    def forward(self, batch: int) -> torch.Tensor:
        hidden, other = room(batch), room(batch)
        out = room(batch / 1024)
        del hidden, other
        return out

    def capture(self, batch: int) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            out = self.forward(batch)
        self.graphs[batch] = graph, out


@runs_out("other pool", do="in the same pool", mib=1200)
def graphs_of_batch_sizes() -> None:
    """A CUDA graph for each batch size has a pool of its own, and then a cache does not fit."""
    torch.cuda.init()
    runner = Graphs()
    for batch in (128, 96, 64, 32, 16, 8):
        runner.capture(batch)
    room(800)


@runs_out("waits for a stream", do="Instead of record_stream()", mib=600)
def gathers_in_a_capture() -> None:
    """A capture gathers weights that another stream uses: until its end, none is used again."""
    other, x = torch.cuda.Stream(), room(1)

    def gather() -> torch.Tensor:
        full = room(32)
        if not FIXED:
            full.record_stream(other)
        return full

    def layer(x: torch.Tensor) -> torch.Tensor:
        _weights = gather()
        return x[:1024].clone()

    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        other.wait_stream(torch.cuda.current_stream())
        for _ in range(40):
            layer(x)
        torch.cuda.current_stream().wait_stream(other)


class Library:
    def __init__(self) -> None:
        self.pool = torch.cuda.MemPool()

    def run(self) -> int:
        with torch.cuda.use_mem_pool(self.pool):
            return len([room(50) for _ in range(8)])


@runs_out("other pool", do="MemPool", mib=900)
def pool_of_a_library() -> None:
    """A library has freed 400 MiB, which stay in a MemPool of its own for others in vain."""
    torch.cuda.init()
    library = Library()
    library.run()
    if FIXED:
        del library
        torch.cuda.empty_cache()
    model = linear(1024, 1024)
    optimizer = sgd(model)
    for step in range(3):
        update(optimizer, model(data(30_000 + step, 1024)).square().mean())


@runs_out("other pool", do="stream", mib=900)
def sessions_with_a_stream_each() -> None:
    """Graphs share a pool, but each session captures on a stream of its own, and frees there."""
    pool, one, graphs = torch.cuda.graph_pool_handle(), torch.cuda.Stream(), []
    for _ in range(6):
        stream = one if FIXED else torch.cuda.Stream()
        for size in (100, 60):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                scratch = room(size)
                out = room(1)
                del scratch
            graphs.append((graph, out))
    room(450)


@runs_out("idle streams", do="Create the stream once", mib=800)
def stream_of_each_request() -> None:
    """Each request makes a stream, and what it frees there is of no use to the next one."""
    model, shared = linear(1024, 1024), torch.cuda.Stream()

    @torch.no_grad()
    def handle(rows: int) -> None:
        stream = shared if FIXED else torch.cuda.Stream()
        with torch.cuda.stream(stream):
            model(torch.empty(rows, 1024, device=DEVICE))
        stream.synchronize()

    for request in range(20):
        handle(3000 + 10 * request)
    handle(50_000)


@truth("idle streams", do="Make streams once", mib=4000, helped=REMEDY)
def streams_of_publishing() -> None:
    """A training publishes its weights 12 times on a new stream; the idle ones keep 2.75 GiB."""
    model, once = linear(1024, 1024), torch.cuda.Stream()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in steps(36):
        update(optimizer, model(data(64, 1024)).square().mean())
        if step % 3 == 0:
            stream = once if FIXED else torch.cuda.Stream()
            with torch.cuda.stream(stream):
                room(256).zero_()
            stream.synchronize()


@truth("healthy", "can't tell", mib=2000)
def pinned_buffer_for_longer_batches() -> None:
    """A pinned buffer is made anew for each longer batch, and the old one is dropped."""
    model, buffer = linear(512, 512), pinned(0)
    optimizer = sgd(model)
    for step in steps(20):
        size = (20 + 18 * step) * MIB + 4096
        if buffer.numel() < size:
            buffer = pinned(size)
        buffer[:MIB].to("cuda", non_blocking=True)
        update(optimizer, model(data(64, 512)).square().mean())


class Offload:
    def __init__(self) -> None:
        self.saved: list[torch.Tensor] = []

    def push(self, tensor: torch.Tensor) -> None:
        host = pinned(tensor.shape, dtype=tensor.dtype)  # LEAK pinned_buffers_in_a_list
        self.saved.append(host.copy_(tensor, non_blocking=True))
        if FIXED:
            self.saved.clear()


offload = Offload()


@leak(4 * MIB, "saved[…]", do="saved", mib=2000, helped=REMEDY, wrong=("keeper", "advice"))
def pinned_buffers_in_a_list() -> None:
    """A list keeps the offloaded activations of each step, 2.05 MiB that are rounded up to 4."""
    torch.cuda.init()
    model = linear(512, 2100)
    optimizer = sgd(model)
    for _ in steps():
        outputs = model(data(256, 512))
        update(optimizer, outputs.square().mean())
        offload.push(outputs.detach())


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out((q @ k.transpose(1, 2)).sigmoid() @ v / len(v[0]))


@runs_out("fragmented", do="expandable_segments:True", mib=580, helped=EXPANDS)
def attention_of_very_different_lengths() -> None:
    """Batches of very different lengths leave pieces, which would be enough if they were joined."""
    random.seed(14)
    model = nn.Sequential(*(Mixer() for _ in range(4))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(55):
        length = random.randrange(100, 1000 + 18 * step)
        update(optimizer, model(data(4, length, 256)).square().mean())


@runs_out("limit", do="set_per_process_memory_fraction", mib=1500)
def fraction_of_a_server() -> None:
    """The process may use 30 % of a device that has enough for the last batch."""
    torch.cuda.set_per_process_memory_fraction(0.9 if FIXED else 0.3)
    model = nn.Sequential(linear(512, 4096), nn.GELU(), linear(4096, 512))
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in (2048, 4096, 8192, 16_384):
        for _ in range(3):
            update(optimizer, model(data(batch, 512)).square().mean())
