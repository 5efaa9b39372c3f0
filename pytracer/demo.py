"""A small transformer, trained under the tracer, and what its memory snapshot tells.

The task: every sequence counts up by a stride of its own, modulo the vocabulary; predict what comes
next. Knowing the last token narrows it down to a few candidates, attending to the one before it
settles the matter.
"""

from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn
from torch.nn import functional

from pytracer.cli_stats import sites_table
from pytracer.errors import ConfigError, HookError
from pytracer.reading import load
from pytracer.reading.about import about_device
from pytracer.reading.stats import stats
from pytracer.reading.text import size
from pytracer.tracer import Tracer

VOCABULARY, CONTEXT, BATCH = 64, 64, 16
WIDTH, HEADS, LAYERS = 128, 4, 2


class Attention(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Causal multi-head self-attention."""

    def __init__(self) -> None:
        """Makes one projection into queries, keys and values, and one out of the heads."""
        super().__init__()
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, time, width) to the same shape."""
        heads = self.query_key_value(x).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # each (batch, head, time, width of head)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):  # type: ignore[misc]  # torch is not followed
    """One layer: attention and an MLP, each on its normalised input and added to it."""

    def __init__(self) -> None:
        """Makes the two branches."""
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(WIDTH), Attention())
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, time, width) to the same shape."""
        x = x + self.attention(x)
        return x + self.mlp(x)


class Transformer(nn.Module):  # type: ignore[misc]  # torch is not followed
    """A decoder: token and position embeddings, layers, a score for every next token."""

    def __init__(self) -> None:
        """Makes the model; its parameters are random."""
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.scores = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps tokens (batch, time) to scores (batch, time, vocabulary)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.scores(self.layers(self.tokens(tokens) + self.positions(positions)))


def make_batch(device: torch.device) -> tuple[Tensor, Tensor]:
    """Sequences (batch, time) and, for each token, the one that follows it."""
    start = torch.randint(VOCABULARY, (BATCH, 1), device=device)
    stride = torch.randint(1, 5, (BATCH, 1), device=device)
    counted = (start + stride * torch.arange(CONTEXT + 1, device=device)) % VOCABULARY
    return counted[:, :-1], counted[:, 1:]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Trains the model where it is and returns the loss of each step."""
    device = next(model.parameters()).device
    losses = []
    for _ in range(steps):
        tokens, following = make_batch(device)
        scores = model(tokens)
        loss = functional.cross_entropy(scores.flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run(output: Path, steps: int = 30, device: str = "cpu") -> Path:
    """Trains under a tracer, leaves the snapshot in a file and prints what is in it.

    Args:
        output: The snapshot's file, named `*.pickle`.
        steps: Training steps, 1 or more.
        device: What to train on and record.

    Returns:
        `output`.

    Raises:
        ConfigError: `output` is not so named, or cannot be written.
        HookError: The device's allocator cannot be recorded here.
    """
    if output.suffix != ".pickle":
        raise ConfigError(f"output={str(output)!r}: the demo writes one file, named *.pickle")
    # Model and optimizer live beyond the `with`: the snapshot at its end shows their memory.
    with Tracer(str(output), device=device) as tracer:
        torch.manual_seed(0)
        model = Transformer().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = train(model, optimizer, steps)
    untraced = tracer.stats()["untraced"]
    if untraced is not None:
        raise HookError(f"nothing was recorded: {untraced}")
    report(output, losses)
    return output


def report(path: Path, losses: list[float]) -> None:
    """Prints how the training went and where its memory was."""
    snapshot = load(path)
    (device,) = stats(snapshot, device=0).devices
    peak = device.peak_allocated
    assert peak is not None  # the trace is whole

    console = Console()
    console.print(f"loss {losses[0]:.3f} → {losses[-1]:.3f} in {len(losses)} steps")
    console.print(
        f"peak {size(peak.allocated_bytes)}, after event {peak.event}; "
        f"at the end {size(device.end.allocated_bytes)}"
    )
    console.print(sites_table(device.sites, "Who held it at the peak", top=10))
    recorded = about_device(snapshot, 0)
    console.print(f"{recorded['recorded']} events recorded, {recorded['overwritten']} overwritten")

    console.print(Text(f"\n{path} ({size(path.stat().st_size)})"), soft_wrap=True)
    console.print(
        Text(
            "Look at it: drag the file onto https://pytorch.org/memory_viz, or without a network\n"
            f"  pytracer stats {path}\n"
            f"  python -m torch.cuda._memory_viz stats {path}"
        ),
        soft_wrap=True,
    )
