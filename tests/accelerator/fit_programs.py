"""Programs of several sizes, whose peaks `pytracer fit` predicts; test_fit.py runs them.

python fit_programs.py DEVICE PROGRAM batch=2,length=64 [SNAPSHOT]

"length=64/128/96/160" are the lengths of four steps, which only language models can have.

Without SNAPSHOT, nothing is recorded. The program prints torch's peaks as JSON: allocated and
reserved bytes of the first step and of the last, and the error if memory ran out.
"""

import contextlib
import json
import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.distributed import fake_pg
from torch.utils.checkpoint import checkpoint

import pytracer

VOCABULARY, WIDTH, HEADS, LAYERS, STEPS = 8192, 256, 4, 2, 4

Step = Callable[[int], None]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return x * scale.to(x.dtype) * self.weight


class Adapted(nn.Module):
    """A frozen linear layer with a trained addition of low rank, as of LoRA."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 8, bias=False)
        self.up = nn.Linear(8, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base(x) + self.up(self.down(x))
        return found


class Layer(nn.Module):
    def __init__(self, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList([Norm(), Norm()])
        self.query_key_value, self.output = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)
        self.gate, self.widen = linear(WIDTH, 4 * WIDTH), linear(WIDTH, 4 * WIDTH)
        self.narrow = linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        heads = self.query_key_value(self.norms[0](x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache:
                key, value = (torch.cat(pair, 2) for pair in zip(cache, (key, value), strict=True))
            cache[:] = [key, value]
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=cache is None)
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        y = self.norms[1](x)
        found: Tensor = x + self.narrow(functional.silu(self.gate(y)) * self.widen(y))
        return found


class Gpt(nn.Module):
    def __init__(self, linear: Callable[[int, int], nn.Module], recompute: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(linear) for _ in range(LAYERS))
        self.norm, self.scores = Norm(), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.recompute = recompute

    def forward(self, tokens: Tensor, caches: list[list[Tensor]] | None = None) -> Tensor:
        x = self.tokens(tokens)
        for i, layer in enumerate(self.layers):
            if self.recompute:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x, None if caches is None else caches[i])
        found: Tensor = self.scores(self.norm(x))
        return found


def plain_linear(inner: int, outer: int) -> nn.Module:
    return nn.Linear(inner, outer, bias=False)


def shard(model: Gpt, device: str, ranks: int) -> None:
    """Divide a model by FSDP2 among ranks, of which only this one exists."""
    if device not in dist.Backend.backend_capability["fake"]:
        dist.Backend.register_backend(
            "fake", fake_pg._create_fake_pg, extended_api=True, devices=[device]
        )
    dist.init_process_group("fake", rank=0, world_size=ranks, store=fake_pg.FakeStore())
    for part in (*model.layers, model):
        fully_shard(part)


def language_model(
    device: str,
    batch: int,
    length: int | list[int],
    *,
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW,
    adapted: bool = False,
    recompute: bool = False,
    ranks: int = 1,
    backend: SDPBackend = SDPBackend.MATH,
    dtype: torch.dtype | None = None,
    scaled: bool = False,
    parts: int = 1,
    **options: Any,
) -> Step:
    """Return the step of a training."""

    def linear(inner: int, outer: int) -> nn.Module:
        base = nn.Linear(inner, outer, bias=False)
        return Adapted(base) if adapted else base

    model = Gpt(linear, recompute).to(device)
    if adapted:
        for part in (model.tokens, model.scores):
            part.requires_grad_(False)
    if ranks > 1:
        shard(model, device, ranks)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = kind(trained, **options)
    scaler = torch.amp.GradScaler(device, enabled=scaled)

    def step(number: int) -> None:
        columns = length[number] if isinstance(length, list) else length
        for _ in range(parts):
            tokens = torch.zeros(batch, columns, dtype=torch.long).to(device)
            casts = torch.autocast(device, dtype=dtype) if dtype else contextlib.nullcontext()
            with sdpa_kernel(backend):
                with casts:
                    scores = model(tokens)[:, :-1].float()
                    targets = tokens[:, 1:].flatten()
                    loss = functional.cross_entropy(scores.flatten(0, 1), targets)
                scaler.scale(loss / parts).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(x + self.norms[1](self.second(y)))


def convolutions(device: str, batch: int, length: int) -> Step:
    """Return the step of a training with images of `length` by `length` pixels."""
    torch.backends.cudnn.enabled = False
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), Residual(32), nn.MaxPool2d(2), Residual(32)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(_: int) -> None:
        images = torch.zeros(batch, 3, length, length, device=device)
        model(images).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@torch.no_grad()
def generated(model: Gpt, device: str, batch: int, length: int) -> Tensor:
    """Return 8 tokens that follow a prompt of `length` tokens, which are generated with caches."""
    caches: list[list[Tensor]] = [[] for _ in range(LAYERS)]
    found = [torch.zeros(batch, length, dtype=torch.long, device=device)]
    for _ in range(8):
        scores = model(found[-1], caches)[:, -1]
        found.append(scores.softmax(-1).argmax(-1, keepdim=True))
    return torch.cat(found[1:], 1)


def generation(device: str, batch: int, length: int) -> Step:
    """Return the step of an inference."""
    model = Gpt(plain_linear).to(device).eval()

    def step(_: int) -> None:
        generated(model, device, batch, length)

    return step


def reinforcement(device: str, batch: int, length: int) -> Step:
    """Return the step of a training with what the model generates."""
    model = Gpt(plain_linear).to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(_: int) -> None:
        tokens = generated(model, device, batch, length).repeat(1, length // 8)
        with torch.no_grad():
            known = model(tokens).log_softmax(-1)
        scores = model(tokens).log_softmax(-1)
        (scores - known).exp().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Experts(nn.Module):
    """A layer whose experts get as many tokens as the values decide, here random numbers."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(experts)
        )

    def forward(self, x: Tensor, generator: random.Random) -> Tensor:
        tokens = x.flatten(0, 1)
        chosen = [generator.randrange(len(self.experts)) for _ in range(len(tokens))]
        found = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows = [i for i, expert_of in enumerate(chosen) if expert_of == number]
            index = torch.tensor(rows, dtype=torch.long).to(x.device)
            found = found.index_add(0, index, expert(tokens.index_select(0, index)))
        return x + found.view_as(x)


