"""Small trainings, and which of their tensors are what, collected without pytracer.

A program yields at many moments. It gives `Program` its modules and optimizers as it makes them.
"""

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from amount import amount
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import pytracer

Moments = Iterator[None]
Blocks = list[dict[str, Any]]


class Program:
    """What a training has made so far.

    Attributes:
        device: The device of the training.
        modules: Modules by the beginning of their tensors' names.
        optimizers: The optimizers.
        unrecorded: The beginnings of the names of tensors that no recorder sees on the CPU: deep
            copies of tensors that are no parameters come from torch's default allocator.
        look: Called inside of backward and of optimizers.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self.unrecorded = ("none",)
        self.look: Callable[[], None] = lambda: None

    def end(self) -> None:
        """Drop everything: torch's hooks refer to this object, in cycles that are not collected."""
        self.modules.clear()
        self.optimizers.clear()

    def watch_backward(self, module: nn.Module) -> None:
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda _: self.look())


class Mlp(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


class Gpt(nn.Module):
    """A transformer whose embedding and output share their weight."""

    def __init__(self, width: int = 32, words: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.scores = nn.Linear(width, words, bias=False)
        self.scores.weight = self.tokens.weight
        self.register_buffer("scale", torch.ones(16))

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.scores(self.layers(self.tokens(tokens))) * self.scale[0]
        return y


class Lora(nn.Module):
    """A frozen layer, and two small trained ones."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down = nn.Linear(width, 4, bias=False)
        self.up = nn.Linear(4, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.up(self.down(x))
        return y


def _train(
    program: Program,
    model: nn.Module,
    data: Callable[[], Tensor],
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    accumulate: int = 1,
    set_to_none: bool = True,
    autocast: bool = False,
) -> Moments:
    program.modules[""] = model
    program.watch_backward(model)
    yield
    optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])
    program.optimizers.append(optimizer)
    yield
    for _ in range(3):
        for _ in range(accumulate):
            with torch.autocast(program.device, torch.bfloat16, enabled=autocast):
                loss = model(data()).float().square().mean()
            yield
            loss.backward()
            yield
            del loss
        optimizer.step()
        yield
        optimizer.zero_grad(set_to_none=set_to_none)
        yield


def _of(program: Program, width: int) -> Callable[[], Tensor]:
    return lambda: torch.ones(6, width, device=program.device)


def mlp_adamw_foreach(program: Program) -> Moments:
    model = Mlp().to(program.device)
    yield from _train(
        program, model, _of(program, 24), lambda ps: torch.optim.AdamW(ps, foreach=True)
    )


def mlp_adamw_fused(program: Program) -> Moments:
    model = Mlp().to(program.device)
    yield from _train(
        program, model, _of(program, 24), lambda ps: torch.optim.AdamW(ps, fused=True)
    )


def mlp_sgd_accumulation(program: Program) -> Moments:
    model = Mlp().to(program.device)
    yield from _train(
        program,
        model,
        _of(program, 24),
        lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
        accumulate=3,
        set_to_none=False,
    )


def gpt_tied_autocast(program: Program) -> Moments:
    model = Gpt().to(program.device)
    yield from _train(
        program,
        model,
        lambda: torch.arange(12, device=program.device).view(2, 6),
        lambda ps: torch.optim.AdamW(ps, lr=1e-3, amsgrad=True),
        autocast=True,
    )


def lora(program: Program) -> Moments:
    with torch.device(program.device):
        model = Lora()
    yield from _train(program, model, _of(program, 32), torch.optim.Adam)


def lbfgs(program: Program) -> Moments:
    model = nn.Linear(24, 24).to(program.device)
    program.modules[""] = model
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=2)
    program.optimizers.append(optimizer)
    x = torch.ones(6, 24, device=program.device)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        program.look()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        yield


def ema_copy(program: Program) -> Moments:
    """A copy that is a submodule of a module, and a mere copy, which torch does not report."""
    model = Mlp().to(program.device)
    average = torch.optim.swa_utils.AveragedModel(model)
    copied = copy.deepcopy(model)
    program.unrecorded = ("AveragedModel.module.layers.1.", "Mlp#2.layers.1.")
    for moment in _train(program, model, _of(program, 24), torch.optim.AdamW):
        program.modules = {"Mlp#1.": model, "AveragedModel.": average, "Mlp#2.": copied}
        average.update_parameters(model)
        yield moment


def dropped_model(program: Program) -> Moments:
    """A model that is made in a function, and is gone when the next one is made."""
    for width in (24, 24, 32):
        model = Mlp(width).to(program.device)
        yield from _train(program, model, _of(program, width), torch.optim.AdamW)
        program.modules.clear()
        program.optimizers.clear()
        del model
        yield


def sparse_gradients(program: Program) -> Moments:
    model = nn.Embedding(40, 16, sparse=True).to(program.device)
    yield from _train(
        program,
        model,
        lambda: torch.arange(8, device=program.device),
        lambda ps: torch.optim.SparseAdam(ps),
    )


def flat_buffers(program: Program) -> Moments:
    """All parameters are views of one tensor, all gradients of another."""
    model = nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 24)).to(program.device)
    count = sum(p.numel() for p in model.parameters())
    flat = torch.zeros(count, device=program.device)
    grads = torch.zeros(count, device=program.device)
    begin = 0
    for parameter in model.parameters():
        end = begin + parameter.numel()
        parameter.data = flat[begin:end].view_as(parameter)
        parameter.grad = grads[begin:end].view_as(parameter)
        begin = end
    yield from _train(program, model, _of(program, 24), torch.optim.AdamW, set_to_none=False)


def lazy_and_unusual(program: Program) -> Moments:
    """Parameters without a shape, on the device "meta", and of a subclass of Tensor."""

    class Named(Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            assert getattr(func, "__name__", "") not in ("data_ptr", "untyped_storage")
            return super().__torch_function__(func, types, args, kwargs or {})

    model = nn.Sequential(nn.LazyLinear(16), nn.Linear(16, 8))
    program.modules["Sequential."] = model.to(program.device)
    program.modules["Linear."] = nn.Linear(3, 3, device="meta")
    yield
    model(torch.ones(6, 24, device=program.device)).sum().backward()
    yield
    model.register_buffer("named", torch.ones(40, device=program.device).as_subclass(Named))
    yield
    with torch.device("meta"):  # a mode that intercepts functions of tensors
        yield


def fsdp2(program: Program) -> Moments:
    """Each layer's parameters are gathered while it is used; needs a process group."""
    model = nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 24)).to(program.device)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    yield from _train(program, model, _of(program, 24), torch.optim.AdamW)


