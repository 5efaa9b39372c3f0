"""Programs whose memory use is like that of real ones; test_settings_of_programs.py simulates
them.

    python recorded_programs.py BACKEND NAME FOLDER RUNS

RUNS is a JSON list of pairs: allocator settings, and the device's capacity in bytes. Each run has a
process of its own, forked from this one. The first run is recorded in FOLDER/recorded.pickle. The
output is a JSON list with the figures of each run.
"""

import gc
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import simulated
import torch
import torch._dynamo  # optimizers import it, which takes each run 1.5 s otherwise
from torch import Tensor, nn
from torch.nn import functional

import pytracer
from pytracer.variables import VARIABLE

MIB = 1 << 20


def varying_lengths(backend: str) -> None:
    """Allocate what the layers of a transformer would, for sequences of varying lengths."""

    def make(mib: float) -> Tensor:
        return torch.empty(int(mib * MIB), dtype=torch.uint8, device=backend)

    def step(length: float) -> None:
        activations = []
        for _ in range(12):
            hidden = make(length * 8)
            attention = make(length * length / 40)
            activations.append((hidden, make(length * 21)))
            del attention
        logits = make(length * 90)
        for hidden, inner in reversed(activations):
            gradient = make(length * 8.5)
            activations.pop()
            del hidden, inner
        del logits, gradient

    weights = [make(30 + i % 3) for i in range(12)]
    for length in (5, 8, 5.5, 7.3, 6.1, 8, 4.4, 7.7):
        step(length)
    del weights


VOCABULARY, WIDTH, HEADS, LAYERS = 16_000, 512, 8, 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.query_key_value, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.query_key_value(self.norms[0](x)).unflatten(-1, (3, HEADS, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-1, -2)).softmax(-1)
        x = x + self.output((weights @ value).transpose(1, 2).flatten(-2))
        return x + self.narrow(functional.gelu(self.widen(self.norms[1](x))))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.scores = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.scores(self.layers(self.tokens(tokens)))


def tokens(backend: str, rows: int, length: int) -> Tensor:
    return torch.zeros((rows, length), dtype=torch.long, device=backend)


def train(model: nn.Module, batch: Tensor) -> None:
    """Add the gradients of a batch."""
    scores = model(batch[:, :-1])
    functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten()).backward()


def transformer(backend: str) -> None:
    """Train a transformer with batches of varying lengths."""
    model = Decoder().to(backend)
    optimizer = torch.optim.AdamW(model.parameters())
    for rows, length in ((4, 300), (6, 420), (3, 700), (8, 250), (5, 610), (2, 900), (6, 500)):
        train(model, tokens(backend, rows, length))
        optimizer.step()
        optimizer.zero_grad()


def reinforcement(backend: str) -> None:
    """Roll out, compare with a reference, and update, as reinforcement learning of a model does.

    The rollout has its own copy of the weights in a memory pool, and a cache of keys and values
    that grows page by page. The optimizer's state is on the device during updates only.
    """
    api = getattr(torch, backend)
    actor, reference = Decoder().to(backend), Decoder().to(backend)
    optimizer = torch.optim.AdamW(actor.parameters())
    side = api.Stream()
    for step in range(3):
        lengths = [90 + (37 * row + 61 * step) % 400 for row in range(24)]
        roll_out(backend, actor, lengths)
        api.empty_cache()
        for model in (actor, reference):
            log_probs(backend, model, lengths)
        move_state(optimizer, backend)
        for rows in range(0, len(lengths), 4):
            batch = prefetched(backend, side, max(lengths[rows : rows + 4]))
            train(actor, batch)
            del batch
        optimizer.step()
        optimizer.zero_grad()
        move_state(optimizer, "cpu")
        api.empty_cache()


@torch.no_grad()
def roll_out(backend: str, actor: nn.Module, lengths: list[int]) -> None:
    """Generate responses of these lengths."""
    api = getattr(torch, backend)
    pool = api.MemPool()
    with api.use_mem_pool(pool):
        weights = [parameter.to(torch.bfloat16) for parameter in actor.parameters()]
    pages: dict[int, list[Tensor]] = {row: [] for row in range(len(lengths))}
    for position in range(max(lengths)):
        for row in [row for row in pages if lengths[row] <= position]:
            del pages[row]
        if position % 16 == 0:
            for row in pages:
                shape = (2, LAYERS, 16, WIDTH)
                pages[row].append(torch.empty(shape, dtype=torch.bfloat16, device=backend))
        if position % 8 == 0:
            logits = torch.empty((len(pages), VOCABULARY), device=backend)
            logits.softmax(-1).argmax(-1)
            del logits
    pages.clear()
    weights.clear()


@torch.no_grad()
def log_probs(backend: str, model: nn.Module, lengths: list[int]) -> None:
    """Compute the log-probabilities of all tokens, in batches of similar lengths."""
    kept = []
    for length in sorted(lengths)[::3]:
        batch = tokens(backend, 3, length)
        scores = model(batch).log_softmax(-1)
        kept.append(scores.gather(-1, batch.unsqueeze(-1)))
        del scores, batch


def prefetched(backend: str, side: Any, length: int) -> Tensor:
    """Return a batch that another stream copied to the device."""
    api = getattr(torch, backend)
    with api.stream(side):
        batch = tokens(backend, 4, length)
    batch.record_stream(api.current_stream())
    return batch


def move_state(optimizer: torch.optim.Optimizer, device: str) -> None:
    for state in optimizer.state.values():
        for name, value in state.items():
            if value.dim() > 0:
                state[name] = value.to(device)


PROGRAMS: dict[str, Callable[[str], None]] = {
    program.__name__: program for program in (varying_lengths, transformer, reinforcement)
}


def run(backend: str, name: str, path: Path | None, settings: str, capacity: int) -> dict[str, Any]:
    """Run a program in this process, and record it if there is a path."""
    os.environ[VARIABLE[backend]] = settings
    simulated.set_capacity(capacity)
    gc.disable()
    api = getattr(torch, backend)
    api.init()
    oom = False
    tracer = pytracer.Tracer(device=backend, stack_depth=1)
    if path is not None:
        tracer.start()
    try:
        PROGRAMS[name](backend)
    except torch.OutOfMemoryError:
        oom = True
    if path is not None:
        tracer.dump(path)
        tracer.stop()
    stats = api.memory_stats(0)
    return {
        "oom": oom,
        "reserved": stats["reserved_bytes.all.peak"],
        "allocated": stats["allocated_bytes.all.peak"],
        "retries": stats["num_alloc_retries"],
    }


def main(backend: str, name: str, folder: str, runs: str) -> None:
    fork = multiprocessing.get_context("fork")
    found = []
    for number, (settings, capacity) in enumerate(json.loads(runs)):
        path = Path(folder, "recorded.pickle") if number == 0 else None
        with fork.Pool(1) as pool:
            found.append(pool.apply(run, (backend, name, path, settings, capacity)))
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "npu":
        import torch_npu  # noqa: F401
    main(*sys.argv[1:])
