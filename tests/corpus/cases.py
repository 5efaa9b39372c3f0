"""Programs whose answer was wrong once."""

import copy
import gc
import logging.handlers
import queue
import threading
from typing import Any

import torch
from corpus.healthy import Chat, adamw, mlp, rows, train
from corpus.leaks import LAYER, SIZE, Training, layer, new
from corpus.out_of_memory import gpt, loss_of, runs_out, tokens, update
from corpus.pools_and_streams import room
from corpus.truth import DEVICE, FIXED, REMEDY, leak, steps, truth
from torch import nn
from torch.utils.dlpack import to_dlpack

NO_NVML = {"SIMULATED_NVML": "0"}


@leak(None, "total of sum_of_deep_losses()")
def sum_of_deep_losses() -> None:
    """the sum of a validation's losses, with the graphs of twelve layers each"""
    model, total = mlp(*[64] * 13), 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in steps(115):
        train(optimizer, model(rows(64, 64)))
        total = total + model(rows(64, 64)).square().mean()  # LEAK


@leak(None, "state['loss']")
def sum_in_a_dict() -> None:
    """the sum of a validation's losses in a dict, with the graphs of twelve layers each"""
    model, state = mlp(*[64] * 13), {"loss": 0.0}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in steps(115):
        train(optimizer, model(rows(64, 64)))
        state["loss"] += model(rows(64, 64)).square().mean()  # LEAK


@runs_out("leak", kept="running of sum_of_twelve_layers()", do="Look at running", mib=1024)
def sum_of_twelve_layers() -> None:
    """Leak: the sum of a validation's losses keeps the graphs of a transformer, in `running`."""
    model, optimizer = gpt(width=128, layers=12, words=512)
    running = 0.0
    for _ in range(100):
        update(optimizer, loss_of(model, tokens(4, 64, 512)))
        validation = loss_of(model, tokens(4, 64, 512))
        running = running + (validation.item() if FIXED else validation)


