"""Programs whose memory is kept by graphs, reference cycles and exceptions."""

import collections
import functools
import gc
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from corpus.kept_by_objects import KIB, data, grows, linear, requests, sgd
from corpus.out_of_memory import runs_out, update
from corpus.truth import DEVICE, FIXED, steps
from torch import nn
from torch.nn import functional


@runs_out("leak", kept="autocast's cache", do="clear_autocast_cache()", mib=250)
def fast_weights_in_one_autocast() -> None:
    """One autocast around the whole training keeps a copy of each step's fresh weights."""
    body, head = linear(256, 1024), linear(1024, 1024)
    optimizer = sgd(body)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for _ in steps():
            fast = head[0].weight.detach().clone().requires_grad_()
            update(optimizer, functional.linear(body(data(32, 256)).relu(), fast).float().mean())
            if FIXED:
                torch.clear_autocast_cache()


class Centered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.head = nn.Linear(256, 1024), nn.Linear(1024, 10)
        self.register_buffer("center", torch.zeros(1024))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = functional.gelu(self.encode(x))
        mean = features.square().mean(0)
        self.center = 0.99 * self.center + 0.01 * (mean.detach() if FIXED else mean)
        return self.head(features)


@runs_out("leak", kept="center", do="center", mib=200)
def buffer_with_a_graph() -> None:
    """A running mean in a buffer of the model keeps the graphs of the features of all steps."""
    model = Centered().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in steps(100):
        update(optimizer, model(data(512, 256)).square().mean())


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.silu(self.up(self.norm(x))))


class Trainer:
    def __init__(self) -> None:
        self.model = nn.Sequential(*(Layer(128) for _ in range(24))).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.state = {"tr_loss": 0.0, "step": 0}

    def train(self) -> None:
        for _ in range(100):
            update(self.optimizer, self.model(data(64, 128)).square().mean())
            loss = self.model(data(64, 128)).square().mean()
            self.state["tr_loss"] += loss.item() if FIXED else loss
            self.state["step"] += 1


@runs_out("leak", kept="state['tr_loss']", do="state['tr_loss']", mib=400)
def losses_of_a_trainer() -> None:
    """A trainer of a deep model adds up the losses of evaluations with their graphs."""
    Trainer().train()


class Average:
    __slots__ = ("ema",)

    def __init__(self) -> None:
        self.ema = torch.zeros((), device=DEVICE)

    def update(self, loss: torch.Tensor) -> None:
        self.ema = 0.9 * self.ema + 0.1 * (loss.detach() if FIXED else loss)


@grows(None, "average.ema", do="average.ema")
def average_of_losses() -> None:
    """An exponential average of losses, in an object with slots, keeps the graphs of all steps."""
    layers = (m for _ in range(30) for m in (nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU()))
    model, average = nn.Sequential(*layers).to(DEVICE), Average()
    optimizer = sgd(model)
    for _ in steps(70):
        update(optimizer, model(data(16, 32)).square().mean())
        average.update(model(data(16, 32)).square().mean())  # LEAK


@runs_out("leak", kept="total of ", do="total of ", mib=300)
def total_in_a_generator() -> None:
    """An epoch is a generator, whose local `total` adds up losses with their graphs."""
    layers = (nn.Sequential(nn.Linear(192, 192), nn.Tanh()) for _ in range(16))
    model, probe = nn.Sequential(*layers).to(DEVICE), linear(192, 8)
    optimizer = sgd(model, probe)

    def epoch() -> Iterator[int]:
        total = 0.0
        for step in steps(250):
            update(optimizer, model(data(128, 192)).square().mean())
            loss = probe(model(data(128, 192))).logsumexp(-1).mean()
            total = total + (loss.item() if FIXED else loss)
            yield step

    for _ in epoch():
        pass


class Stats(NamedTuple):
    loss: torch.Tensor
    penalty: torch.Tensor


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.conv(x)).relu()


