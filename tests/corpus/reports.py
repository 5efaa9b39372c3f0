"""Programs in the shape of public reports, with less memory than in those."""

import code
import copy
import ctypes

import torch
from corpus.healthy import adamw, mlp, rows, train
from corpus.leaks import Training, new
from corpus.out_of_memory import runs_out
from corpus.pools_and_streams import room
from corpus.truth import DEVICE, FIXED, REMEDY, leak, steps, truth
from torch import nn

WEIGHTS = 2 * (512 * 512 + 512) * 4
ROUNDED = {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:[>:2]"}
SLOW = {"SIMULATED_PENDING_QUERIES": "8"}
"""Events of a stream are pending when they are asked for the first eight times."""


@truth("idle streams", do="Make streams once", mib=8192, helped=REMEDY)
def streams_of_each_synchronization() -> None:
    """Idle streams: weights are sent on two new streams in each step (vllm#52950)."""
    training, pair = Training(), [torch.cuda.Stream() for _ in range(2)]
    for _ in steps(14):
        training.step()
        if not FIXED:
            pair = [torch.cuda.Stream() for _ in range(2)]
        for stream in pair:
            with torch.cuda.stream(stream):
                room(128)
        torch.cuda.synchronize()


@runs_out("freed meanwhile", "waits for a stream", mib=500, env=SLOW)
def request_that_would_succeed_again() -> None:
    """Freed meanwhile: 20 MiB wait for a stream until the request has failed (pytorch#189504)."""
    stream = torch.cuda.Stream()
    room(40)
    first, waiting = room(20), room(20)
    rest = room(torch.cuda.mem_get_info()[0] >> 21 << 1)
    waiting.record_stream(stream)
    del waiting
    if FIXED:
        stream.synchronize()
        torch.cuda.empty_cache()
    room(20)
    del first, rest


@truth("waits for a stream", do="wait_stream(", mib=4096, env=SLOW, helped=REMEDY)
def prefetched_weights() -> None:
    """Waits: each layer's gathered weights are freed while a stream uses them (pytorch#147168)."""
    training, gather = Training(), torch.cuda.Stream()
    for _ in steps(20):
        training.step()
        for _ in range(4):
            weights = room(100)
            if FIXED:
                torch.cuda.current_stream().wait_stream(gather)
            else:
                weights.record_stream(gather)
            del weights


PAIR = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True"}


@truth("fragmented", do="recommend", mib=4096, env=PAIR, wrong=("verdict",))
def limit_of_splits_and_expandable() -> None:
    """blocks between small ones that stay; no large block can be split (pytorch#193400)"""
    kept = []
    for _ in range(101):
        large = room(91), room(45.5)
        kept.append(room(2))
        del large


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = mlp(1024, 4096, 1024)
        self.cache: list[torch.Tensor] = []

    @torch.no_grad()
    def generate(self, length: int) -> None:
        self.cache = [torch.zeros(length, 1024, device=DEVICE) for _ in range(4)]
        for place in range(8):
            self.cache[0][place] = self.layer(self.cache[0][place])
        if FIXED:
            self.cache.clear()


@runs_out("nearly exhausted", "too large", kept="cache[…]", do="cache[…]", mib=900)
def cache_left_on_the_model() -> None:
    """Exhausted: the static cache of a generation stays on the model (transformers#47731)."""
    model = Generator()
    optimizer = adamw(model)
    for _ in range(3):
        train(optimizer, model.layer(rows(8192, 1024)))
        model.generate(32768)


@runs_out("replaced by larger", kept="past of ", do="torch.cat", mib=300)
def keys_by_concatenation() -> None:
    """Replaced: each token's keys make a new cache by `torch.cat` (transformers#30536)."""
    model = mlp(1024, 1024)
    past, keys = rows(0, 1024), rows(64 * 1000 if FIXED else 0, 1024)
    with torch.no_grad():
        for token in range(1000):
            now = model(rows(64, 1024))
            if FIXED:
                keys[64 * token : 64 * token + 64] = now
            else:
                past = torch.cat([past, now])


@runs_out("replaced by larger", kept="predictions of ", do="torch.cat", mib=1500)
def predictions_of_an_evaluation() -> None:
    """Replaced: an evaluation concatenates the logits on the device (transformers#12878)."""
    training, predictions = Training(), None
    for _ in steps(12):
        training.step()
    with torch.no_grad():
        for _ in range(150):
            logits = room(8)
            if FIXED:
                logits = logits[:1024].clone()
            predictions = logits if predictions is None else torch.cat([predictions, logits])


class Metric:
    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []

    def update(self, outputs: torch.Tensor) -> None:
        self.values.append(outputs)


@leak(None, "values[…]")
def metric_that_is_never_reset() -> None:
    """a metric's list, which the evaluation of each epoch extends (geo-deep-learning#582)"""
    training, metric = Training(), Metric()
    for _ in range(8):
        for _ in steps(10):
            training.step()
        for _ in range(5):
            with torch.no_grad():
                metric.update(training.model(new()))  # LEAK


@runs_out("other pool", kept="graphs[…]", do="in the same pool", mib=2560)
def graphs_with_a_pool_each() -> None:
    """Other pool: graphs of six sizes, each with a pool of its own, keep what a cache needs."""
    graphs, pool = {}, None
    for size in (266, 264, 262, 260, 258, 256):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            room(size)
            outputs = room(1)
        graphs[size] = graph, outputs
        if FIXED:
            pool = graph.pool()
    room(1280)


@runs_out("other pool", kept="graphs[…]", do="on one stream", mib=1024, wrong=("advice",))
def graphs_captured_on_many_streams() -> None:
    """Other pool: graphs share a pool, but each session has its own stream (sglang#33220)."""
    graphs, pool, first = [], torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    for _ in range(5):
        stream = first if FIXED else torch.cuda.Stream()
        for size in (192, 128, 64):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                room(size)
                outputs = room(1)
            graphs.append((graph, outputs))
    room(640)


@runs_out("waits for a stream", mib=1024)
def record_stream_in_a_capture() -> None:
    """Waits: in a capture, what another stream uses is not free before the capture's end."""
    other, graph, kept = torch.cuda.Stream(), torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        other.wait_stream(torch.cuda.current_stream())
        for _ in range(60):
            weights = room(96)
            if not FIXED:
                weights.record_stream(other)
            del weights
            kept.append(room(1))
        torch.cuda.current_stream().wait_stream(other)


class LoraLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = mlp(512, 512), nn.ModuleDict(), nn.ModuleDict()

    def load(self, name: str) -> None:
        if FIXED:
            self.down.clear()
            self.up.clear()
        self.down[name], self.up[name] = mlp(512, 256), mlp(256, 512)

    def forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self.base(x) + self.up[name](self.down[name](x))


@runs_out("kept growing", kept="the model", mib=500)
def adapters_are_never_deleted() -> None:
    """Kept: each request loads an adapter into all layers; the old ones stay. No steps."""
    model = nn.Sequential(*[LoraLayer() for _ in range(8)])
    with torch.no_grad():
        for request in range(120):
            x = rows(16, 512)
            for each in model:
                each.load(f"adapter_{request}")
                x = each(x, f"adapter_{request}")


@leak(8 << 20, "pending[…]", mib=2048, wrong=("keeper",))
def futures_with_results() -> None:
    """finished futures, whose results only C++ refers to"""
    training, pending = Training(), []
    for _ in steps():
        training.step()
        future = torch.futures.Future(devices=[torch.device("cuda", 0)])
        future.set_result(room(8))  # LEAK
        pending.append(future)


@runs_out("exception", "leak", kept="errors[…]", do="errors[…]", mib=1024, wrong=("advice",))
def errors_of_halved_batches() -> None:
    """Exception: a list of errors keeps the forward passes that did not fit (pytorch#82218)."""
    training, errors = Training(), []

    def forward(batch: int) -> None:
        activations = []
        for _ in range(8):
            activations.append(room(20 * batch))

    for _ in range(2):
        training.step()
        for batch in (8, 4, 2, 1):
            try:
                forward(batch)
                break
            except torch.OutOfMemoryError as error:
                errors.append(str(error) if FIXED else error)


def train_and_copy() -> None:
    model, best = mlp(512, 512, 512), []
    optimizer = adamw(model)
    for step in steps(120):
        train(optimizer, model(rows(64, 512)))
        if step % 20 == 0:
            best.append(copy.deepcopy(model.state_dict()))  # LEAK weights_every_twenty_steps


@leak(WEIGHTS / 20, "best[…][…]", mib=2000)
def weights_every_twenty_steps() -> None:
    """copies of the weights, one every 20 steps, in a list"""
    train_and_copy()


@leak(WEIGHTS / 20, "best[…][…]", mib=2000)
def weights_beside_a_large_index() -> None:
    """copies of the weights, in a program with an index of 120,000 small objects"""
    index = [{"file": [i], "label": (i,)} for i in range(40_000)]
    train_and_copy()
    print(len(index))


@truth(
    "too large",
    do="roundup",
    mib=700,
    env=ROUNDED,
    helped={"PYTORCH_CUDA_ALLOC_CONF": ""},
)
def request_that_is_rounded_up() -> None:
    """Too large: a setting rounds 514 MiB up to 768, and the device has 700 (pytorch#161139)."""
    room(514)


@runs_out("nearly exhausted", kept="cache of ", do="cache", mib=1024, wrong=("advice",))
def cache_before_the_graphs() -> None:
    """Exhausted: an engine gives its cache 90 % of the device, and captures graphs (vllm#57475)."""
    pool, graphs = torch.cuda.graph_pool_handle(), []
    cache = room((0.3 if FIXED else 0.9) * torch.cuda.mem_get_info()[0] / 2**20)
    for _ in range(8):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            outputs = room(60)
        graphs.append((graph, outputs))
    del cache


@runs_out("others", kept="weights of", mib=4096)
def buffers_of_a_library() -> None:
    """Others: a library of this process takes 2,500 MiB from the driver itself (verl#5979)."""
    torch.cuda.init()
    runtime = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}")
    address, size = ctypes.c_void_p(), (100 if FIXED else 2500) << 20
    assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)) == 0
    weights = room(1000)
    room(1000)
    del weights


