"""Small trainings, and which of their blocks were saved for backward or were gradients.

The truth is made without pytracer's analysis: hooks of autograd see each tensor that is saved, and
the program itself shows its parameters, gradients and optimizer states. A program calls `look` at
many moments.
"""

import gc
import itertools
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from amount import amount
from autograd_models import Layer, LlamaLayer, Residual
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils import checkpoint as checkpoints
from torch.utils.data._utils.fetch import _MapDatasetFetcher

import pytracer
from pytracer.analysis.device_data import device_data
from pytracer.analysis.held_memory import held_memory
from pytracer.reading.reader import load

MARKER = 10_000_003  # bytes; the programs allocate nothing as large

SMALLEST = 64
"""Smaller blocks are not compared: numbers that are wrapped as tensors, and losses."""

Look = Callable[[nn.Module, list[torch.optim.Optimizer]], None]


class _Looking(nn.Module):
    """A layer that looks in the middle of the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.look: Callable[[], None] = lambda: None

    def forward(self, x: Tensor) -> Tensor:
        self.look()
        return x


def _call(model: nn.Module, x: Tensor, is_input: bool = True) -> Tensor:
    """Call a model; `is_input`: the program made the argument. Patched where the truth is made."""
    y: Tensor = model(x)
    return y


def _kept(x: Tensor, is_for_backward: bool) -> Tensor:
    """Return what a function keeps in an attribute. Patched where the truth is made."""
    return x


def _train(
    model: nn.Sequential,
    make_batch: Callable[[], Tensor],
    look: Look,
    *,
    accumulate: int = 1,
    set_to_none: bool = True,
    retain_graph: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: torch.amp.GradScaler | None = None,
    wrapped: nn.Module | None = None,
) -> None:
    """Train a model for four steps.

    Args:
        model: The model.
        make_batch: Makes a batch.
        look: Called at many moments.
        accumulate: The number of batches of a step.
        set_to_none: Whether `zero_grad` drops the gradients.
        retain_graph: Whether the second step runs backward twice.
        optimizer: The optimizer; None: AdamW with foreach functions.
        scaler: Scales the loss; the forward pass is then in autocast, and the others are not.
        wrapped: The module that is called in place of the model.
    """
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), foreach=True)
    wrapped = wrapped or model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def look_now(_: object = None) -> None:
        look(model, [optimizer])

    def region() -> Any:
        # Not a region that is switched off: a caller's region would have no effect inside of it.
        device = next(model.parameters()).device.type
        return torch.autocast(device, torch.bfloat16) if scaler else nullcontext()

    looking = [module for module in model if isinstance(module, _Looking)]
    for module in looking:
        module.look = look_now
    handles = [parameter.register_post_accumulate_grad_hook(look_now) for parameter in trained[:2]]
    for step in range(4):
        for _ in range(accumulate):
            batch = make_batch()
            with region():
                output = _call(wrapped, batch)
                loss = output.float().square().mean()
            look_now()
            if scaler is not None:
                loss = scaler.scale(loss)
            if retain_graph and step == 1:
                loss.backward(retain_graph=True)
            loss.backward()
            look_now()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        look_now()
        optimizer.zero_grad(set_to_none=set_to_none)
        # In autocast as above: otherwise the peak may be in a graph that no backward pass frees.
        with region():
            with torch.no_grad():
                _call(wrapped, batch)
            _call(wrapped, batch)  # its graph is dropped without a backward pass
        look_now()
    # Garbage collection does not see the references of torch's hooks.
    for handle in handles:
        handle.remove()
    for module in looking:
        del module.look


def _batch(device: str) -> Callable[[], Tensor]:
    return lambda: torch.ones(3, 16, 32, device=device)


def gpt(device: str, look: Look) -> None:
    model = nn.Sequential(Layer(), _Looking(), Layer(), Layer()).to(device)
    _train(model, _batch(device), look)


def gpt_autocast(device: str, look: Look) -> None:
    model = nn.Sequential(Layer(), _Looking(), Layer()).to(device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        _train(model, _batch(device), look, optimizer=optimizer)


def convolutions(device: str, look: Look) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        _Looking(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 64, 10),
    ).to(device)
    _train(model, lambda: torch.ones(2, 3, 16, 16, device=device), look)


def accumulation(device: str, look: Look) -> None:
    model = nn.Sequential(Layer(), _Looking(), Layer()).to(device)
    _train(model, _batch(device), look, accumulate=3, set_to_none=False)


def retained_graph(device: str, look: Look) -> None:
    model = nn.Sequential(Layer(), _Looking(), Layer()).to(device)
    _train(model, _batch(device), look, retain_graph=True)


class _Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.layer, self.use_reentrant = Layer(), use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoints.checkpoint(self.layer, x, use_reentrant=self.use_reentrant)
        return y


def _checkpointing(device: str, look: Look, use_reentrant: bool) -> None:
    layers = [_Checkpointed(use_reentrant) for _ in range(2)]
    model = nn.Sequential(nn.Linear(32, 32), layers[0], _Looking(), layers[1]).to(device)
    _train(model, _batch(device), look)


def checkpointing(device: str, look: Look) -> None:
    _checkpointing(device, look, False)


def reentrant_checkpointing(device: str, look: Look) -> None:
    _checkpointing(device, look, True)


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.kept = _kept(x * 2, ctx.needs_input_grad[0])
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tensor:
        (x,) = ctx.saved_tensors
        other: Tensor = ctx.kept * grads[0]
        return other + x - x


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.average: Tensor
        self.register_buffer("average", torch.zeros(32))

    def forward(self, x: Tensor) -> Tensor:
        self.average = self.average * 0.9 + x.detach().mean((0, 1)) * 0.1
        y: Tensor = _Scale.apply(x)
        return y


def custom_function(device: str, look: Look) -> None:
    model = nn.Sequential(nn.Linear(32, 32), _Scaled(), _Looking(), nn.Linear(32, 32)).to(device)
    _train(model, _batch(device), look)


def gradient_penalty(device: str, look: Look) -> None:
    """The first backward pass has a graph of its own, which the second one uses."""
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        x = torch.ones(64, 32, device=device, requires_grad=True)
        (gradient,) = torch.autograd.grad(_call(model, x).sum(), x, create_graph=True)
        look(model, [optimizer])
        functional.relu(gradient.square().sum()).backward()
        del gradient
        look(model, [optimizer])
        optimizer.step()
        optimizer.zero_grad()
        look(model, [optimizer])


def adversarial(device: str, look: Look) -> None:
    """Two models, whose arguments the other one makes too, and a detached parameter as argument."""
    maker = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), _Looking(), nn.Linear(32, 32)).to(device)
    critic = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    both = nn.ModuleList([maker, critic])
    optimizer = torch.optim.AdamW(both.parameters(), foreach=True)
    for _ in range(4):
        noise, real = torch.ones(48, 32, device=device), torch.zeros(48, 32, device=device)
        with torch.no_grad():
            fake = _call(maker, noise)
        mixed = real * 0.25 + fake * 0.75
        loss = _call(critic, fake, is_input=False).mean() - _call(critic, real).mean()
        (loss + _call(critic, mixed).square().mean()).backward()
        look(both, [optimizer])
        optimizer.step()
        optimizer.zero_grad()
        made = _call(maker, noise)
        (-_call(critic, made, is_input=False).mean()).backward()
        with torch.no_grad():
            _call(critic, maker[0].weight.detach(), is_input=False)
            _call(critic, made.detach(), is_input=False)
        look(both, [optimizer])
        optimizer.step()
        optimizer.zero_grad()
        look(both, [optimizer])


class _Adapted(nn.Module):
    """A frozen linear layer with two small trained matrices next to it."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, 4, bias=False)
        self.up = nn.Linear(4, frozen.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.frozen(x) + self.up(self.down(x)) * 0.5
        return y


def _llama(device: str) -> nn.Sequential:
    return nn.Sequential(LlamaLayer(), _Looking(), LlamaLayer()).to(device)


def llama_lora(device: str, look: Look) -> None:
    """Train adapters with a scaled loss in autocast, and with a fused optimizer."""
    model = _llama(device).requires_grad_(False)
    for layer in (model[0], model[2]):
        layer.projections = nn.ModuleList(map(_Adapted, layer.projections))
    model = model.to(device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=device in ("cpu", "cuda"))
    scaler = torch.amp.GradScaler(device, init_scale=128.0)
    _train(model, _batch(device), look, accumulate=2, optimizer=optimizer, scaler=scaler)


def resnet(device: str, look: Look) -> None:
    """Train with batches of a DataLoader, which are on the CPU, and with momentum."""
    stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    model = nn.Sequential(stem, Residual(8), _Looking(), Residual(8), head).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    loader = iter(torch.utils.data.DataLoader(torch.ones(32, 3, 16, 16), batch_size=4))
    _train(model, lambda: next(loader).to(device), look, optimizer=optimizer, set_to_none=False)


def ddp(device: str, look: Look) -> None:
    """Train under DistributedDataParallel; the caller has made the process group."""
    model = _llama(device)
    wrapped = nn.parallel.DistributedDataParallel(model)
    _train(model, _batch(device), look, wrapped=wrapped, accumulate=2)


def fsdp2(device: str, look: Look) -> None:
    """Train shards of FSDP2; the caller has made the process group."""
    model = _llama(device)
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    _train(model, _batch(device), look)


PROGRAMS = [
    gpt,
    gpt_autocast,
    convolutions,
    accumulation,
    retained_graph,
    checkpointing,
    reentrant_checkpointing,
    custom_function,
    gradient_penalty,
    adversarial,
    llama_lora,
    resnet,
]
DISTRIBUTED = [ddp, fsdp2]

AUTOCAST = [("temporary", "autocast_cache"), ("temporary", "call_site")]
Events = list[dict[str, Any]]
Facts = list[set[str]]
"""For each allocation in the order of the trace, what its block was."""


class Truth:
    """What the storages of a program are, by their address before the next marker."""

    def __init__(self, device: str) -> None:
        self._device, self._markers = device, 0
        self._seen: list[tuple[int, int, str]] = []  # markers so far, address, what

    def note(self, tensor: Any, what: str) -> None:
        if isinstance(tensor, DTensor):
            tensor = tensor._local_tensor
        if isinstance(tensor, Tensor) and tensor.device.type == self._device:
            storage = tensor.untyped_storage().data_ptr()
            self._seen.append((self._markers, storage, what))
            torch.empty(MARKER + self._markers, dtype=torch.uint8, device=self._device)
            self._markers += 1

    def look(self, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        for parameter in model.parameters():
            self.note(parameter, "parameter")
            self.note(parameter.grad, "gradient")
        for buffer in model.buffers():
            self.note(buffer, "buffer")
        for optimizer in optimizers:
            for state in optimizer.state.values():
                for value in state.values():
                    self.note(value, "optimizer_state")

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Note what autograd saves; in a checkpoint, only what its recomputation saves."""

        def pack(tensor: Tensor) -> Tensor:
            self.note(tensor, "activation")
            return tensor.detach()

        hooks = checkpoints._recomputation_hook.__init__

        def noting(this: Any, *args: Any) -> None:
            hooks(this, *args)
            own = this.pack_hook

            def noting_pack(tensor: Tensor) -> Any:
                self.note(tensor, "activation")
                return own(tensor)

            this.pack_hook = noting_pack

        rng_state = torch.get_rng_state

        def noting_rng_state() -> Tensor:
            state = rng_state()
            if sys._getframe(1).f_code.co_filename == checkpoints.__file__:
                self.note(state, "kept")  # until the recomputation, or dropped with the graph
            return state

        fetch = _MapDatasetFetcher.fetch

        def noting_fetch(this: Any, indices: Any) -> Any:
            batch = fetch(this, indices)
            self.note(batch, "input")
            return batch

        call, grad = _call, torch.autograd.grad

        def noting_call(model: nn.Module, x: Tensor, is_input: bool = True) -> Tensor:
            if is_input:
                self.note(x, "input")
            y = call(model, x)
            self.note(y, "output")
            return y

        def noting_grad(*args: Any, **given: Any) -> Any:
            gradients = grad(*args, **given)
            for gradient in gradients:
                self.note(gradient, "gradient")
            return gradients

        def noting_kept(x: Tensor, is_for_backward: bool) -> Tensor:
            if is_for_backward:
                self.note(x, "activation")
            return x

        reduce = _fsdp_param_group.foreach_reduce

        def noting_reduce(
            parameters: Any, gradients: list[Tensor], *args: Any, **given: Any
        ) -> Any:
            for gradient in gradients:
                self.note(gradient, "gradient")
            return reduce(parameters, gradients, *args, **given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys.modules[__name__], "_call", noting_call)
            patch.setattr(sys.modules[__name__], "_kept", noting_kept)
            patch.setattr(torch.autograd, "grad", noting_grad)
            patch.setattr(_fsdp_param_group, "foreach_reduce", noting_reduce)
            patch.setattr(_MapDatasetFetcher, "fetch", noting_fetch)
            patch.setattr(torch, "get_rng_state", noting_rng_state)
            patch.setattr(checkpoints._recomputation_hook, "__init__", noting)
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                yield

    def facts(self, events: Events) -> tuple[list[int], Facts]:
        """Return the sizes of the allocations without markers, and what their blocks were."""
        by_marker: dict[int, list[tuple[int, str]]] = {}
        for marker, address, what in self._seen:
            by_marker.setdefault(marker, []).append((address, what))
        sizes: list[int] = []
        facts: Facts = []
        last: dict[int, set[str]] = {}
        for event in events:
            if event["action"] != "alloc":
                continue
            if event["size"] >= MARKER:
                for address, what in by_marker.get(event["size"] - MARKER, ()):
                    if address in last:  # else the block is older than the recording
                        last[address].add(what)
                continue
            last[event["addr"]] = set()
            if event["size"] >= SMALLEST:
                sizes.append(event["size"])
                facts.append(last[event["addr"]])
        return sizes, facts


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage before, and none inside: two runs shall free at the same moments."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _known_facts(program: Callable[[str, Look], None], device: str, index: int) -> Any:
    """Run a program, and return the sizes of its allocations and what their blocks were."""
    truth = Truth(device)
    with (
        no_collection(),
        pytracer.Tracer(device=device, trace_alloc_max_entries=2_000_000) as tracer,
        truth.saving(),
    ):
        program(device, truth.look)
        events = tracer.snapshot()["device_traces"][index]
    return truth.facts(events)


def check(program: Callable[[str, Look], None], device: str) -> dict[str, Counter[Any]]:
    """Compare the categories of all blocks at each look with the truth.

    Returns:
        "rules": how many blocks each category and rule decided, over all looks; "peak": the bytes
        of each category at the peak, while the model still exists.
    """
    index = 0
    looks: list[object] = []
    program(device, lambda *_: looks.append(None))  # with what is allocated once, as workspaces
    last = len(looks)  # the look after the program
    compared = {*range(0, last, last // amount(7, 20) + 1), last - 1, last}
    sizes, facts = _known_facts(program, device, index)
    parameters = {size for size, known in zip(sizes, facts, strict=True) if "parameter" in known}
    snapshots: list[bytes] = []
    places = itertools.count()
    with (
        no_collection(),
        pytracer.Tracer(
            device=device,
            forward_stacks=True,
            phases="auto",
            stack_depth=500,  # a stack that is cut off decides nothing about inputs
            trace_alloc_max_entries=200_000,
        ) as tracer,
    ):

        def look(*_: object) -> None:
            if next(places) in compared:
                snapshots.append(pickle.dumps(tracer.snapshot(), protocol=4))

        program(device, look)
        look()  # the model is gone
    rules: Counter[Any] = Counter()
    assert len(snapshots) == len(compared)
    for content in [snapshots[-1], *snapshots[:-1]]:
        snapshot = load(content)
        data = device_data(snapshot, index)
        found, history = data.block_categories, data.history
        assert found is not None
        assert history.is_replayed
        lives = history.blocks
        recorded = (lives.alloc_event >= 0) & (lives.requested_bytes >= SMALLEST)
        requested = lives.requested_bytes[recorded].tolist()
        # The program did the same when the truth was collected.
        assert requested == sizes[: len(requested)]
        for place, kind in enumerate(found.kind[recorded].tolist()):
            category, rule = found.kinds[kind]
            rules[category, rule] += 1
            about = (category, rule, facts[place], requested[place], place)
            if (category, rule) in AUTOCAST:  # a copy of half the size, which may be saved too
                assert facts[place] <= {"activation"}, about
                assert 2 * requested[place] in parameters, about
            elif category == "temporary":
                assert facts[place] <= {"kept"}, about
            elif category == "communication":  # gathered parameters may be saved for backward
                assert not facts[place] & {"optimizer_state", "buffer", "input"}, about
            elif category != "unknown":
                own = facts[place] | ({"activation"} if facts[place] == {"kept"} else set())
                assert category in own, about
                others = {"parameter", "buffer", "optimizer_state", "gradient"} - {category}
                assert category == "mixed" or not facts[place] & others, about
    peak = int(history.usage.allocated_bytes.argmax())
    held = held_memory(data, peak).group("category")
    return {"rules": rules, "peak": Counter({each.key[0]: each.size_bytes for each in held})}
