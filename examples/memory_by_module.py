"""Train a small GPT, and record what its memory is for, and which layer it belongs to.

    python memory_by_module.py
    pytracer show gpt.pickle

The first lines of the report answer three questions: do weights, gradients, optimizer states or
activations fill the memory? Which layer holds most? Will checkpointing or a sharded optimizer help?

The program runs on the first CUDA device, or else with a smaller model on the CPU.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

import pytracer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, HEADS, LAYERS, BATCH, TOKENS = (
    (1024, 16, 12, 8, 1024) if DEVICE == "cuda" else (128, 4, 4, 4, 128)
)
VOCABULARY = 50 * WIDTH
STEPS = 3


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.query_key_value, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        split = self.query_key_value(self.norms[0](x)).unflatten(-1, (3, HEADS, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        narrowed: Tensor = self.narrow(functional.gelu(self.widen(self.norms[1](x))))
        return x + narrowed


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.head(x)
        return scores


with pytracer.Tracer("gpt.pickle", device=DEVICE, forward_stacks=True) as tracer:
    model = Gpt().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytracer.annotate_modules(model, depth=2):
        for _ in range(STEPS):
            tokens = torch.randint(VOCABULARY, (BATCH, TOKENS), device=DEVICE)
            with torch.autocast(DEVICE, torch.bfloat16):
                scores = model(tokens)
                loss = functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())
            del scores
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            tracer.step()
