"""Programs that keep more memory from step to step, for a known reason.

The line that leaks ends in `# LEAK`; the docstring says what keeps the memory.
"""

import asyncio
import collections
import copy
import dataclasses
import functools
import gc
import heapq
import itertools
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from corpus.truth import DEVICE, leak, steps
from torch import nn

WIDTH = 128
SIZE = WIDTH * WIDTH * 4
"""The bytes of a batch, and of the weight of a layer; that of its bias are 1/128 of them."""
LAYER = SIZE + WIDTH * 4


def new(count: int = WIDTH) -> torch.Tensor:
    """Return `count` rows of a batch; WIDTH rows have `SIZE` bytes."""
    return torch.ones(count, WIDTH, device=DEVICE)


def layer() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH).to(DEVICE)


class Training:
    """A model of two layers, and its optimizer."""

    def __init__(self, **options: Any) -> None:
        self.model = nn.Sequential(layer(), nn.ReLU(), layer())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **options)

    def loss(self, rows: int = WIDTH) -> torch.Tensor:
        return self.model(new(rows)).square().mean()

    def step(self, loss: torch.Tensor | None = None) -> None:
        (self.loss() if loss is None else loss).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


@leak(3 * SIZE, "history[…] of validation_losses()")
def validation_losses() -> None:
    """a list of losses, each with the graph of its forward pass"""
    training, history = Training(), []
    for _ in steps():
        training.step()
        history.append(training.loss())  # LEAK


@leak(3 * SIZE, "total of sum_of_losses()")
def sum_of_losses() -> None:
    """the sum of the losses, with the graphs of all steps"""
    training, total = Training(), torch.zeros((), device=DEVICE)
    for _ in steps():
        training.step()
        total = total + training.loss()  # LEAK


SEEN: dict[int, torch.Tensor] = {}


@leak(SIZE, "SEEN[…] of module")
def dict_of_a_module() -> None:
    """a global dict with a new key for each step"""
    training = Training()
    for step in steps():
        training.step()
        SEEN[step] = new()  # LEAK


@leak(SIZE, "callbacks[…].__closure__")
def callbacks() -> None:
    """functions in a list, each of which refers to a batch"""
    training, callbacks = Training(), []

    def callback(batch: torch.Tensor) -> Callable[[], float]:
        return lambda: batch.sum().item()

    for _ in steps():
        training.step()
        callbacks.append(callback(new()))  # LEAK


@leak(SIZE, "lru_cache of encode")
def unlimited_cache() -> None:
    """a cache of functools without a limit, of a new length in each step"""
    training = Training()

    @functools.cache
    def encode(length: int) -> torch.Tensor:
        return new() * length  # LEAK

    for step in steps():
        encode(step)
        training.step()


@leak(SIZE, "_forward_hooks[…].args[0]")
def hooks_again() -> None:
    """forward hooks that are registered in each step, each with a batch"""
    training = Training()
    for _ in steps():
        mask = new()  # LEAK
        training.model[0].register_forward_hook(functools.partial(keep_mask, mask))
        training.step()


def keep_mask(_mask: torch.Tensor, *_: object) -> None:
    pass


@leak(SIZE, "results.queue (inside a deque)")
def queue_that_nobody_reads() -> None:
    """a queue of results that nobody takes"""
    training, results = Training(), queue.Queue()
    for _ in steps():
        training.step()
        results.put(new())  # LEAK


@leak(SIZE, "which the traceback of errors[…] of exceptions_in_a_list() keeps")
def exceptions_in_a_list() -> None:
    """exceptions, whose tracebacks keep the variables of what has failed"""
    training, errors = Training(), []

    def check() -> None:
        batch = new()  # LEAK
        raise ValueError(batch.shape)

    for _ in steps():
        training.step()
        try:
            check()
        except ValueError as error:
            errors.append(error)


class Conversation:
    def __init__(self, state: torch.Tensor) -> None:
        self.state, self.me = state, self


@leak(SIZE, "a reference cycle of Conversation.me")
def cycles() -> None:
    """objects that refer to themselves, and no collector"""
    gc.disable()
    training = Training()
    for _ in steps():
        training.step()
        Conversation(new())  # LEAK


@leak(SIZE, "predictions of concatenated_predictions()")
def concatenated_predictions() -> None:
    """the predictions of all steps, concatenated in each step"""
    training, predictions = Training(), new(0)
    for _ in steps():
        training.step()
        predictions = torch.cat([predictions, new()])  # LEAK


@leak(LAYER, "Module.adapters.[…].weight")
def adapters_in_a_module_list() -> None:
    """a ModuleList that gets a layer in each step"""
    model = nn.Module()
    model.adapters = nn.ModuleList()
    training = Training()
    for _ in steps():
        training.step()
        model.adapters.append(layer())  # LEAK


