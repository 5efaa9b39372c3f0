"""Count the instructions that recording adds to an allocation and its free.

Unlike times, instruction counts are the same in every run. Only user space is counted, with full
rings. The stack table already has the stacks, except in the case "new stacks". Each count is the
difference between two loops, one twice as long as the other, so that the code around the loop
cancels out.

Callgrind counts in the core. torch is too large for it: with torch, the processor traps after each
instruction. Callgrind also runs this program's imports, 50 times as slowly: they are few. To print
the figures, run `pytest -rP` with the tests that start this program, or

    python tests/helpers/instructions.py forward FOLDER
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from core_events import ALLOC, CONTEXTS, chain

from pytracer import _core

PAIRS, RING, DEPTH, STACK_BYTES = 200, 400, 64, 2**25
ADDRESS = 0x1000


class Counter(Protocol):
    """A counter of instructions from start() to stop(), on the thread that created it.

    `pairs` is how many it counts at a time.
    """

    pairs: int

    def start(self) -> None: ...
    def stop(self) -> int: ...


# A function that makes the given number of pairs and returns the instructions that were counted.
Body = Callable[[Counter, int], int]


class Callgrind:
    """Callgrind's count of this process's instructions.

    Whenever getppid() is called, callgrind writes its count so far to a file and restarts at zero.
    """

    pairs = PAIRS

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._dumps = 0

    def start(self) -> None:
        os.getppid()

    def stop(self) -> int:
        os.getppid()
        self._dumps += 2
        dump = (self._folder / f"counts.{self._dumps}").read_text()
        (total,) = re.findall(r"^totals: (\d+)$", dump, re.MULTILINE)
        return int(total)


class Steps:
    """A count by traps after each instruction (steps.cpp), which take microseconds each."""

    pairs = 20

    def __init__(self, folder: Path) -> None:
        source, library = Path(__file__).with_name("steps.cpp"), folder / "steps.so"
        subprocess.run(["g++", "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
        steps = ctypes.CDLL(str(library))
        steps.stop_steps.restype = ctypes.c_uint64
        self.start, self.stop = steps.start_steps, steps.stop_steps


class Uncounted:
    """Counts nothing, while the ring and the stack table fill."""

    pairs = 0

    def start(self) -> None: ...

    def stop(self) -> int:
        return 0


def at_depth(frames: int, body: Callable[..., int], *arguments: Any) -> int:
    """Call `body` so that it runs at a depth of `frames` Python frames."""
    here = len(chain(sys._getframe()))
    if here == frames - 1:
        return body(*arguments)
    return at_depth(frames, body, *arguments)


def one_stack(counter: Counter, pairs: int) -> int:
    counter.start()
    _core.testing.record_pairs(pairs, ADDRESS)
    return counter.stop()


def accelerator_pairs(counter: Counter, pairs: int) -> int:
    """Make pairs as an accelerator's hook does: three events, two stacks."""
    record, record_free = _core.testing.record, _core.testing.record_free
    counter.start()
    for _ in range(pairs):
        record(ALLOC, ADDRESS, 512, 0)
        record_free(ADDRESS, 512, 0)
    return counter.stop()


