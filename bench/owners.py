"""Measure what the names of live blocks cost: `python bench/owners.py [--device cuda]`.

- step: the seconds of a training step while a tracer records, and of the one call that pytracer
  adds to it, from torch's hook before an optimizer steps.
- read: the seconds in which the owners are read, of a model with about 500 parameters, their
  gradients, and AdamW's state.
- dump: the seconds of a snapshot of 100,000 events, with the owners and without them.
- search: the seconds of the search for older modules and optimizers, and the number of Python
  objects that it looked at.

The figures are medians. On simulated devices kernels do nothing, so a step is host time only.
"""

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import pytracer
from pytracer.owners.read import OwnersNow
from pytracer.owners.registry import REGISTRY, Registry

ROUNDS = 200
LAYERS = 240


def seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def median(action: Callable[[], object], rounds: int = 7) -> float:
    return statistics.median(seconds(action) for _ in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda", "npu"), default="cpu")
    device = parser.parse_args().device
    torch.set_num_threads(1)
    index = -1 if device == "cpu" else 0
    with pytracer.Tracer(device=device) as tracer:
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(LAYERS))).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        data = torch.ones(8, 8, device=device)

        def step() -> None:
            model(data).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

        step()
        a_step = median(step, ROUNDS)
        a_call = median(lambda: [REGISTRY._steps(optimizer, (), {}) for _ in range(1000)]) / 1000
        share = a_call / a_step
        print(f"step: {1e3 * a_step:.2f} ms; the hook: {1e6 * a_call:.2f} µs, {share:.3%} of it")

        owners = OwnersNow({index}).owners
        read = median(lambda: OwnersNow({index}))
        print(f"read: {1e3 * read:.1f} ms for {len(owners):,} tensors")

        while tracer.stats()["devices"][0]["held"] < 100_000:
            step()
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "x.pickle")).encode()
            session = tracer._recording.session
            named = median(lambda: tracer._recording.view().write(path, {}, {}))
            plain = median(lambda: session.view().write(path, {}, {}))
        print(f"dump: {1e3 * plain:.1f} ms without owners, {1e3 * (named - plain):+.1f} ms with")

        modules, optimizers = nn.Module, torch.optim.Optimizer
        search = median(lambda: Registry()._search(modules, optimizers))
        print(f"search: {1e3 * search:.1f} ms for {len(gc.get_objects()):,} objects")


if __name__ == "__main__":
    main()
