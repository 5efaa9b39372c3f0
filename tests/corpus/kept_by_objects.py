"""Programs whose own objects keep more and more: of optimizers, trainers, caches and hooks."""

import collections
import copy
import dataclasses
import functools
import itertools
import queue
import random
import threading
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from corpus.out_of_memory import runs_out, update
from corpus.truth import DEVICE, FIXED, REMEDY, leak, steps, truth
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

MIB = 1 << 20
KIB = 1 << 10
grows = functools.partial(leak, helped=REMEDY)


def data(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE)


def linear(*widths: int) -> nn.Module:
    """Return layers of these widths."""
    return nn.Sequential(*itertools.starmap(nn.Linear, itertools.pairwise(widths))).to(DEVICE)


def sgd(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(nn.ModuleList(models).parameters(), lr=0.01)


def requests(count: int) -> Iterator[int]:
    """Yield the numbers of requests, which come one after the other."""
    for number in range(count):
        time.sleep(0.02)
        yield number


class Sam(torch.optim.SGD):
    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, lr=0.1)
        self.snapshots: list[list[torch.Tensor]] = []

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        if FIXED:
            self.snapshots.clear()
        weights = (p for group in self.param_groups for p in group["params"])
        self.snapshots.append([p.detach().clone() for p in weights])
        super().step(closure)


@runs_out("leak", kept="snapshots[…]", do="snapshots", mib=300)
def weights_before_each_step() -> None:
    """An optimizer keeps the weights before each step in an attribute of its own, `snapshots`."""
    model = linear(512, 1024, 512)
    optimizer = Sam(model.parameters())
    for _ in steps(100):
        update(optimizer, model(data(64, 512)).square().mean())


class Curvature:
    def __init__(self) -> None:
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.before: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(self, model: nn.Module) -> None:
        slope = torch.cat([p.grad.flatten() for p in model.parameters()])
        weights = parameters_to_vector(model.parameters()).detach()
        if self.before is not None:
            old_weights, old_slope = self.before
            self.pairs.append((weights - old_weights, slope - old_slope))  # LEAK pairs_of_slopes
        if FIXED:
            del self.pairs[:-10]
        self.before = weights, slope


@grows(258 * KIB, "pairs[…]", do="pairs")
def pairs_of_slopes() -> None:
    """A quasi-Newton memory keeps all pairs of differences of weights and gradients."""
    model, memory = linear(128, 128, 128), Curvature()
    optimizer = sgd(model)
    for _ in steps(70):
        model(data(32, 128)).square().mean().backward()
        memory.update(model)
        optimizer.step()
        optimizer.zero_grad()


@runs_out("leak", kept="items.weight.grad", mib=300, do="items.weight")
def tower_without_an_optimizer() -> None:
    """The sparse gradient of the second of two towers grows, as no optimizer has its weights."""
    model = nn.Module()
    model.users = nn.EmbeddingBag(5000, 128, mode="sum", sparse=True, device=DEVICE)
    model.items = nn.EmbeddingBag(50_000, 128, mode="sum", sparse=True, device=DEVICE)
    optimizer = torch.optim.SparseAdam(model.users.parameters())
    for _ in steps(100):
        users = torch.randint(0, 5000, (256, 4), device=DEVICE)
        items = torch.randint(0, 50_000, (256, 16), device=DEVICE)
        update(optimizer, (model.users(users) * model.items(items)).square().mean())
        if FIXED:
            model.items.weight.grad = None


@runs_out("leak", kept="AdamW group", mib=400)
def heads_that_were_replaced() -> None:
    """The optimizer keeps the head of each task and its states, though another has replaced it."""
    body = linear(256, 1024)
    optimizer = torch.optim.AdamW(body.parameters())
    for _ in range(40):
        if FIXED:
            optimizer = torch.optim.AdamW(body.parameters())
        head = linear(1024, 1024)
        optimizer.add_param_group({"params": head.parameters()})
        for _ in range(5):
            update(optimizer, head(body(data(32, 256)).relu()).square().mean())


@grows(3 * 64.5 * KIB, "noise[…]", do="noise")
def gradients_for_a_report() -> None:
    """Hooks of the parameters keep each gradient in a report of their noise."""
    noise = collections.defaultdict(list)

    def collect(name: str, gradient: torch.Tensor) -> None:
        noise[name].append(gradient.norm().item() if FIXED else gradient.detach())

    model = linear(128, 128, 128, 128)
    optimizer = torch.optim.Adam(model.parameters())
    for name, parameter in model.named_parameters():
        parameter.register_hook(functools.partial(collect, name))
    for _ in steps(70):
        update(optimizer, model(data(16, 128)).square().mean())  # LEAK


