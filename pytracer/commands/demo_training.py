"""A small transformer that is trained under the tracer, for `pytracer demo`.

The task is to predict the next token of a sequence that counts up by a constant stride, modulo the
vocabulary. The last token leaves a few candidates; attention to the token before it decides.
"""

from pathlib import Path

import click
import torch
from torch import Tensor, nn
from torch.nn import functional

from pytracer.backends.devices import present_accelerator
from pytracer.backends.running_torch import torch_module
from pytracer.commands.show_answer import echo_answer, show
from pytracer.errors import ConfigError, HookError
from pytracer.text import size
from pytracer.tracing.tracer import Tracer

VOCABULARY, CONTEXT, BATCH = 64, 64, 16
WIDTH, HEADS, LAYERS = 128, 4, 2


class Attention(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Causal multi-head self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        heads = self.query_key_value(x).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # each (batch, head, time, width of head)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):  # type: ignore[misc]  # torch is not followed
    """One layer: attention and an MLP, each with normalised input and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(WIDTH), Attention())
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        x = x + self.attention(x)
        return x + self.mlp(x)


class Transformer(nn.Module):  # type: ignore[misc]  # torch is not followed
    """A decoder: token and position embeddings, layers, and a score for every next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.scores = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, time) to scores (batch, time, vocabulary)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.scores(self.layers(self.tokens(tokens) + self.positions(positions)))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> float:
    """Train on sequences (batch, time) and the token that follows each; return the loss."""
    start = torch.randint(VOCABULARY, (BATCH, 1), device=device)
    stride = torch.randint(1, 5, (BATCH, 1), device=device)
    counted = (start + stride * torch.arange(CONTEXT + 1, device=device)) % VOCABULARY
    scores = model(counted[:, :-1])
    loss = functional.cross_entropy(scores.flatten(0, 1), counted[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.item())


def run(output: Path, steps: int, device: str) -> None:
    """Train under a tracer, write a snapshot, and print what `pytracer show` says of it.

    Raises:
        ConfigError: `output` has another suffix, or cannot be written.
        HookError: This machine has no such device, or its allocator cannot be recorded.
    """
    if output.suffix != ".pickle":
        raise ConfigError(f"output={str(output)!r}: the demo writes one file, named *.pickle")
    device = _found(device)
    losses: list[float] = []
    # The model and the optimizer outlive the `with`, so the snapshot at its end has their memory.
    with Tracer(str(output), device=device, forward_stacks=True) as tracer:
        torch.manual_seed(0)
        model = Transformer().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(steps):
            losses.append(train_step(model, optimizer, device))
            tracer.step()
    untraced = tracer.stats()["untraced"]
    if untraced is not None:
        raise HookError(f"nothing was recorded: {untraced}")
    _report(output, losses)


def _found(device: str) -> str:
    """Return the backend to train on; a missing device is an error of one line, not torch's."""
    if device == "auto":
        return present_accelerator() or "cpu"
    if device != "cpu" and not torch_module(device).is_available():
        raise HookError(f"torch finds no {device.upper()} device: give --device cpu, or auto")
    return device


def _report(path: Path, losses: list[float]) -> None:
    click.echo(f"loss {losses[0]:.3f} → {losses[-1]:.3f} in {len(losses)} steps\n")
    echo_answer(show(path))
    click.echo(
        f"\n{path} ({size(path.stat().st_size)})\n"
        "To view it, open the file at https://pytorch.org/memory_viz, or run:\n"
        f"  pytracer view {path} --open"
    )
