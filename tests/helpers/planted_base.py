"""Record a training of a small transformer as a base of planted files (`planted_fleet.py`).

tests/devices/simulate cuda PYTHON tests/helpers/planted_base.py OUTPUT [EVENTS [WIDTH]]
"""

import sys

import torch
from torch import nn

import pytracer


def main(output: str, events: int = 100_000, width: int = 64) -> None:
    layers = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    model = nn.TransformerEncoder(layers, 4, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with pytracer.Tracer(output, device="cuda", trace_alloc_max_entries=2 * events) as tracer:
        while tracer.stats()["devices"][0]["recorded"] < events:
            with pytracer.annotate("forward"):
                batch = torch.randn(8, 32, width, device="cuda")
                loss = (model(batch) - batch).square().mean()
            optimizer.zero_grad()
            with pytracer.annotate("backward"):
                loss.backward()
            with pytracer.annotate("optimizer"):
                optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