@runs_out("kept growing", "leak", kept="Out", do="Out", mib=500)
def outputs_of_cells() -> None:
    """Kept: a notebook keeps the result of each cell in `Out`. No steps."""
    console = code.InteractiveConsole({"rows": rows, "Out": {}})
    for cell in range(501):
        console.runsource(f"Out[{cell}] = rows(1024, 256)\n")
        if FIXED:
            console.runsource("Out.clear()")


@runs_out("too large", "nearly exhausted", kept="states of", do="check tensor shapes", mib=1500)
def buffer_that_is_made_at_once() -> None:
    """Too large: a replay memory of 100,000 states is allocated before the training begins."""
    size = 20_000 if FIXED else 100_000
    states = torch.zeros(size, 2048, device=DEVICE)
    following = torch.zeros(size, 2048, device=DEVICE)
    training = Training()
    for step in steps():
        states[step], following[step - 1] = 1, 1
        training.step()


@runs_out("too large", "larger input", do="in parts", mib=1500)
def frames_decoded_at_once() -> None:
    """Too large: all frames of a video are decoded as one batch, after its latents fitted."""
    decode = nn.Sequential(nn.Linear(64, 4096), nn.SiLU(), nn.Linear(4096, 1024)).to(DEVICE)
    with torch.inference_mode():
        latents = rows(64 * 1024, 64)
        for part in latents.chunk(16 if FIXED else 1):
            decode(part).cpu()


@truth("healthy")
def gradients_that_nobody_clears() -> None:
    """gradients that add up, as zero_grad is never called; they do not grow"""
    model = mlp(128, 256, 128)
    optimizer = adamw(model)
    for _ in steps():
        model(rows()).square().mean().backward()
        optimizer.step()


@truth("healthy")
def last_loss_in_a_progress_bar() -> None:
    """the last loss with its graph, which a progress bar shows"""
    training, shown = Training(), {}
    for step in steps():
        loss = training.loss()
        training.step(loss)
        shown.update(step=step, loss=training.loss())
    del shown
