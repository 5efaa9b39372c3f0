"""Measure what the names of live blocks cost: `python bench/owners.py [--device cuda]`.

- step: the seconds of a short training step while a tracer records, without the registry's hook and
  with it.
- hook: the seconds of the call that the registry adds to a step, before an optimizer steps.
- notes: the seconds in which an argument and a result of a model's call are noted.
- read: the seconds in which the owners are read, of a model with 480 parameters, their gradients,
  and AdamW's state.
- held: the longest time, in seconds, for which one read keeps the GIL.
- search: the seconds of the search for older modules and optimizers.

What is compared runs alternately in one process. Each figure is the fastest of all turns, because
other programs on the machine only add time. For steps, there is also the median of the differences
within a turn. On simulated devices kernels do nothing, so a step is host time only.
"""

import contextlib
import functools
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from harness import arguments, save
from torch import nn
from torch.optim import optimizer as optimizers

import pytracer
from pytracer import _core
from pytracer.owners.read import OwnersNow
from pytracer.owners.registry import REGISTRY, Registry
from pytracer.owners.uses import note_arguments, note_results

TURNS = 2000
DUMPS = 40
LAYERS = 240
STEP_LAYERS = 24  # a short step: a long one never runs undisturbed on a busy machine
EVENTS = 100_000


def seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def by_turns(
    action: Callable[[], object],
    situations: dict[str, Callable[[], Any]],
    turns: int,
) -> dict[str, dict[str, float]]:
    """Run an action in each situation, a context manager, alternately.

    Returns:
        By situation the seconds of the fastest run, and the median of how many more seconds a run
        took than that of the first situation in the same turn.
    """
    found: dict[str, list[float]] = {name: [] for name in situations}
    for turn in range(turns):
        for name in list(situations)[:: 1 if turn % 2 else -1]:
            with situations[name]():
                found[name].append(seconds(action))
    base = next(iter(found.values()))
    return {
        name: {
            "fastest": min(taken),
            "more": statistics.median(own - first for own, first in zip(taken, base, strict=True)),
        }
        for name, taken in found.items()
    }


def longest_hold(action: Callable[[], object]) -> float:
    """Return the seconds of the longest call of the core, which keeps the GIL, in an action."""
    names = ("live_references", "copy_models", "kept_tensors")
    taken: list[float] = []

    def timed(call: Callable[..., Any], *arguments: Any) -> Any:
        begin = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            taken.append(time.perf_counter() - begin)

    calls = {name: getattr(_core, name) for name in names}
    try:
        for name, call in calls.items():
            setattr(_core, name, functools.partial(timed, call))
        action()
    finally:
        for name, call in calls.items():
            setattr(_core, name, call)
    return max(taken)


def fastest(action: Callable[[], object], turns: int) -> float:
    return min(seconds(action) for _ in range(turns))


class Training:
    def __init__(self, layers: int, device: str) -> None:
        self.model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers))).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)
        self._data = torch.ones(8, 8, device=device)

    def step(self) -> None:
        self.model(self._data).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)


@contextlib.contextmanager
def without_hook() -> Any:
    """Run without the registry's hook before an optimizer steps."""
    hooks = optimizers._global_optimizer_pre_hooks
    kept = dict(hooks)
    hooks.clear()
    try:
        yield
    finally:
        hooks.update(kept)


def measure(device: str) -> dict[str, Any]:
    with pytracer.Tracer(device=device, trace_alloc_max_entries=EVENTS):
        small, large = Training(STEP_LAYERS, device), Training(LAYERS, device)
        small.step()
        large.step()
        steps = by_turns(
            small.step,
            {
                "without the hook": without_hook,
                "with the hook": contextlib.nullcontext,
            },
            TURNS,
        )
        optimizer = large.optimizer
        calls = range(1000)
        hook = fastest(lambda: [REGISTRY._steps(optimizer, (), {}) for _ in calls], DUMPS)
        x, model = torch.ones(8, 8, device=device), small.model
        y = model(x)
        notes = fastest(
            lambda: [(note_arguments(model, (x,)), note_results(model, y)) for _ in calls], DUMPS
        )

        index = -1 if device == "cpu" else 0
        owners = len(OwnersNow({index}).owners)
        read = fastest(lambda: OwnersNow({index}), DUMPS)

        held = min(longest_hold(lambda: OwnersNow({index})) for _ in range(DUMPS))
        return {
            "step": steps,
            "hook": hook / len(calls),
            "notes": notes / len(calls),
            "owners": owners,
            "read": read,
            "held": held,
            "search": fastest(lambda: Registry().search(), DUMPS),
            "objects": len(gc.get_objects()),
        }


def main() -> None:
    options = arguments(__doc__, "owners_{device}.json", ("cpu", "cuda", "npu"), rounds=1)
    torch.set_num_threads(1)
    found = measure(options.device)
    steps = found["step"]
    base = steps["without the hook"]["fastest"]
    for name, taken in steps.items():
        more = f"{1e6 * taken['more']:+.1f} µs, {taken['more'] / base:+.2%}"
        print(f"step, {name}: {1e3 * taken['fastest']:.3f} ms at the fastest; median {more}")
    print(f"hook: {1e6 * found['hook']:.2f} µs, {found['hook'] / base:.3%} of a step")
    print(f"notes: {1e6 * found['notes']:.1f} µs for an argument and a result")
    print(f"held: {1e3 * found['held']:.1f} ms at most without a break")
    print(f"read: {1e3 * found['read']:.1f} ms for {found['owners']:,} tensors")
    print(f"search: {1e3 * found['search']:.1f} ms for {found['objects']:,} objects")
    save(options, found)


if __name__ == "__main__":
    main()
