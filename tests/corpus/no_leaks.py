"""Programs that do not leak, although their memory grows for some steps."""

import collections
import functools
import heapq
import queue
import random
from typing import Any

import torch
from corpus.leaks import Training, layer, new
from corpus.truth import steps, truth
from torch import nn


@truth("healthy")
def deque_that_fills() -> None:
    """a deque of at most 300 samples, which has 60 at the end"""
    training, memory = Training(), collections.deque(maxlen=300)
    for _ in steps():
        training.step()
        memory.append((new(), new(1)))


@truth("healthy")
def list_with_room() -> None:
    """a list with room for 80 samples, which has 60 at the end"""
    training, samples = Training(), [None] * 80
    for step in steps():
        training.step()
        samples[step] = new()


@truth("healthy")
def deque_that_is_full() -> None:
    """a deque of at most 20 samples"""
    training, memory = Training(), collections.deque(maxlen=20)
    for _ in steps():
        training.step()
        memory.append(new())


@truth("healthy")
def cache_that_fills() -> None:
    """an lru_cache of at most 200 lengths, which has 60 at the end"""
    training = Training()

    @functools.lru_cache(maxsize=200)
    def encode(length: int) -> torch.Tensor:
        return new() * length

    for step in steps():
        encode(step)
        training.step()


@truth("healthy")
def queue_that_fills() -> None:
    """a queue of at most 100 results, from which fewer are taken than are put"""
    training, results = Training(), queue.Queue(maxsize=100)
    for _ in steps():
        training.step()
        results.put(new())


@truth("healthy")
def inputs_of_any_length() -> None:
    """the last batch, of varying length"""
    training, rng = Training(), random.Random(0)
    for _ in steps():
        last = training.loss(rng.randrange(16, 512))
        training.step(last)


@truth("healthy")
def states_that_come_late() -> None:
    """layers that begin to train one after the other, and their states"""
    layers = [layer() for _ in range(40)]
    optimizer = torch.optim.AdamW([p for each in layers for p in each.parameters()])
    for step in steps():
        loss = sum(each(new()).mean() for each in layers[:step])
        loss.backward()
        optimizer.step()


@truth("healthy")
def generation() -> None:
    """keys and values of a text, released at its end: a step for each token, texts of 25 tokens"""
    for _ in answers(25, 110):
        pass


def answers(length: int, count: int) -> Any:
    tokens = steps(count)

    def answer() -> Any:
        cache = []
        for _ in range(length):
            if next(tokens, None) is None:
                return
            cache.append([new(), new()])
            yield cache[-1][0]

    for _ in range(-(-count // length) + 1):
        yield from answer()


@truth("can't tell", "healthy")
def one_long_answer() -> None:
    """keys and values of a text of 20 tokens, and then of one of 200, of which 60 are there"""
    cache = []
    for step in steps(80):
        cache.append(new())
        if step == 20:
            cache.clear()


@truth("can't tell", "healthy")
def one_long_answer_by_concatenation() -> None:
    """keys of a text of 20 tokens, and then of one of 200, of which 60 are there; concatenated"""
    keys = new(0)
    for step in steps(80):
        keys = torch.cat([new(0) if step == 20 else keys, new()])


@truth("can't tell", "healthy")
def curriculum() -> None:
    """the last outputs, of batches that become longer in each step"""
    training, outputs = Training(), None
    for step in steps():
        training.step()
        outputs = training.model(new(64 + 8 * step))
    del outputs


@truth("can't tell", "healthy")
def curriculum_in_stages() -> None:
    """the last outputs, of batches that become longer every 15 steps"""
    training, outputs = Training(), None
    for step in steps():
        training.step()
        outputs = training.model(new(64 << (step // 15)))
    del outputs


@truth("healthy")
def resumed_state() -> None:
    """the state of a checkpoint, until step 5"""
    training = Training()
    training.step()
    state: dict[str, Any] | None = {
        "model": {name: p.clone() for name, p in training.model.named_parameters()},
        "more": [new() for _ in range(8)],
    }
    for step in steps():
        if step == 5:
            state = None
        training.step()
    del state


@truth("healthy")
def average_of_weights() -> None:
    """an average of the weights, replaced in each step"""
    training = Training()
    average = [p.detach().clone() for p in training.model.parameters()]
    for _ in steps():
        training.step()
        pairs = zip(average, training.model.parameters(), strict=True)
        average = [old * 0.9 + p.detach() * 0.1 for old, p in pairs]


@truth("healthy")
def ring_of_samples() -> None:
    """a list of 40 samples, whose oldest is replaced"""
    training, samples = Training(), []
    for step in steps(100):
        training.step()
        samples[step % 40 : step % 40 + 1] = [new()]


@truth("healthy")
def best_samples() -> None:
    """a heap of the best ten samples"""
    training, best, rng = Training(), [], random.Random(2)
    for step in steps(120):
        training.step()
        heapq.heappush(best, (rng.random(), step, new()))
        if len(best) > 10:
            heapq.heappop(best)


@truth("can't tell", "healthy")
def metrics_of_a_long_epoch() -> None:
    """the outputs of an epoch of 50 steps, in a file of 90"""
    training, outputs = Training(), []
    for step in steps(90):
        training.step()
        outputs.append(new())
        if step == 50:
            outputs.clear()


@truth("can't tell", "healthy")
def metrics_of_the_epoch_before() -> None:
    """the outputs of two epochs of 60 steps: a new list takes the first one's place at the end"""
    training, outputs = Training(), []
    for _ in range(2):
        current = []
        for _ in steps(60):
            training.step()
            current.append(new())
        outputs = current
    outputs[-1].add(1)  # the program goes on, and then ends
    del training, outputs, current


@truth("healthy")
def layers_that_are_replaced() -> None:
    """a model whose two heads are replaced in turn"""
    training = Training()
    heads = nn.ModuleList([layer(), layer()])
    for step in steps():
        training.step()
        heads[step % 2] = layer()


@truth("healthy")
def adapters_of_tasks() -> None:
    """a layer for each of ten tasks, made when the task comes first"""
    training, heads, rng = Training(), nn.ModuleDict(), random.Random(1)
    for _ in steps():
        task = str(rng.randrange(10))
        if task not in heads:
            heads[task] = layer()
        training.step(training.loss() + heads[task](new()).mean())


@truth("can't tell", "healthy")
def layers_that_are_unfrozen() -> None:
    """layers that are trained from one step after the other on, in a program that has ended"""

    def train() -> None:
        training = Training()
        layers = nn.ModuleList([layer() for _ in range(6)]).requires_grad_(False)
        training.optimizer.add_param_group({"params": layers.parameters()})
        for step in steps():
            training.step(training.loss() + sum(each(new()).mean() for each in layers))
            layers[step // 10 % 6].requires_grad_()

    train()


@truth("healthy")
def numbers_of_steps() -> None:
    """numbers of each step, on the CPU"""
    training, numbers = Training(), []
    for _ in steps():
        loss = training.loss()
        numbers.append(loss.item())
        training.step(loss)
