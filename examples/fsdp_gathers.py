"""Train with FSDP2: one model runs out of memory by fragmentation, and one does not.

    python fsdp_gathers.py 3b
    python fsdp_gathers.py 8b
    PYTORCH_ALLOC_CONF=expandable_segments:True python fsdp_gathers.py 3b

Llama 3.2 3B and Llama 3.1 8B by their shapes, sharded by `fully_shard` over 8 ranks and trained in
bfloat16 with AdamW on packed sequences, as many tokens as fit. What this rank allocates on its
device is real. The other ranks are not: torch's fake process group takes their place, and its
collectives do nothing. So the model learns nothing, and nothing is downloaded.

On a larger device the program takes at most `--capacity` GiB, by default what a device of 40 GB
leaves to a program. On CUDA, 3b runs out of memory in its second step, and trains with expandable
segments; 8b trains either way. docs/explanation/fragmentation.md explains why. An NPU's kernels
take more memory: there, both models train with `--capacity 56`.
"""

import argparse
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.testing._internal.distributed import fake_pg

RANKS = 8
VOCABULARY = 128_256
LENGTHS = (0.67, 1.0, 0.73, 0.93, 0.7, 1.0)  # of each step's sequence, relative to the longest


@dataclass(frozen=True)
class Shape:
    width: int
    layers: int
    heads: int
    key_value_heads: int
    hidden: int
    tied: bool  # whether embedding and head share their weights
    tokens: int  # of the longest sequence


SHAPES = {
    "3b": Shape(3072, 28, 24, 8, 8192, True, tokens=7500),
    "8b": Shape(4096, 32, 32, 8, 14336, False, tokens=3300),
}


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.head = shape.width, shape.width // shape.heads
        narrow = shape.key_value_heads * self.head
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.query, self.output = linear(width, width), linear(width, width)
        self.key, self.value = linear(width, narrow), linear(width, narrow)
        self.gate, self.up = linear(width, shape.hidden), linear(width, shape.hidden)
        self.down = linear(shape.hidden, width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        normed = self.norms[0](x)
        query, key, value = (
            project(normed).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(
            rotate(query, cos, sin), rotate(key, cos, sin), value, is_causal=True, enable_gqa=True
        )
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        normed = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return `x` with rotary position embedding."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Decoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm, self.head = nn.RMSNorm(shape.width), linear(shape.width, VOCABULARY)
        if shape.tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def make_model(shape: Shape, mesh: DeviceMesh) -> nn.Module:
    """Shard the model: each layer is gathered when needed, the other weights for the whole step."""
    with torch.device("meta"):
        model = Decoder(shape)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model.to_empty(device=mesh.device_type)


def loss_of(model: nn.Module, shape: Shape, count: int, device: str) -> Tensor:
    tokens = torch.zeros(1, count + 1, dtype=torch.long, device=device)
    angles = torch.zeros(count, shape.width // shape.heads, dtype=torch.bfloat16, device=device)
    scores = model(tokens[:, :-1], angles.cos(), angles.sin())
    return functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())


def train(shape: Shape, device: str) -> None:
    memory = getattr(torch, device)
    model = make_model(shape, init_device_mesh(device, (RANKS,)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for step, length in enumerate(LENGTHS, 1):
        count = round(length * shape.tokens)
        loss_of(model, shape, count, device).backward()
        optimizer.step()
        optimizer.zero_grad()
        allocated, reserved = memory.max_memory_allocated(), memory.max_memory_reserved()
        print(
            f"step {step}: {count} tokens, at most {allocated / 2**30:.1f} GiB allocated"
            f" and {reserved / 2**30:.1f} reserved",
            flush=True,
        )


def limit_memory(device: str, capacity_bytes: int) -> None:
    module = getattr(torch, device)
    total_bytes = module.get_device_properties(0).total_memory
    if total_bytes < capacity_bytes:
        raise SystemExit(
            f"The device has {total_bytes / 2**30:.1f} GiB, less than {capacity_bytes / 2**30:.1f}."
            " Give its size as --capacity, and expect another result."
        )
    module.set_per_process_memory_fraction(capacity_bytes / total_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--device", choices=("cuda", "npu"), help="default: what torch finds")
    parser.add_argument("--capacity", type=float, default=39, metavar="GiB")
    options = parser.parse_args()
    device = options.device or torch.accelerator.current_accelerator().type

    if device not in dist.Backend.backend_capability["fake"]:
        dist.Backend.register_backend(
            "fake", fake_pg._create_fake_pg, extended_api=True, devices=[device]
        )
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=fake_pg.FakeStore())
    limit_memory(device, int(options.capacity * 2**30))
    train(SHAPES[options.shape], device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