@leak(3 * LAYER, "ModuleList.[…].weight", wrong=("line",))
def parameter_groups() -> None:
    """an optimizer that gets a layer in each step: its parameters, and two states of each"""
    training, layers = Training(), nn.ModuleList()
    for _ in steps():
        layers.append(layer())  # LEAK
        training.optimizer.add_param_group({"params": list(layers[-1].parameters())})
        (training.loss() + layers[-1](new()).mean()).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()


@leak(2 * SIZE, "SGD group […] parameter 0")
def prompts_in_an_optimizer() -> None:
    """tensors that an optimizer gets as groups: SGD has one state of each"""
    optimizer = torch.optim.SGD([nn.Parameter(new())], momentum=0.9)
    for _ in steps():
        prompt = nn.Parameter(new())  # LEAK
        optimizer.add_param_group({"params": [prompt]})
        prompt.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@leak(2 * LAYER, "averages[…]")
def averaged_models() -> None:
    """a copy of the model of each step, in a list"""
    training, averages = Training(), []
    for _ in steps():
        training.step()
        averages.append(copy.deepcopy(training.model))  # LEAK


@leak(3 * 2 * LAYER, "trials[…]", wrong=("verdict", "keeper", "line", "rate"))
def trials_in_a_list() -> None:
    """the model of each step and its optimizer, which has states, in a list"""
    trials = []
    for _ in steps():
        model = nn.Sequential(layer(), layer())  # LEAK
        trials.append((model, torch.optim.AdamW(model.parameters())))
        model(new()).mean().backward()
        trials[-1][1].step()
        trials[-1][1].zero_grad()


@leak(2 * LAYER, "best[…][…] of weights_of_each_step()")
def weights_of_each_step() -> None:
    """the weights of each step, in a dict by their step"""
    training, best = Training(), {}
    for step in steps():
        training.step()
        state = training.model.state_dict()
        best[step] = {name: value.clone() for name, value in state.items()}  # LEAK


@leak(SIZE + 512, "memory[…][…] of replay_memory()")
def replay_memory() -> None:
    """a list of transitions without a limit"""
    training, memory = Training(), []
    for step in steps():
        training.step()
        memory.append((new(), torch.full((1,), step, device=DEVICE)))  # LEAK


@leak(SIZE, "which streams[…] of generators_that_wait() keeps")
def generators_that_wait() -> None:
    """generators that wait for their second batch"""
    training, streams = Training(), []

    def frames() -> Iterator[torch.Tensor]:
        features = new()  # LEAK
        yield features[:1]
        yield features[1:]

    for _ in steps():
        training.step()
        streams.append(frames())
        next(streams[-1])


@leak(SIZE, "batch of threads_that_wait.<locals>.waiting()")
def threads_that_wait() -> None:
    """threads that wait for ever, each with a batch"""
    training, end = Training(), threading.Event()

    def waiting(is_ready: threading.Event) -> None:
        batch = new()  # LEAK
        is_ready.set()
        end.wait()
        del batch

    for _ in steps(40):
        training.step()
        is_ready = threading.Event()
        threading.Thread(target=waiting, args=(is_ready,), daemon=True).start()
        is_ready.wait()


class Metrics:
    history: list[torch.Tensor] = []  # noqa: RUF012

    def add(self, value: torch.Tensor) -> None:
        self.history.append(value)


@leak(SIZE, "history[…] of class Metrics")
def attribute_of_a_class() -> None:
    """a list that all objects of a class share"""
    training = Training()
    for _ in steps():
        training.step()
        Metrics().add(new())  # LEAK


@leak(2 * SIZE, "logs['gradients'][…]")
def gradients_in_a_log() -> None:
    """the gradients of each step, in a list of a dict"""
    training, logs = Training(), {"gradients": []}
    for _ in steps():
        training.loss().backward()  # LEAK
        weights = (training.model[0].weight, training.model[2].weight)
        logs["gradients"].append([weight.grad for weight in weights])
        training.optimizer.step()
        training.optimizer.zero_grad()


@leak(
    2 * SIZE,
    "cache[…][…] of keys_and_values_of_requests()",
    wrong=("verdict", "keeper", "line", "rate"),
)
def keys_and_values_of_requests() -> None:
    """keys and values of each request, which nothing removes from the dict of requests"""
    cache: dict[int, list[torch.Tensor]] = {}
    for request in steps(80):
        cache[request] = [new(), new()]  # LEAK


@leak(SIZE, "the model", wrong=("keeper",))
def buffers_by_name() -> None:
    """a module that registers another buffer in each step"""
    training = Training()
    for step in steps():
        training.step()
        training.model.register_buffer(f"seen_{step}", new())  # LEAK


@leak(SIZE, "].args[0] of class finalize")
def finalizers() -> None:
    """arguments of weakref.finalize, whose objects stay"""
    training, batches = Training(), []

    class Batch:
        pass

    for _ in steps():
        training.step()
        batches.append(Batch())
        weakref.finalize(batches[-1], keep_mask, new())  # LEAK


