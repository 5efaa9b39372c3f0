"""A training of which a case does something more in each step: some leak, some only look so."""

import collections
import functools
import gc
import random
from collections.abc import Callable
from typing import Any

import torch
from corpus.truth import DEVICE, Job, leak, steps, truth
from torch import nn

import pytracer

WIDTH = 64


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.cache: dict[int, Any] = {}
        self.joined: Any = None

    def forward(self, x: Any) -> Any:
        return torch.relu(self.linear(x)) + x  # LEAK list_of_activations, every_seventh_step


class Training:
    def __init__(self) -> None:
        self.number = 0
        self.random = random.Random(0)
        self.layers = nn.ModuleList([Layer().to(DEVICE) for _ in range(3)])
        self.optimizer = torch.optim.Adam(self.layers.parameters())
        self.kept: Any = []
        self.batch = 16

    def forward(self, batch: int | None = None) -> list[Any]:
        x = torch.ones(batch or self.batch, WIDTH, device=DEVICE)
        outputs = []
        for layer in self.layers:
            x = layer(x)
            outputs.append(x)
        return outputs

    def update(self, loss: Any) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def train(self, batch: int | None = None) -> list[Any]:
        outputs = self.forward(batch)
        loss = (outputs[-1] ** 2).mean()
        self.update(loss)
        return outputs

    def new(self, *shape: int) -> Any:
        return torch.zeros(*shape, device=DEVICE)


def loop(case: Callable[[Training], None]) -> Job:
    """Return the program that does this in each of 60 steps."""

    @functools.wraps(case)
    def program() -> None:
        training = Training()
        for training.number in steps():
            case(training)

    return program


@leak(4096, "kept[…]")
@loop
def list_of_activations(t: Training) -> None:
    """a list of activations, from a line that all layers share"""
    t.kept.append(t.train()[1].detach())


@leak(4096 / 7, "kept[…]")
@loop
def every_seventh_step(t: Training) -> None:
    """the same, in each seventh step"""
    outputs = t.train()
    if t.number % 7 == 0:
        t.kept.append(outputs[1].detach())


@leak(28 << 10, "kept[…]")
@loop
def graph_of_losses(t: Training) -> None:
    """losses with their graphs, as by `losses.append(loss)`"""
    t.train()
    kept_graph = (t.forward()[-1] ** 2).mean()  # LEAK
    t.kept.append(kept_graph)


@leak(4096, "cache[…]")
@loop
def cache_in_a_module(t: Training) -> None:
    """a dict in a module, with a new key in each step"""
    t.train()
    layer: Any = t.layers[0]
    layer.cache[t.number] = t.new(16, WIDTH)  # LEAK


@leak(4 * 4096, "joined")
@loop
def cache_by_concatenation(t: Training) -> None:
    """one tensor that `torch.cat` makes longer in each step"""
    t.train()
    layer: Any = t.layers[0]
    more, old = t.new(64, WIDTH), layer.joined
    layer.joined = more if old is None else torch.cat([old, more])  # LEAK


@leak(4096, "kept[…].__closure__")
@loop
def closure(t: Training) -> None:
    """functions that refer to a tensor"""
    t.train()
    statistics = t.new(1024)  # LEAK
    t.kept.append(lambda: statistics.sum())


@leak(4096, "kept[…]")
@loop
def one_phase_only(t: Training) -> None:
    """samples of one of two phases"""
    with pytracer.annotate("rollout"):
        t.kept.append(make_sample(t))  # LEAK
    with pytracer.annotate("update"):
        make_sample(t)
        t.train()


def make_sample(t: Training) -> Any:
    return t.new(1024)


@leak(4096, "_forward_hooks[…].__closure__")
@loop
def hooks_registered_again(t: Training) -> None:
    """hooks that are registered in each step, each with a tensor"""
    total = t.new(16, WIDTH)  # LEAK
    t.layers[0].register_forward_hook(lambda module, inputs, output: total.add_(output.detach()))
    t.train()


@leak(4096, "_forward_hooks[…].__closure__")
@loop
def hooks_that_keep_the_last_output(t: Training) -> None:
    """the same hooks, each with the last output only"""
    last: dict[str, Any] = {}
    t.layers[0].register_forward_hook(
        lambda module, inputs, output: last.update(output=output.detach().clone())  # LEAK
    )
    t.train()