PROGRAMS: list[Callable[[Program], Moments]] = [
    mlp_adamw_foreach,
    mlp_adamw_fused,
    mlp_sgd_accumulation,
    gpt_tied_autocast,
    lora,
    lbfgs,
    ema_copy,
    dropped_model,
    sparse_gradients,
    flat_buffers,
    lazy_and_unusual,
]


def checked(make: Callable[[Program], Moments], device: str) -> list[dict[str, int]]:
    """Check a program at its moments, in the short form at the first four and each third one.

    Returns:
        The bytes by category at each, as `check` returns them.
    """
    program, moments = Program(device), itertools.count()
    seen: list[dict[str, int]] = []
    with pytracer.Tracer(device=device) as tracer:

        def look() -> None:
            moment = next(moments)
            if moment < 4 or moment % amount(3, 1) == 0:
                seen.append(check(tracer.snapshot(), program))

        program.look = look
        for _ in make(program):
            look()
    program.end()
    return seen


def blocks_in(snapshot: dict[str, Any]) -> Blocks:
    return [block for segment in snapshot["segments"] for block in segment["blocks"]]


def block_of(tensor: Tensor, blocks: Blocks) -> dict[str, Any]:
    """Return the block of a tensor."""
    address = tensor.untyped_storage().data_ptr()
    (found,) = (block for block in blocks if block["address"] == address)
    return found


class Truth(NamedTuple):
    """What a storage is: the categories and the names of the tensors in it."""

    categories: set[str]
    names: set[str]
    size_bytes: int


def truth(program: Program) -> dict[int, Truth]:
    """Return what each storage is, by its address."""
    found: dict[int, Truth] = {}

    def add(tensor: Any, category: str, name: str) -> None:
        with torch._C.DisableTorchFunction():
            if not isinstance(tensor, Tensor) or tensor.device.type != program.device:
                return
            if isinstance(tensor, DTensor):
                return add(tensor.to_local(), category, name)
            if tensor.is_sparse:
                add(tensor._indices(), category, name)
                return add(tensor._values(), category, name)
            if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
                return
            storage = tensor.untyped_storage()
            if storage.data_ptr():
                empty = Truth(set(), set(), storage.nbytes())
                known = found.setdefault(storage.data_ptr(), empty)
                known.categories.add(category)
                known.names.add(name)

    names: dict[nn.Parameter, str] = {}
    for prefix, module in program.modules.items():
        for name, parameter in module.named_parameters(remove_duplicate=False):
            names.setdefault(parameter, prefix + name)
            add(parameter, "parameter", prefix + name)
        for name, buffer in module.named_buffers(remove_duplicate=False):
            add(buffer, "buffer", prefix + name)
    for parameter, name in names.items():
        add(parameter.grad, "gradient", f"grad of {name}")
    for optimizer in program.optimizers:
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                for item in value if isinstance(value, list) else [value]:
                    add(item, "optimizer_state", f"{key} of {names.get(parameter)}")
    return found


def check(snapshot: dict[str, Any], program: Program) -> dict[str, int]:
    """Compare the blocks of a snapshot with the truth; return the bytes by category."""
    expected = truth(program)
    unnamed = [("unknown", "no_owner", None)]
    if program.device != "cpu":  # tests/accelerator/test_workspaces.py tests which blocks these are
        unnamed += [("workspace", "cublas", f"{name} workspace") for name in ("cuBLAS", "cuBLASLt")]
    index = torch.device(program.device).index or 0
    by_category: dict[str, int] = {}
    for segment in snapshot["segments"]:
        assert segment["device"] == index
        for block in segment["blocks"]:
            if block["state"] != "active_allocated":
                assert "category" not in block
                continue
            about = {key: value for key, value in block.items() if key != "frames"}
            category = block["category"]
            size_bytes = block["requested_size"]
            by_category[category] = by_category.get(category, 0) + size_bytes
            known = expected.pop(block["address"], None)
            if known is None:
                found = (category, block["category_rule"], block.get("owner"))
                # tests/analysis/test_block_categories.py tests which blocks autograd keeps.
                is_saved = found[:2] == ("activation", "saved_by_node")
                assert is_saved or found in unnamed, about
            else:
                assert {category} == known.categories, (about, known)
                assert block["owner"] in known.names, (about, known)
                assert size_bytes >= known.size_bytes
                assert block["owners"] >= len(known.names)
    # What is left was allocated before the recording, or elsewhere.
    by_category["missing"] = sum(
        known.size_bytes
        for known in expected.values()
        if not all(name.startswith(program.unrecorded) for name in known.names)
    )
    return by_category