def two_paths(counter: Counter, pairs: int, calls: int = 20) -> int:
    """Make pairs from two paths in turn, each `calls` calls deep, with no frame in common."""
    record = _core.testing.record_pairs

    def first_path(more: int) -> None:
        if more:
            first_path(more - 1)
        else:
            record(1, ADDRESS)

    def second_path(more: int, *_: int) -> None:  # its frames have another size
        if more:
            second_path(more - 1, 1, 2, 3)
        else:
            record(1, ADDRESS)

    counter.start()
    for _ in range(pairs // 2):
        first_path(calls - 1)
        second_path(calls - 1)
    return counter.stop()


def deep_paths(counter: Counter, pairs: int) -> int:
    """Make pairs from two paths so deep that the kept frames have none in common."""
    return two_paths(counter, pairs, calls=DEPTH + 15)


def new_stacks(counter: Counter, pairs: int, levels: int = 3, calls: int = 10) -> int:
    """Make pairs with a new stack each: each level of functions calls the next from many lines."""
    place: dict[str, Any] = {"record": _core.testing.record_pairs}
    body = f"record(1, {ADDRESS})"
    for level in range(levels):
        lines = calls if level < levels - 1 else pairs // calls ** (levels - 1)
        source = "\n".join([f"def level{level}():", *[f" {body}"] * lines])
        exec(compile(source, f"new_stacks_{id(place)}.py", "exec"), place)
        body = f"level{level}()"
    outermost = place[f"level{levels - 1}"]
    counter.start()
    outermost()
    return counter.stop()


def pairs_with_nodes(counter: Counter, pairs: int) -> int:
    """Make pairs as an accelerator's hook does; before each, autograd numbers a new node."""
    import torch

    libtorch = ctypes.CDLL(f"{Path(torch.__file__).parent}/lib/libtorch_cpu.so")
    number_node = libtorch._ZN2at15sequence_number17get_and_incrementEv
    record, record_free = _core.testing.record, _core.testing.record_free
    counter.start()
    for _ in range(pairs):
        number_node()
        record(ALLOC, ADDRESS, 512, 0)
        record_free(ADDRESS, 512, 0)
    return counter.stop()


def per_pair(counter: Counter, body: Body, frames: int) -> float:
    counts = []
    for used, pairs in (
        (Uncounted(), PAIRS),
        (counter, counter.pairs),
        (counter, 2 * counter.pairs),
    ):
        counts.append(at_depth(frames, body, used, pairs))  # from one line: with one stack
    return (counts[2] - counts[1]) / counter.pairs


def added(
    counter: Counter,
    device: int,
    body: Body,
    frames: int,
    context: str | None,
    forward_stacks: bool = False,
) -> dict[str, Any]:
    """Return what recording adds to a pair, the events of a pair and the frames of each stack."""
    recorder = _core.Session(
        [device], RING, DEPTH, STACK_BYTES, CONTEXTS[context], forward_stacks=forward_stacks
    )
    off = per_pair(counter, body, frames)
    recorder.start()
    on = per_pair(counter, body, frames)
    (counts,) = recorder.stats()["devices"]
    stacks = set(recorder.events()["stack"].tolist()) - {0}
    recorder.stop()
    return {
        "instructions": round(on - off, 1),
        "events": counts["recorded"] / (PAIRS + 3 * counter.pairs),
        "frames": [len(recorder.frames(stack)) for stack in stacks],
    }


def in_a_kernel(*arguments: Any) -> dict[str, Any]:
    """Count as in a kernel that autograd has called in a forward pass."""
    import torch

    with torch._C._AutoDispatchBelowAutograd():
        return added(*arguments)


def in_a_node(*arguments: Any) -> dict[str, Any]:
    """Count in a node that autograd's engine runs."""
    import torch

    figures = []

    class Counts(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            figures.append(added(*arguments))
            return gradient

    torch.autograd.backward(Counts.apply(torch.ones((), requires_grad=True)))
    return figures[0]


# By name: the body that makes the pairs, the number of Python frames, and the option `context`.
CORE = {
    "without stacks": (one_stack, 5, None),
    "one stack, 5 frames": (one_stack, 5, "all"),
    "one stack, 40 frames": (one_stack, 40, "all"),
    "two paths, 25 frames": (two_paths, 5, "all"),
    "two paths, 84 frames, 64 kept": (deep_paths, 5, "all"),
    "accelerator, 5 frames": (accelerator_pairs, 5, "all"),
    "accelerator, 40 frames": (accelerator_pairs, 40, "all"),
    "new stacks, 20 frames": (new_stacks, 17, "all"),
}
# With forward stacks, by name: what counts, the body and the number of frames.
FORWARD = {
    "forward stacks, 5 frames": (added, accelerator_pairs, 5),
    "forward stacks, 7 frames, a new node": (in_a_kernel, pairs_with_nodes, 7),
    "forward stacks, 12 frames, in a node": (in_a_node, accelerator_pairs, 12),
}


if __name__ == "__main__":
    gc.disable()
    backend, folder = sys.argv[1:]
    way: Counter = (Callgrind if backend == "cpu" else Steps)(Path(folder))
    results: dict[str, dict[str, Any]] = {}
    if backend == "cpu":
        for name, case in CORE.items():
            index = 0 if name.startswith("accelerator") else _core.CPU_DEVICE
            results[name] = added(way, index, *case)
    else:
        hook_attach = importlib.import_module("pytracer.backends.hook_attach")
        hook_attach.HOOKS.attach_autograd(build=True)
        for name, (added_by, body, frames) in FORWARD.items():
            results[name] = added_by(way, 0, body, frames, "all", True)
    print(json.dumps(results, indent=2))