def experts(device: str, batch: int, length: int) -> Step:
    """Return the step of a training whose requests depend on values."""
    layers = nn.ModuleList(Experts() for _ in range(LAYERS)).to(device)
    optimizer = torch.optim.AdamW(layers.parameters())
    generator = random.Random(batch * length)

    def step(_: int) -> None:
        x = torch.zeros(batch, length, WIDTH, device=device)
        for layer in layers:
            x = layer(x, generator)
        x.mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


flash, half, brain = SDPBackend.FLASH_ATTENTION, torch.float16, torch.bfloat16
PROGRAMS: dict[str, Callable[[str, int, int], Step]] = {
    "gpt": language_model,
    "flash": partial(language_model, backend=flash, dtype=brain),
    "llama": partial(language_model, dtype=half, scaled=True),
    "lora": partial(language_model, adapted=True, dtype=brain),
    "checkpointing": partial(language_model, recompute=True),
    "accumulation": partial(language_model, parts=3),
    "sharded": partial(language_model, ranks=4, dtype=brain),
    "foreach": partial(language_model, foreach=True, dtype=brain),
    "fused": partial(language_model, fused=True, dtype=brain),
    "convolutions": convolutions,
    "generation": generation,
    "reinforcement": reinforcement,
    "experts": experts,
}


def peaks(device: Any) -> list[int]:
    return [device.max_memory_allocated(), device.max_memory_reserved()]


def run(
    name: str, program: str, sizes: dict[str, Any], tracer: pytracer.Tracer | None
) -> dict[str, Any]:
    """Run a program, and return its peaks in the first step and in the last."""
    device = getattr(torch, name)
    found: dict[str, Any] = {}
    try:
        step = PROGRAMS[program](name, **sizes)
        for number in range(STEPS):
            device.reset_peak_memory_stats()
            step(number)
            if number in (0, STEPS - 1):
                found["first" if number == 0 else "steady"] = peaks(device)
            if program == "generation" and tracer is not None:
                tracer.step()  # there is no optimizer that shows the steps
    except torch.OutOfMemoryError as error:
        found["failed"] = str(error).partition("\n")[0]
    return found


def main() -> None:
    name, program, text, *path = sys.argv[1:]
    pairs = [part.split("=") for part in text.split(",")]
    lists = {key: [int(value) for value in values.split("/")] for key, values in pairs}
    sizes = {key: values if len(values) > 1 else values[0] for key, values in lists.items()}
    if name == "npu":
        import torch_npu  # noqa: F401
    if path:
        with pytracer.Tracer(path[0], device=name, metadata=sizes) as tracer:
            found = run(name, program, sizes, tracer)
    else:
        found = run(name, program, sizes, None)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
