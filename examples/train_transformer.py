"""Record a training loop: the tracer is a context manager around it."""

import torch
from torch import nn

import pytracer

model = nn.TransformerEncoderLayer(d_model=64, nhead=4, batch_first=True)
optimizer = torch.optim.AdamW(model.parameters())

with pytracer.Tracer("snapshot.pickle", device="cpu"):
    for _ in range(20):
        batch = torch.randn(8, 32, 64)
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

print(f"Loss {loss.item():.3f}. Drag snapshot.pickle onto pytorch.org/memory_viz.")