@leak(None, "kept[…]")
@loop
def from_the_twentieth_step(t: Training) -> None:
    """a list that grows from step 20 on"""
    t.train()
    if t.number >= 20:
        t.kept.append(t.new(1024))  # LEAK


@leak(None, "kept[…]")
@loop
def with_varying_sizes(t: Training) -> None:
    """a list of tensors of varying sizes"""
    t.train()
    t.kept.append(t.new(t.random.randrange(500, 2000)))  # LEAK


@truth("healthy")
@loop
def nothing_kept(t: Training) -> None:
    """nothing but the model and the optimizer's state"""
    t.train()


@truth("healthy")
@loop
def warm_up(t: Training) -> None:
    """memory of the first six steps, until step 12"""
    t.train()
    if t.number <= 6:
        t.kept.append(t.new(1024))
    elif t.number == 12:
        t.kept.clear()


@truth("healthy")
@loop
def cache_that_fills_once(t: Training) -> None:
    """a cache with at most 12 keys"""
    t.train()
    length = t.random.randrange(12)
    cache: Any = t.layers[0].cache
    if length not in cache:
        cache[length] = t.new(1000 + length)


@truth("healthy")
@loop
def accumulation_over_eight(t: Training) -> None:
    """gradients and losses, until every eighth step"""
    loss = (t.forward()[-1] ** 2).mean()
    loss.backward()
    t.kept.append(loss.detach())
    if t.number % 8 == 0:
        t.optimizer.step()
        t.optimizer.zero_grad()
        t.kept.clear()


@truth("healthy")
@loop
def kv_cache_freed_late(t: Training) -> None:
    """a list that is cleared every 14 steps"""
    t.train()
    t.kept.append(t.new(2, 1000))
    if t.number % 14 == 0:
        t.kept.clear()


@truth("healthy")
@loop
def kv_cache_by_concatenation_freed_late(t: Training) -> None:
    """a tensor that grows for 14 steps"""
    layer: Any = t.layers[0]
    more = t.new(16, WIDTH)
    layer.joined = more if layer.joined is None else torch.cat([layer.joined, more])
    t.train()
    if t.number % 14 == 0:
        layer.joined = None


@truth("healthy")
@loop
def lazy_optimizer_state(t: Training) -> None:
    """state of layers that begin to train in later steps"""
    for i, layer in enumerate(t.layers):
        layer.requires_grad_(t.number > 5 * i)
    t.train()


@truth("healthy")
@loop
def outputs_of_varying_lengths(t: Training) -> None:
    """the outputs of the last batch, of varying length"""
    t.kept = t.train(t.random.randrange(1, 64))


@truth("can't tell", "healthy")
@loop
def growing_batches(t: Training) -> None:
    """the outputs of the last batch, each longer than the one before"""
    t.kept = t.train(8 + 2 * t.number)


@truth("healthy")
@loop
def evaluation_every_ten(t: Training) -> None:
    """the outputs of the last evaluation"""
    t.train()
    if t.number % 10 == 0:
        with torch.no_grad():
            t.kept = [t.forward()[-1] for _ in range(10)]


@truth("healthy")
@loop
def three_checkpoints_kept(t: Training) -> None:
    """the last three copies of the model"""
    t.train()
    if t.number % 5 == 0:
        t.kept.append({name: value.clone() for name, value in t.layers.state_dict().items()})
        del t.kept[:-3]


@truth("healthy")
@loop
def replay_buffer(t: Training) -> None:
    """the last 12 samples, of varying sizes"""
    if not t.kept:
        t.kept = collections.deque(maxlen=12)
    t.train()
    t.kept.append(t.new(t.random.randrange(500, 2000)))


@truth("healthy")
@loop
def reference_cycles(t: Training) -> None:
    """cycles, until the collector runs every nine steps"""
    t.train()
    cycle: list[Any] = [t.new(1024)]
    cycle.append(cycle)
    if t.number % 9 == 0:
        gc.collect()


@truth("healthy")
@loop
def prefetched_batches(t: Training) -> None:
    """the next four batches"""
    t.kept.append(t.new(16, WIDTH))
    if len(t.kept) > 4:
        t.kept.pop(0)
    t.train()