class Fold:
    def __init__(self, model: nn.Module) -> None:
        self.model, self.optimizer = model, torch.optim.AdamW(model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)

    def fit(self) -> None:
        for _ in range(4):
            update(self.optimizer, self.model(data(64, 128)).square().mean())  # LEAK folds
            self.scheduler.step()


@grows(2 * 129 * KIB / 4, "folds[…]", do="folds", wrong=("rate",))
def folds() -> None:
    """A list keeps the trainer of each fold, whose optimizer has the states of all weights."""
    model, folds = linear(128, 128, 128), []
    for _ in range(16):
        folds.append(Fold(model))
        folds[-1].fit()
        if FIXED:
            folds.clear()


@runs_out("kept growing", kept="sent[…]", do="sent", mib=200)
def capsules_of_a_publisher() -> None:
    """A publisher keeps the DLPack capsules of what it has sent; no Python tensor is left."""
    model, sent = linear(512, 1024, 4096), {}

    @torch.inference_mode()
    def handle(request: int) -> None:
        sent[request] = torch.utils.dlpack.to_dlpack(model(data(128, 512)))
        if FIXED:
            sent.clear()

    for request in requests(120):
        handle(request)


class Reducer:
    def __init__(self) -> None:
        self.work: list[torch.futures.Future] = []

    def reduce(self, bucket: torch.Tensor) -> torch.Tensor:
        self.work.append(torch.futures.Future(devices=[torch.device(DEVICE, 0)]))
        self.work[-1].set_result(bucket * 0.5)
        return self.work[-1].value()


@runs_out("leak", kept="work[…]", mib=300, do="work")
def futures_of_a_reducer() -> None:
    """A reducer keeps finished futures, which have the reduced gradients in C++."""
    model, reducer = nn.Linear(1024, 1024, bias=False).to(DEVICE), Reducer()
    optimizer = sgd(model)
    for _ in steps(80):
        model(data(64, 1024)).square().mean().backward()
        model.weight.grad.copy_(reducer.reduce(model.weight.grad))
        optimizer.step()
        optimizer.zero_grad()
        if FIXED:
            torch.cuda.synchronize()
            reducer.work.clear()


