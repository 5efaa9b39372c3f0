"""Train a small layer. The program does not know of pytracer: start it with `PYTRACER=1`."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
optimizer = torch.optim.AdamW(model.parameters())

for _ in range(20):
    batch = torch.randn(64, 256)
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print(f"loss {loss.item():.3f}")