@runs_out("leak", kept="stats", do="stats", mib=200)
def statistics_in_a_tuple() -> None:
    """A named tuple, replaced in every second step, sums up losses with their graphs."""
    model = nn.Sequential(*(Residual() for _ in range(20))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    stats = Stats(torch.zeros((), device=DEVICE), torch.zeros((), device=DEVICE))
    for step in steps(100):
        update(optimizer, model(data(2, 16, 16, 16)).square().mean())
        if step % 2 == 0:
            y = model(data(2, 16, 32, 32))
            y = y.detach() if FIXED else y
            stats = Stats(stats.loss + y.square().mean(), stats.penalty + y.abs().mean())


metrics: Any = collections.defaultdict(lambda: collections.defaultdict(list))


@grows(None, "metrics['valid']['loss'][…]", do="metrics['valid']['loss']")
def losses_in_nested_dicts() -> None:
    """Nested dicts keep the losses of the validation with their graphs."""
    model = linear(64, 256, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in steps(70):
        loss = model(data(64, 64)).square().mean()
        update(optimizer, loss)
        metrics["train"]["loss"].append(loss.item())
        loss = model(data(64, 64)).square().mean()  # LEAK
        metrics["valid"]["loss"].append(loss.item() if FIXED else loss)


garbage = functools.partial(runs_out, kept="a reference cycle of ", do="gc.collect()")


class Gate(nn.Module):
    def __init__(self, parent: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1024, 1024))
        object.__setattr__(self, "parent", parent)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.gate.scale


@garbage("leak", "garbage", mib=300)
def modules_that_know_their_parents() -> None:
    """The head of each step is a cycle, as its child knows its parent, and no collector runs."""
    gc.disable()
    body = linear(256, 1024)
    optimizer = sgd(body)
    for _ in steps():
        head = Head().to(DEVICE)
        update(optimizer, head(body(data(32, 256))).square().mean())
        if FIXED:
            gc.collect()


@garbage("kept growing", "garbage", mib=250)
def errors_in_their_own_frames() -> None:
    """A server's retry keeps an exception in a local, a cycle of its frame and its traceback."""
    up, down = linear(512, 2048), linear(2048, 512)

    @torch.no_grad()
    def attempt(x: torch.Tensor) -> None:
        hidden = up(x)
        raise ValueError(down(hidden.relu()).shape)

    def retry(x: torch.Tensor) -> str:
        error = None
        for _ in range(2):
            try:
                attempt(x)
            except ValueError as failed:
                error = failed
        return str(error)

    gc.freeze()
    gc.disable()
    for _ in requests(120):
        retry(data(256, 512))
        if FIXED:
            gc.collect(0)


class State:
    def __init__(self, seen: torch.Tensor, previous: "State | None") -> None:
        self.seen, self.previous, self.next = seen, previous, None
        if previous is not None:
            previous.next = self


@garbage("leak", "garbage", mib=200)
def linked_trajectories() -> None:
    """The states of an episode are linked in both directions, and the collector runs too seldom."""
    gc.set_threshold(1_000_000, 1000, 1000)
    policy = linear(1024, 256, 4)
    optimizer = torch.optim.Adam(policy.parameters())
    for _ in steps(120):
        state = None
        for _ in range(8):
            state = State(data(64, 1024), state)
        losses = []
        while state is not None:
            losses.append(policy(state.seen).logsumexp(-1).mean())
            state = state.previous
        update(optimizer, sum(losses))
        if FIXED:
            gc.collect(0)


class Request:
    def __init__(self, prompt: torch.Tensor) -> None:
        self.prompt, self.hidden = prompt, prompt
        self.finish = functools.partial(self.stop, reason="length")

    def run(self, model: nn.Module) -> object:
        self.hidden = model(self.prompt)
        return self.finish()

    def stop(self, reason: str) -> tuple[object, str]:
        return self.hidden.shape, reason


@garbage("kept growing", "garbage", mib=300)
def requests_that_know_themselves() -> None:
    """Each request has a partial of a method of its own, and no collector runs."""
    gc.disable()
    model = linear(1024, 2048)
    with torch.inference_mode():
        for _ in requests(200):
            Request(data(256, 1024)).run(model)
            if FIXED:
                gc.collect(0)


@grows((32 + 8 + 2 + 0.5) * KIB, "a reference cycle of ", do="gc.collect()")
def recursive_functions() -> None:
    """A recursive inner function is a cycle, which has a pyramid of features; no collector runs."""
    gc.disable()

    def loss_of(features: torch.Tensor) -> torch.Tensor:
        levels = [features]

        def visit(depth: int) -> torch.Tensor:
            if depth == 3:
                return levels[-1].square().mean()
            levels.append(functional.avg_pool2d(levels[-1], 2))
            return levels[-1].square().mean() + visit(depth + 1)

        return visit(0)

    model = nn.Conv2d(3, 8, 3, padding=1).to(DEVICE)
    optimizer = sgd(model)
    for _ in steps(70):
        update(optimizer, loss_of(model(data(1, 3, 32, 32))))  # LEAK
        if FIXED:
            gc.collect(0)


@runs_out("leak", kept="hook", do="hook", mib=200)
def hook_that_needs_its_tensor() -> None:
    """The hook of a tensor refers to this tensor: a cycle through C++ that no collector frees."""
    body, head = linear(512, 1024), linear(1024, 8)
    optimizer = sgd(body, head)

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = body(x).tanh()
        if FIXED:
            norm = y.detach().norm()
            y.register_hook(lambda grad: grad / norm)
        else:
            y.register_hook(lambda grad: grad / y.norm())
        return head(y)

    for _ in steps():
        update(optimizer, forward(data(1024, 512)).square().mean())


tracebacks = functools.partial(runs_out, do="traceback")


@tracebacks("exception", "kept growing", kept="failures[…]", mib=400)
def exceptions_of_rejected_requests() -> None:
    """A server keeps the exception of each rejected request, whose traceback keeps activations."""
    up, down, failures = linear(512, 2048), linear(2048, 512), {}

    @torch.inference_mode()
    def generate(x: torch.Tensor, number: int) -> torch.Tensor:
        hidden = up(x).relu()
        out = down(hidden)
        if number % 3 == 0:
            raise ValueError(f"request {number} was filtered")
        return out.argmax(-1)

    for number in requests(300):
        try:
            generate(data(512, 512), number)
        except ValueError as error:
            failures[number] = str(error) if FIXED else error


@tracebacks("exception", "kept growing", kept="results[…]", mib=300)
def futures_of_tasks_that_failed() -> None:
    """A list keeps futures, whose exceptions keep the variables of the tasks."""
    model, results = linear(1024, 2048), []

    @torch.no_grad()
    def score(batch: torch.Tensor) -> None:
        features = model(batch.to(DEVICE))
        raise KeyError(features.softmax(-1).shape)

    with ThreadPoolExecutor(1) as pool:
        for _ in requests(130):
            future = pool.submit(score, torch.randn(256, 1024))
            failed = future.exception()
            results.append(repr(failed) if FIXED else future)
            del future, failed
            torch.empty(1 << 21, device=DEVICE)


@runs_out("exception", kept="which the traceback of ", do="outside the except", mib=500)
def half_a_batch_in_except() -> None:
    """A training tries half of the batch again in the `except` of the batch that did not fit."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)))
    optimizer = sgd(model.to(DEVICE))

    def forward(batch: int) -> torch.Tensor:
        x, kept = data(batch, 512), []
        for layer in model:
            x = layer(x)
            kept.append(x.abs())
        return sum(each.mean() for each in kept)

    def train(batch: int) -> None:
        try:
            return update(optimizer, forward(batch))
        except torch.OutOfMemoryError:
            if not FIXED:
                return train(batch // 2) if batch > 64 else None
        return train(batch // 2)

    for _ in range(5):
        train(512)
    train(16_384)


class Result:
    def __init__(self) -> None:
        self.errors: list[tuple[str, object]] = []

    def run(self, name: str, check: Callable[[], None]) -> None:
        try:
            check()
        except AssertionError:
            self.errors.append((name, traceback.format_exc() if FIXED else sys.exc_info()))


@tracebacks("exception", "leak", kept="errors[…]", mib=200)
def errors_of_checks() -> None:
    """The result of checks between the steps of a training keeps what `sys.exc_info()` returns."""
    model, result = linear(512, 1024), Result()
    optimizer = torch.optim.Adam(model.parameters())

    @torch.no_grad()
    def check() -> None:
        y = model(data(512, 512))
        spread = (y - y.mean(0)).abs()
        raise AssertionError(f"not invariant {spread.shape}")

    for step in steps():
        update(optimizer, model(data(32, 512)).square().mean())
        result.run(f"step {step}", check)