@leak(SIZE, "second (inside a _tee)")
def second_reader_of_a_tee() -> None:
    """an iterator that itertools.tee has split, of which one half is never read"""
    training = Training()
    first, second = itertools.tee(new() for _ in itertools.count())  # LEAK
    for _ in steps():
        next(first)
        training.step()
    del second


@leak(SIZE, "firsts[…] of first_rows()")
def first_rows() -> None:
    """the first row of each batch, a view that keeps the batch"""
    training, firsts = Training(), []
    for _ in steps():
        training.step()
        batch = new()  # LEAK
        firsts.append(batch[0])


@leak(SIZE / 10, "reports[…] of outputs_of_evaluations()")
def outputs_of_evaluations() -> None:
    """the outputs of every tenth step, in a list"""
    training, reports = Training(), []
    for step in steps(120):
        training.step()
        if step % 10 == 0:
            with torch.no_grad():
                reports.append(training.model(new()))  # LEAK


class Link:
    def __init__(self, state: torch.Tensor, before: "Link | None") -> None:
        self.state, self.before = state, before


@leak(SIZE, "")
def linked_list() -> None:
    """a list of objects, each of which refers to the one before"""
    training, last = Training(), None
    for _ in steps():
        training.step()
        last = Link(new(), last)  # LEAK


@leak(SIZE, "best[…][2] of heap_of_samples()")
def heap_of_samples() -> None:
    """a heap of samples by their loss, of which none is removed"""
    training, best = Training(), []
    for step in steps():
        training.step()
        heapq.heappush(best, (1 / step, step, new()))  # LEAK


@leak(SIZE / 2, "kept[…] of one_line_for_two()", wrong=("keeper",))
def one_line_for_two() -> None:
    """half of what a line makes, in a list; a list of the last 20 has all"""
    training, kept, last = Training(), [], []
    for step in steps():
        batch = new()  # LEAK
        last.append(batch)
        del last[:-20]
        if step % 2:
            kept.append(batch)
        training.step()


@leak(SIZE, "late[…] of from_step_thirty()")
def from_step_thirty() -> None:
    """a list, but only from step 30 on"""
    training, late = Training(), []
    for step in steps(90):
        training.step()
        if step >= 30:
            late.append(new())  # LEAK


@leak(SIZE, "(inside a Parameter)[…].args[0]")
def hooks_of_a_parameter() -> None:
    """hooks of a parameter, each with a batch"""
    training = Training()
    for _ in steps():
        mask = new()  # LEAK
        training.model[0].weight.register_hook(functools.partial(keep_mask, mask))
        training.step()


@leak(SIZE, "pending[…]")
def coroutines() -> None:
    """coroutines that wait for ever"""
    training, pending = Training(), []

    async def answer() -> None:
        request = new()  # LEAK
        await asyncio.sleep(1e9, request)

    loop = asyncio.new_event_loop()
    for _ in steps():
        training.step()
        pending.append(loop.create_task(answer()))
        loop.run_until_complete(asyncio.sleep(0))


@dataclasses.dataclass
class Report:
    rows: dict[str, list[torch.Tensor]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(list)
    )


@leak(3 * SIZE, "report.rows[…][…]")
def two_lists() -> None:
    """two lists of an object, filled by two lines of which one has most"""
    training, report = Training(), Report()
    for _ in steps():
        training.step()
        report.rows["inputs"].append(new(2 * WIDTH))  # LEAK
        report.rows["outputs"].append(new())


@leak(SIZE, "Module.embedding")
def embedding_that_grows() -> None:
    """an embedding that is replaced by a larger one in each step"""
    training, model = Training(), nn.Module()
    model.embedding = nn.Parameter(new())
    for _ in steps():
        training.step()
        with torch.no_grad():
            model.embedding = nn.Parameter(torch.cat([model.embedding, new()]))  # LEAK


@leak(2 * SIZE, "state of hidden_state()")
def hidden_state() -> None:
    """the graph of a hidden state that is not detached"""
    training, cell = Training(), nn.RNNCell(WIDTH, WIDTH, bias=False).to(DEVICE)
    state = new()
    for _ in steps():
        training.step()
        state = cell(new(), state)  # LEAK


@leak(SIZE, "cached[…]")
def dataset_in_device_memory() -> None:
    """a dataset that keeps each sample that was read, and a thread that reads it"""
    training, done = Training(), queue.Queue(maxsize=1)

    class Dataset:
        def __init__(self) -> None:
            self.cached: dict[int, torch.Tensor] = {}

        def __getitem__(self, index: int) -> torch.Tensor:
            if index not in self.cached:
                self.cached[index] = new()  # LEAK
            return self.cached[index]

    dataset = Dataset()

    def read() -> None:
        for index in itertools.count():
            done.put(dataset[index])

    threading.Thread(target=read, daemon=True).start()
    for _ in steps():
        done.get()
        training.step()