class WithHistory(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                gradients = self.state[p].setdefault("history", [])
                gradients.append(p.grad.clone())  # LEAK gradients_in_states
        return super().step(closure)


@leak(LAYER, "history")
def gradients_in_states() -> None:
    """an optimizer whose states have a list of all gradients"""
    model = layer()
    optimizer = WithHistory(model.parameters(), lr=0.1)
    for _ in steps():
        train(optimizer, model(new()))


@leak(4 * LAYER / 5, "runs[…]", wrong=("rate",))
def optimizers_of_trials() -> None:
    """the optimizer of each trial of five steps, in a list; all trials train one model"""
    model, runs = nn.Sequential(layer(), layer()), []
    for trial in range(20):
        optimizer = torch.optim.AdamW(model.parameters(), lr=10.0 ** -(trial % 5 + 1))
        runs.append((trial, optimizer))
        for _ in range(5):
            loss = model(new()).square().mean()
            loss.backward()
            optimizer.step()  # LEAK
            optimizer.zero_grad()


@leak(256 * (128 * 4 + 8), "weight", wrong=("keeper", "line"))
def sparse_gradient_that_nobody_clears() -> None:
    """the sparse gradient of an embedding, which no optimizer has and nothing clears"""
    table, head = nn.Embedding(20000, 128, sparse=True).to(DEVICE), mlp(128, 128)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in steps():
        ids = torch.randint(0, 20000, (16, 16), device=DEVICE)
        head(table(ids)).square().mean().backward()  # LEAK
        optimizer.step()
        optimizer.zero_grad()


@leak(SIZE, "exported[…]")
def capsules_in_a_list() -> None:
    """DLPack capsules for another library, in a list; their tensors are gone"""
    training, exported = Training(), []
    for _ in steps():
        training.step()
        exported.append(to_dlpack(new()))  # LEAK


@leak(None, "autocast", do="torch.clear_autocast_cache()", mib=500, helped=REMEDY)
def one_autocast_for_all_steps() -> None:
    """autocast's cache of weights, which has a copy of each step's new parameter"""
    base, width = mlp(1024, 1024), 1024
    optimizer = torch.optim.SGD(base.parameters(), lr=0.1)
    with torch.autocast(DEVICE, torch.bfloat16):
        for _ in steps(100):
            weight = nn.Parameter(rows(width, width))  # LEAK
            train(optimizer, nn.functional.linear(base(rows(64, width)), weight))  # LEAK
            weight.grad = None
            if FIXED:
                torch.clear_autocast_cache()


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.sigmoid(x)
        if FIXED:
            ctx.save_for_backward(x, y)
        else:
            ctx.x, ctx.y = x, y
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        x, y = ctx.saved_tensors if FIXED else (ctx.x, ctx.y)
        sigmoid = torch.sigmoid(x)
        return grad * (y + sigmoid * (1 - y))


@runs_out("leak", "garbage", kept="a reference cycle of Swish", do="gc.collect()", mib=300)
def function_that_keeps_its_output() -> None:
    """Garbage: a custom function keeps its output on `ctx`, which is a cycle; no collector."""
    gc.disable()
    first, last = mlp(512, 2048), mlp(2048, 512)
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
    for _ in steps():
        train(optimizer, last(Swish.apply(first(rows(512, 512)))))


@leak(SIZE, "a reference cycle of dict['me']")
def cycles_of_dicts() -> None:
    """dicts that have themselves, and no collector"""
    gc.disable()
    training = Training()
    for _ in steps():
        training.step()
        found: dict[str, Any] = {"batch": new()}  # LEAK
        found["me"] = found


@leak(SIZE, "a reference cycle of list")
def cycles_of_lists() -> None:
    """lists that have themselves, and no collector"""
    gc.disable()
    training = Training()
    for _ in steps():
        training.step()
        found: list[Any] = [new()]  # LEAK
        found.append(found)


@leak(SIZE, "again(), which gc.collect() would free")
def cycles_of_closures() -> None:
    """functions that refer to themselves, and no collector"""
    gc.disable()
    training = Training()

    def make(batch: torch.Tensor) -> None:
        def again() -> object:
            return again, batch

    for _ in steps():
        training.step()
        make(new())  # LEAK


@truth("healthy")
def episodes_of_any_length() -> None:
    """log-probabilities with their graphs until an episode ends; the last has not ended"""
    value, policy, logs = mlp(128, 1), mlp(128, 64, 4), []
    optimizer = torch.optim.Adam(value.parameters())
    for length in (12, 30, 8, 25, 17, 40):
        policy.zero_grad()
        logs.clear()
        for _ in steps(length):
            x = rows()
            train(optimizer, value(x))
            logs.append(policy(x).log_softmax(-1)[:, 0].sum())
        if length < 40:
            torch.stack(logs).sum().backward()


@runs_out("nearly exhausted", "step needs more", do="Sequential#2", mib=700)
def reference_of_dpo() -> None:
    """Exhausted: a reference model, which no optimizer has, runs with gradients on."""
    policy = mlp(*[512, 2048] * 6, 512)
    reference, optimizer = copy.deepcopy(policy), adamw(policy)
    for _ in range(4):
        x = rows(2000, 512)
        with torch.set_grad_enabled(not FIXED):
            target = reference(x)
        train(optimizer, policy(x) - target)


@runs_out(
    *("kept growing", "leak", "nearly exhausted"),
    kept="local (inside a thread).workspace",
    do="local",
    mib=600,
)
def workspaces_of_threads_that_wait() -> None:
    """Kept: a thread for each client waits for ever, with a workspace in `local`. No steps."""
    local, end = threading.local(), threading.Event()

    def client(is_ready: threading.Event) -> None:
        local.workspace = room(16)
        is_ready.set()
        if not FIXED:
            end.wait()

    for _ in range(60):
        is_ready = threading.Event()
        threading.Thread(target=client, args=(is_ready,), daemon=True).start()
        if not is_ready.wait(3):
            return
        room(1)


@runs_out("exception", "leak", kept="buffer[…]", do="handler", mib=300)
def records_of_a_log_handler() -> None:
    """Exception: a handler's records keep the tracebacks of failed passes, in `buffer`."""
    log, handler = logging.getLogger("train"), logging.handlers.MemoryHandler(10_000, 60)
    log.propagate = False
    log.addHandler(logging.NullHandler() if FIXED else handler)
    model = mlp(512, 2048, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def check(x: torch.Tensor) -> None:
        outputs = model(x)
        raise ValueError(outputs.shape)

    for step in steps():
        try:
            check(rows(512, 512))
        except ValueError:
            log.exception("step %d", step)
        train(optimizer, model(rows(64, 512)))


class Prefetcher:
    """A thread makes three batches for each that is taken."""

    def __init__(self) -> None:
        self.ready: queue.Queue[torch.Tensor] = queue.Queue()
        self.begin, self.end = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self.work, daemon=True).start()

    def work(self) -> None:
        while True:
            self.begin.acquire()
            for _ in range(3):
                self.ready.put(new())  # LEAK batches_nobody_takes
            self.end.release()

    def next(self) -> torch.Tensor:
        self.begin.release()
        self.end.acquire()
        return self.ready.get()


@leak(2 * SIZE, "ready.queue (inside a deque)")
def batches_nobody_takes() -> None:
    """a queue without a limit, to which a thread adds three batches for each that is taken"""
    training, loader = Training(), Prefetcher()
    for _ in steps():
        training.step(training.model(loader.next()).mean())


@runs_out("kept growing", "leak", kept="sessions[…]", do="sessions[…]", mib=300)
def chats_that_are_kept() -> None:
    """Kept: keys and values of all conversations, which are objects in `sessions`. No steps."""
    layer, sessions = mlp(64, 192), {}
    with torch.no_grad():
        for user in range(400):
            sessions[user] = Chat(layer)
            for length in (256, *[1] * 8):
                sessions[user].token(torch.randn(8, length, 64, device=DEVICE))
            if FIXED:
                sessions.pop(user - 8, None)


@leak(LAYER, "kept[…]")
def probes_in_a_list() -> None:
    """a module of each step that nothing trains, in a list"""
    training, kept = Training(), []
    for _ in steps():
        training.step()
        kept.append(layer())  # LEAK


@runs_out("nearly exhausted", "step needs more", do="batch", mib=740)
def first_backward() -> None:
    """Exhausted: the first backward pass needs more than there is, with any setting."""
    model = nn.Sequential(*[mlp(512, 3000, 512) for _ in range(6)])
    model(rows(1024 if FIXED else 4096, 512)).square().mean().backward()


@runs_out("limit", do="set_per_process_memory_fraction", mib=2048)
def request_over_the_limit() -> None:
    """Limit: half of the device is allowed, and two requests need 1,200 MiB."""
    torch.cuda.set_per_process_memory_fraction(1.0 if FIXED else 0.5)
    kept = room(900)
    room(300)
    del kept


@runs_out("nearly exhausted", "too large", mib=2048, env=NO_NVML, wrong=("verdict",))
def without_nvml() -> None:
    """Exhausted: two requests need 2,400 MiB, and the driver cannot say who uses the device."""
    kept = torch.empty((900 if FIXED else 1800) << 20, dtype=torch.uint8, device="cuda")
    room(600)
    del kept


@runs_out("fragmented", "can't tell", kept="kept[…]", mib=2048)
def pins_in_each_page() -> None:
    """Fragmented: of 20 MiB each, 2 MiB stay, so that expandable segments do not help."""
    large = [room(400) for _ in range(4)]
    del large
    kept, small = [], []
    for _ in range(80):
        small.append(room(18))
        kept.append(room(0 if FIXED else 2))
    small.clear()
    room(600)
