"""Small programs with a forward and a backward pass, for tests of forward stacks."""

import threading
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, TIME, BATCH = 32, 16, 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norms[0](x)
        query, key, value = self.query_key_value(normed).chunk(3, -1)
        scores = query @ key.transpose(-1, -2) / WIDTH**0.5
        mixed = scores.softmax(-1) @ value
        x = x + self.output(mixed)
        hidden = functional.gelu(self.widen(self.norms[1](x)))
        return x + functional.dropout(self.narrow(hidden), 0.1)


def _loss(layers: Callable[[Tensor], Tensor], device: str) -> Tensor:
    tokens = torch.zeros(BATCH, TIME, dtype=torch.int64, device=device)
    embedding = nn.Embedding(100, WIDTH).to(device)
    scores = layers(embedding(tokens)).flatten(0, 1)
    return functional.cross_entropy(scores, torch.zeros_like(tokens).flatten())


def gpt(device: str) -> None:
    layers = nn.Sequential(Layer(), Layer()).to(device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        loss = _loss(layers, device)
    loss.backward()


def _checkpointed(device: str, use_reentrant: bool) -> None:
    first, second = Layer().to(device), Layer().to(device)

    def layers(x: Tensor) -> Tensor:
        hidden: Tensor = checkpoint(first, x, use_reentrant=use_reentrant)
        return second(hidden)

    _loss(layers, device).backward()


def checkpointed(device: str) -> None:
    _checkpointed(device, False)


def reentrantly_checkpointed(device: str) -> None:
    _checkpointed(device, True)


def in_place(device: str) -> None:
    """Make many nodes whose calls allocate nothing, and calls between them that make no node."""
    weight = torch.ones(64, 64, device=device, requires_grad=True)
    data = torch.ones(64, 1, device=device)
    x = weight * 2
    x.add_(1)
    mask = data > 0
    x.mul_(mask)
    as_large = torch.cat([data] * 64, 1) * 2
    x = x * as_large
    noise = torch.zeros_like(data)
    row = x[3]
    other = torch.ones(64, device=device)
    y = row.exp() + noise[0] + other
    y.sigmoid_()
    z = x.relu_().sum(0)
    column = x[:, 1]
    shape = torch.empty(64, 64, device=device)
    shape.copy_(data.expand(64, 64))
    ((y * z).sum() + column.expand(64, 64).exp().sum() + (x * shape).sum()).backward()


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        scaled = x * 2
        return scaled.exp()

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: torch.autograd.function.FunctionCtx, gradient: Tensor
    ) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        inner = (x * 2).exp()
        return gradient * 2 * inner


def custom_function(device: str) -> None:
    x = torch.ones(64, 64, device=device, requires_grad=True)
    y = x.sin()
    z = _Scaled.apply(y)
    other = torch.zeros(64, 64, device=device)
    (z.cos() + other).sum().backward()


def two_threads(device: str) -> None:
    """Run two forward passes on threads that end before the backward pass."""
    losses = []

    def forward(width: int) -> None:
        x = torch.ones(width, width, device=device, requires_grad=True)
        losses.append(x.exp().sin().sum() if width == 32 else x.cos().tanh().sum())

    threads = [threading.Thread(target=forward, args=(width,)) for width in (32, 48)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (losses[0] + losses[1]).backward()


def double_backward(device: str) -> None:
    x = torch.ones(64, 64, device=device, requires_grad=True)
    y = x.exp()
    z = (y * y.sin()).sum()
    (gradient,) = torch.autograd.grad(z, x, create_graph=True)
    penalty = gradient.pow(2).sum()
    penalty.backward()


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        return (x.float() * scale).to(x.dtype) * self.weight


class LlamaLayer(nn.Module):
    """Attention with rotary positions, and SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([RmsNorm(), RmsNorm()])
        self.projections = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        angles = torch.arange(TIME)[:, None] / 100 ** (torch.arange(WIDTH) / WIDTH)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def _rotated(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        rotated: Tensor = x * self.cos + torch.cat((-second, first), -1) * self.sin
        return rotated

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (linear(self.norms[0](x)) for linear in [*self.projections][:3])
        query, key = self._rotated(query), self._rotated(key)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projections[3](mixed)
        hidden = self.norms[1](x)
        down: Tensor = self.down(functional.silu(self.gate(hidden)) * self.up(hidden))
        return x + down


def llama(device: str) -> None:
    layers = nn.Sequential(LlamaLayer(), LlamaLayer()).to(device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        loss = _loss(layers, device)
    loss.backward()


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norms[0](self.convolutions[0](x)), inplace=True)
        y = self.norms[1](self.convolutions[1](y))
        y += x
        return functional.relu(y, inplace=True)


def resnet(device: str) -> None:
    stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    model = nn.Sequential(stem, nn.MaxPool2d(2), Residual(8), Residual(8), head).to(device)
    images = torch.ones(4, 3, 16, 16, device=device)
    labels = torch.zeros(4, dtype=torch.int64, device=device)
    functional.cross_entropy(model(images), labels).backward()


def lora(device: str) -> None:
    """Train two small matrices next to a frozen one; the gradient is scaled and accumulated."""
    frozen = nn.Linear(WIDTH, WIDTH, device=device).requires_grad_(False)
    down, up = (nn.Linear(WIDTH, WIDTH, bias=False, device=device) for _ in range(2))
    optimizer = torch.optim.AdamW([*down.parameters(), *up.parameters()], foreach=True)
    scaler = torch.amp.GradScaler(torch.device(device).type, init_scale=128.0)
    x = torch.ones(BATCH, WIDTH, device=device)
    for _ in range(2):
        for _ in range(2):
            with torch.autocast(torch.device(device).type, torch.bfloat16):
                y = frozen(x) + up(functional.dropout(down(x), 0.1)) * 0.5
                loss = y.float().square().mean()
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)


def ddp(device: str) -> None:
    """Train under DistributedDataParallel; the caller has made the process group."""
    layers = nn.parallel.DistributedDataParallel(nn.Sequential(LlamaLayer(), Layer()).to(device))
    for _ in range(2):
        _loss(layers, device).backward()


def fsdp2(device: str) -> None:
    """Train shards of FSDP2; the caller has made the process group."""
    layers = nn.Sequential(LlamaLayer(), Layer()).to(device)
    for layer in layers:
        fully_shard(layer)
    fully_shard(layers)
    for _ in range(2):
        _loss(layers, device).backward()


MODELS = {
    model.__name__: model
    for model in (
        gpt,
        checkpointed,
        reentrantly_checkpointed,
        in_place,
        custom_function,
        two_threads,
        double_backward,
        llama,
        resnet,
        lora,
    )
}
