"""Small trainings of many kinds, whose blocks are of each category."""

from collections.abc import Callable
from typing import Any

import life_training
import torch
from autograd_models import Layer, LlamaLayer, Residual
from life_training import Look, Looking, train
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils import checkpoint as checkpoints


def _batch(device: str) -> Callable[[], Tensor]:
    return lambda: torch.ones(3, 16, 32, device=device)


def gpt(device: str, look: Look) -> None:
    model = nn.Sequential(Layer(), Looking(), Layer(), Layer()).to(device)
    train(model, _batch(device), look)


def gpt_autocast(device: str, look: Look) -> None:
    model = nn.Sequential(Layer(), Looking(), Layer()).to(device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        train(model, _batch(device), look, optimizer=optimizer)


def convolutions(device: str, look: Look) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        Looking(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 64, 10),
    ).to(device)
    train(model, lambda: torch.ones(2, 3, 16, 16, device=device), look)


def accumulation(device: str, look: Look) -> None:
    model = nn.Sequential(Layer(), Looking(), Layer()).to(device)
    train(model, _batch(device), look, accumulate=3, set_to_none=False)


def retained_graph(device: str, look: Look) -> None:
    model = nn.Sequential(Layer(), Looking(), Layer()).to(device)
    train(model, _batch(device), look, retain_graph=True)


class _Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.layer, self.use_reentrant = Layer(), use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoints.checkpoint(self.layer, x, use_reentrant=self.use_reentrant)
        return y


def _checkpointing(device: str, look: Look, use_reentrant: bool) -> None:
    layers = [_Checkpointed(use_reentrant) for _ in range(2)]
    model = nn.Sequential(nn.Linear(32, 32), layers[0], Looking(), layers[1]).to(device)
    train(model, _batch(device), look)


def checkpointing(device: str, look: Look) -> None:
    _checkpointing(device, look, False)


def reentrant_checkpointing(device: str, look: Look) -> None:
    _checkpointing(device, look, True)


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.kept = life_training.kept(x * 2, ctx.needs_input_grad[0])
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
    model = nn.Sequential(nn.Linear(32, 32), _Scaled(), Looking(), nn.Linear(32, 32)).to(device)
    train(model, _batch(device), look)


def gradient_penalty(device: str, look: Look) -> None:
    """The first backward pass has a graph of its own, which the second one uses."""
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        x = torch.ones(64, 32, device=device, requires_grad=True)
        (gradient,) = torch.autograd.grad(life_training.call(model, x).sum(), x, create_graph=True)
        look(model, [optimizer])
        functional.relu(gradient.square().sum()).backward()
        del gradient
        look(model, [optimizer])
        optimizer.step()
        optimizer.zero_grad()
        look(model, [optimizer])


def adversarial(device: str, look: Look) -> None:
    """Two models, whose arguments the other one makes too, and a detached parameter as argument."""
    maker = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), Looking(), nn.Linear(32, 32)).to(device)
    critic = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    both = nn.ModuleList([maker, critic])
    optimizer = torch.optim.AdamW(both.parameters(), foreach=True)
    for _ in range(4):
        noise, real = torch.ones(48, 32, device=device), torch.zeros(48, 32, device=device)
        with torch.no_grad():
            fake = life_training.call(maker, noise)
        mixed = real * 0.25 + fake * 0.75
        loss = (
            life_training.call(critic, fake, is_input=False).mean()
            - life_training.call(critic, real).mean()
        )
        (loss + life_training.call(critic, mixed).square().mean()).backward()
        look(both, [optimizer])
        optimizer.step()
        optimizer.zero_grad()
        made = life_training.call(maker, noise)
        (-life_training.call(critic, made, is_input=False).mean()).backward()
        with torch.no_grad():
            life_training.call(critic, maker[0].weight.detach(), is_input=False)
            life_training.call(critic, made.detach(), is_input=False)
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
    return nn.Sequential(LlamaLayer(), Looking(), LlamaLayer()).to(device)


def llama_lora(device: str, look: Look) -> None:
    """Train adapters with a scaled loss in autocast, and with a fused optimizer."""
    model = _llama(device).requires_grad_(False)
    for layer in (model[0], model[2]):
        layer.projections = nn.ModuleList(map(_Adapted, layer.projections))
    model = model.to(device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=device in ("cpu", "cuda"))
    scaler = torch.amp.GradScaler(device, init_scale=128.0)
    train(model, _batch(device), look, accumulate=2, optimizer=optimizer, scaler=scaler)


def resnet(device: str, look: Look) -> None:
    """Train with batches of a DataLoader, which are on the CPU, and with momentum."""
    stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    model = nn.Sequential(stem, Residual(8), Looking(), Residual(8), head).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    loader = iter(torch.utils.data.DataLoader(torch.ones(32, 3, 16, 16), batch_size=4))
    train(model, lambda: next(loader).to(device), look, optimizer=optimizer, set_to_none=False)


def ddp(device: str, look: Look) -> None:
    """Train under DistributedDataParallel; the caller has made the process group."""
    model = _llama(device)
    wrapped = nn.parallel.DistributedDataParallel(model)
    train(model, _batch(device), look, wrapped=wrapped, accumulate=2)


def fsdp2(device: str, look: Look) -> None:
    """Train shards of FSDP2; the caller has made the process group."""
    model = _llama(device)
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    train(model, _batch(device), look)


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
