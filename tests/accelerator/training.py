"""Train a small GPT under the tracer; test_training.py runs this program.

    python training.py DEVICE[,DEVICE] SNAPSHOT [--workers N]

On several devices, each has a thread and a model. The program prints torch's memory statistics at
the end of the recording as JSON. On simulated devices kernels do nothing, and losses are arbitrary.
"""

import argparse
import json
import sys
import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import pytracer

VOCABULARY, TIME, WIDTH, HEADS, LAYERS, BATCH, STEPS = 256, 64, 128, 4, 3, 8, 3


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, x: Tensor) -> Tensor:
        heads = self.query_key_value(x).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(-2))

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.narrow(functional.gelu(self.widen(x)))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norms[0](x))
        return x + self.feed_forward(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(TIME, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.scores = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions
        for number, layer in enumerate(self.layers):
            # The backward recomputes one layer's activations, on autograd's thread.
            x = checkpoint(layer, x, use_reentrant=False) if number == 1 else layer(x)
        return self.scores(x)


class Texts(Dataset[Tensor]):
    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, index: int) -> Tensor:
        return (torch.arange(TIME + 1) + index) % VOCABULARY


def make_model(device: str) -> nn.Module:
    return Gpt().to(device)


def forward_step(model: nn.Module, batch: Tensor) -> Tensor:
    with torch.autocast(batch.device.type, torch.bfloat16):
        scores = model(batch[:, :-1])
        return functional.cross_entropy(scores.flatten(0, 1).float(), batch[:, 1:].flatten())


def backward_step(loss: Tensor) -> None:
    loss.backward()


def optimizer_step(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


def train(device: str, workers: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the objects that must be live at the end."""
    model = make_model(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    context = "fork" if workers else None
    for batch in DataLoader(Texts(), BATCH, num_workers=workers, multiprocessing_context=context):
        loss = forward_step(model, batch.to(device))
        backward_step(loss)
        optimizer_step(optimizer)
    return model, optimizer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("devices", type=lambda text: text.split(","))
    parser.add_argument("snapshot")
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    backend = options.devices[0].partition(":")[0]
    if backend == "npu":
        import torch_npu  # noqa: F401
    device_module = getattr(torch, backend)
    held = []
    with pytracer.Tracer(
        options.snapshot, device=backend, trace_alloc_max_entries=500_000
    ) as tracer:
        if len(options.devices) == 1:
            held.append(train(options.devices[0], options.workers))
        else:
            threads = [
                threading.Thread(target=lambda name=name: held.append(train(name, options.workers)))
                for name in options.devices
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(held) == len(options.devices), "a thread failed"
        result: dict[str, Any] = {"stats": tracer.stats(), "devices": []}
        for index in range(device_module.device_count()):
            result["devices"].append(
                {
                    "allocated": device_module.memory_allocated(index),
                    "reserved": device_module.memory_reserved(index),
                    "most_allocated": device_module.max_memory_allocated(index),
                    "stats": dict(device_module.memory_stats(index)),
                }
            )
    print(json.dumps(result))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