class Tracker(nn.Module):
    history: list[torch.Tensor]

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.history = limit, []
        self.linear = nn.Linear(512, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        self.history.append(y)
        if len(self.history) > self.limit:
            self.history.pop(0)
        return y.mean()


@runs_out("kept growing", kept="kept by no Python tensor", mib=200)
def list_of_a_scripted_module() -> None:
    """A scripted module appends to its list in C++, of which Python has no tensor."""
    model = torch.jit.script(Tracker(4 if FIXED else 1000)).to(DEVICE).eval()
    with torch.no_grad():
        for _ in requests(120):
            model(data(512, 512))


class Adapters:
    def __init__(self) -> None:
        self.base = [data(512, 512) for _ in range(8)]
        self.adapters: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def load(self, tenant: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        if tenant not in self.adapters:
            self.adapters[tenant] = [(data(64, 512), data(512, 64)) for _ in self.base]
        if FIXED and len(self.adapters) > 8:
            self.adapters.pop(next(iter(self.adapters)))
        return self.adapters[tenant]

    @torch.no_grad()
    def generate(self, tenant: int, x: torch.Tensor) -> list[int]:
        for weight, (a, b) in zip(self.base, self.load(tenant), strict=True):
            x = x @ weight + (x @ a.T) @ b.T
        return x.argmax(-1).tolist()


@runs_out("kept growing", kept="adapters[…]", do="adapters", mib=200)
def lora_adapters_of_tenants() -> None:
    """A server loads a LoRA adapter for each tenant into a dict, and unloads none."""
    server = Adapters()
    for call in requests(200):
        server.generate(call // 2, data(16, 512))


class Prefix:
    def __init__(self, kv: object = None) -> None:
        self.kv, self.children = kv, {}


class PrefixCache:
    def __init__(self) -> None:
        self.root = Prefix()
        self.project = linear(512, 2048)

    @torch.no_grad()
    def insert(self, tokens: list[int]) -> None:
        node = self.root
        for start in range(0, len(tokens), 64):
            key = tuple(tokens[start : start + 64])
            if key not in node.children:
                kv = self.project(data(64, 512)).chunk(2, dim=-1)
                node.children[key] = Prefix(kv)
            node = node.children[key]


@runs_out("kept growing", kept="root.children[…]", do="root.children", mib=200)
def tree_of_prefixes() -> None:
    """A cache of prefixes is a tree that gets nodes from each prompt, and nothing is evicted."""
    cache = PrefixCache()
    for request in requests(150):
        cache.insert([*range(64), *range(request * 1000, request * 1000 + 192)])
        if FIXED and request % 50 == 49:
            cache.root.children.clear()


@runs_out("kept growing", kept="vectors[…]", do="vectors", mib=300)
def embeddings_of_an_index() -> None:
    """An index collects the embeddings of all documents on the device before it is built."""
    vectors, encode = [], linear(256, 1024).eval()
    with torch.inference_mode():
        for _ in requests(160):
            found = functional.normalize(encode(data(512, 256)), dim=-1)
            vectors.append(found.cpu() if FIXED else found)
    torch.cat(vectors)


class Tasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.Linear(256, 1024, device=DEVICE), nn.ModuleDict()

    def add(self, name: str) -> None:
        self.heads[name] = nn.Linear(1024, 512, device=DEVICE)
        if FIXED and len(self.heads) > 4:
            del self.heads[next(iter(self.heads))]


@runs_out("kept growing", kept="heads", mib=200)
def heads_of_tasks() -> None:
    """A model without an optimizer gets a head for each task, and keeps those of earlier ones."""
    model = Tasks()
    for task in map(str, requests(120)):
        model.add(task)
        with torch.no_grad():
            model.heads[task](model.body(data(64, 256))).sum().item()


class Room:
    open: set["Room"] = set()  # noqa: RUF012

    def __init__(self, model: nn.Module) -> None:
        self.model, self.kv = model, data(0, 192)
        self.open.add(self)

    @torch.no_grad()
    def say(self, tokens: int) -> None:
        self.kv = torch.cat([self.kv, self.model(data(tokens, 64))])


@truth("kept growing", "leak", kept="open")
def rooms_that_nobody_closes() -> None:
    """A set of a class keeps the rooms of a chat, with 96 KiB each; it ends before memory does."""
    model = linear(64, 192)
    for _ in steps(100):
        room = Room(model)
        for tokens in (96, 16, 16):
            room.say(tokens)


@runs_out("kept growing", kept="buffer", do="buffer", mib=500)
def scratch_of_threads() -> None:
    """Each thread has a thread-local buffer; the executors of all requests are still there."""
    scratch, executors = threading.local(), []

    def resize(image: torch.Tensor) -> None:
        if not hasattr(scratch, "buffer"):
            scratch.buffer = torch.empty(3, 1024, 1024, device=DEVICE)
        scratch.buffer[:, :256, :256].copy_(image)

    try:
        for _ in requests(60):
            executors.append(ThreadPoolExecutor(1))
            executors[-1].submit(resize, data(3, 256, 256)).result()
            if FIXED:
                executors.pop().shutdown()
    finally:
        for executor in executors:
            executor.shutdown()


@runs_out("kept growing", kept="frame of ", do="frame of ", mib=300)
def cameras_that_are_gone() -> None:
    """Threads wait for another frame of their camera, each with a local of the last one."""

    def watch(inbox: queue.Queue, outbox: queue.Queue) -> None:
        while (image := inbox.get()) is not None:
            frame = image.to(DEVICE).float()
            outbox.put(frame.mean().item())

    cameras, outbox = [], queue.Queue()
    try:
        for _ in requests(60):
            cameras.append(queue.Queue())
            threading.Thread(target=watch, args=(cameras[-1], outbox), daemon=True).start()
            cameras[-1].put(torch.zeros(2, 1024, 1024, dtype=torch.uint8))
            outbox.get(timeout=8)
            if FIXED:
                cameras.pop().put(None)
    finally:
        for camera in cameras:
            camera.put(None)


@runs_out("leak", kept="replicas[…]", mib=300, do="replicas")
def replicas_of_threads() -> None:
    """Two threads keep a copy of each version of the model in a thread-local dict."""
    local, inboxes, outbox = threading.local(), [queue.Queue(), queue.Queue()], queue.Queue()

    def work(inbox: queue.Queue) -> None:
        local.replicas = {}
        while (task := inbox.get()) is not None:
            version, model = task
            if FIXED:
                local.replicas.clear()
            local.replicas[version] = copy.deepcopy(model)
            outbox.put(version)
            del task, model

    for inbox in inboxes:
        threading.Thread(target=work, args=(inbox,), daemon=True).start()
    model = linear(1024, 1024)
    optimizer = sgd(model)
    for version in steps(50):
        update(optimizer, model(data(32, 1024)).square().mean())
        for inbox in inboxes:
            inbox.put((version, model))
        for _ in inboxes:
            outbox.get(timeout=8)


class Saver:
    def __init__(self) -> None:
        self.pending: collections.deque = collections.deque()

    def submit(self, step: int, model: nn.Module) -> None:
        state = {n: p.clone() for n, p in model.state_dict().items()}  # LEAK checkpoints_that_wait
        self.pending.append((step, state))
        if FIXED or step % 6 == 0:
            self.pending.popleft()


@grows(2 * 2 * 257 * KIB / 6, "pending", do="pending")
def checkpoints_that_wait() -> None:
    """A deque gets a copy of the weights in each second step, and the writer takes one of three."""
    model, saver = linear(256, 256, 256), Saver()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in steps(90):
        update(optimizer, model(data(8, 256)).square().mean())
        if step % 2 == 0:
            saver.submit(step, model)


@grows(64 * KIB, "history['curves'][…]", mib=4000, do="history['curves']")
def curves_of_many_steps() -> None:
    """A list keeps a curve of each step, and most of the steps are not recorded any more."""
    history: dict[str, list] = {"curves": []}
    model = nn.Sequential(*(nn.Sequential(linear(32, 32), nn.GELU()) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in steps(1500):
        update(optimizer, model(data(16, 32)).square().mean())
        curve = data(16, 1024)  # LEAK
        history["curves"].append(curve.sum().item() if FIXED else curve)


@grows(64 * KIB, "inbox", do="inbox")
def reporter_that_takes_half() -> None:
    """A queue gets two tensors a step, and the reporter takes one of them."""
    inbox, model = queue.SimpleQueue(), linear(64, 256)
    optimizer = sgd(model)
    for _ in steps(100):
        outputs = model(data(64, 64))  # LEAK
        update(optimizer, outputs.square().mean())
        inbox.put(outputs.detach())
        inbox.put(torch.zeros(64, 256, device=DEVICE))  # LEAK
        for _ in range(2 if FIXED else 1):
            inbox.get().mean().item()


@runs_out("leak", kept="values[…]", do="values", mib=150)
def append_as_an_argument() -> None:
    """A training appends its outputs by a bound method that it was given: `tracker.values`."""

    def train(remember) -> None:
        model = linear(256, 1024)
        optimizer = sgd(model)
        for _ in steps(160):
            outputs = model(data(256, 256))
            update(optimizer, outputs.square().mean())
            remember(outputs.mean().item() if FIXED else outputs.detach())

    tracker = types.SimpleNamespace(values=[])
    train(tracker.values.append)


@runs_out("kept growing", kept="cache[…]", do="cache", mib=200)
def table_of_each_length() -> None:
    """A decorator's dict keeps a table for each length that a server was asked for."""

    def memoize(function):
        cache = {}

        @functools.wraps(function)
        def wrapper(*key: int) -> torch.Tensor:
            if FIXED and len(cache) > 4:
                cache.clear()
            if key not in cache:
                cache[key] = function(*key)
            return cache[key]

        return wrapper

    @memoize
    def table(length: int, width: int) -> torch.Tensor:
        return torch.cos(torch.arange(length, device=DEVICE)[:, None] * data(width))

    with torch.no_grad():
        for request in requests(240):
            length = 1000 + request
            (data(1, 256) * table(length, 256)).sum().item()


@dataclasses.dataclass(slots=True)
class Recorder:
    history: list[torch.Tensor] = dataclasses.field(default_factory=list)

    def on_step(self, predictions: torch.Tensor) -> None:
        self.history.append(predictions.mean() if FIXED else predictions)


@grows(64 * KIB, "history[…]", do="history")
def predictions_of_a_callback() -> None:
    """A callback of a trainer, a dataclass with slots, keeps the predictions of each step."""
    model, callbacks = linear(64, 256), [Recorder()]
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in steps(70):
        predictions = model(data(64, 64))  # LEAK
        update(optimizer, predictions.square().mean())
        for callback in callbacks:
            callback.on_step(predictions.detach())


@functools.lru_cache(maxsize=4 if FIXED else None)
def mask(batch: int, length: int) -> torch.Tensor:
    shape = (batch, length, length)
    return torch.ones(shape, device=DEVICE, dtype=torch.bool).tril()


@runs_out("leak", kept="lru_cache of mask", mib=150, do="give it a small maxsize")
def masks_of_each_length() -> None:
    """An lru_cache without a limit keeps an attention mask for each length."""
    model = linear(64, 64)
    optimizer = sgd(model)
    for length in range(400, 700):
        x = data(4, length, 64)
        scores = (model(x) @ x.transpose(1, 2)).masked_fill(~mask(4, length), -1e9)
        update(optimizer, scores.softmax(-1).square().mean())


def smooth(x: torch.Tensor, window: list = []) -> torch.Tensor:  # noqa: B006
    window.append(x)
    if FIXED:
        del window[:-3]
    return sum(window[-3:]) / 3


@grows(128 * KIB, "smooth.__defaults__", do="smooth")
def window_of_a_default_argument() -> None:
    """The default of an argument is one list for all calls, and gets the output of each step."""
    model = linear(64, 256)
    optimizer = sgd(model)
    for _ in steps(70):
        outputs = model(data(128, 64))  # LEAK
        update(optimizer, outputs.square().mean())
        smooth(outputs.detach())


@runs_out("leak", kept="_forward_hooks", mib=200, do="_forward_hooks")
def hooks_that_collect_for_ever() -> None:
    """Each step adds a hook that keeps the features of all later steps, and none is removed."""
    model = linear(256, 512, 16)
    optimizer = sgd(model)
    for _ in steps(100):
        features = []
        handle = model[0].register_forward_hook(
            lambda _module, _args, out, features=features: features.append(out.clone())
        )
        update(optimizer, model(data(64, 256)).square().mean())
        if FIXED:
            handle.remove()


class Pictures:
    def __init__(self) -> None:
        self.images: list[torch.Tensor] = []

    def query(self, fake: torch.Tensor) -> torch.Tensor:
        self.images.append(fake)
        if FIXED:
            del self.images[:-5]
        return random.choice(self.images).detach()


@runs_out("leak", kept="images[…]", mib=200, do="images")
def pool_of_a_gan() -> None:
    """The history of a GAN's discriminator keeps all generated images, and their graphs."""
    make = nn.Sequential(nn.ConvTranspose2d(32, 32, 4, 4), nn.Conv2d(32, 3, 3, padding=1))
    judge = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 3, 2, 1))
    make, judge, pool = make.to(DEVICE), judge.to(DEVICE), Pictures()
    of_make, of_judge = (torch.optim.Adam(model.parameters()) for model in (make, judge))
    for _ in steps(100):
        update(of_make, -judge(make(data(8, 32, 16, 16))).mean())
        fake = pool.query(make(data(8, 32, 16, 16)))
        update(of_judge, judge(fake).mean() - judge(data(8, 3, 64, 64)).mean())


@runs_out("replaced by larger", kept="everything", mib=300)
def logits_of_an_evaluation() -> None:
    """After a training, an evaluation joins the logits of all batches with torch.cat."""
    model = linear(256, 2048)
    optimizer = sgd(model)
    for _ in range(10):
        update(optimizer, model(data(512, 256)).square().mean())
    everything = torch.empty(0, 2048, device="cpu" if FIXED else DEVICE)
    with torch.no_grad():
        for _ in range(70):
            everything = torch.cat([everything, model(data(512, 256)).to(everything.device)])
    everything.argmax(-1)


class Keys:
    def __init__(self) -> None:
        self.k: list[torch.Tensor] = [data(32, 0, 512) for _ in range(8)]

    def update(self, layer: int, k: torch.Tensor) -> torch.Tensor:
        k = torch.cat([self.k[layer], k], 1)
        self.k[layer] = k[:, -64:].contiguous() if FIXED else k
        return self.k[layer]


@runs_out("replaced by larger", "kept growing", kept="k[…]", mib=200)
def keys_of_an_endless_text() -> None:
    """The keys of an endless text are joined with torch.cat in each of 8 layers."""
    layers, cache = nn.ModuleList(nn.Linear(512, 1024) for _ in range(8)).to(DEVICE), Keys()
    x = data(32, 1, 512)
    with torch.inference_mode():
        for _ in range(400):
            for number, layer in enumerate(layers):
                q, k = layer(x).chunk(2, -1)
                k = cache.update(number, k)
                x = (q @ k.transpose(1, 2)).softmax(-1) @ k
