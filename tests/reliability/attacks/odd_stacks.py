"""Stacks of every shape: 20,000 frames, greenlets, generators, coroutines, tracing functions, exec.

Random shapes are nested in each other, also in threads with small C stacks. In the innermost
function a tensor of a unique size is allocated, and Python's own view of the stack, from
`sys._getframe()`, is kept on the same line. All frames of the recorded stacks are compared with it,
in order, in `events()` and in a file. At the same time `sys.settrace`, `sys.setprofile` or
`sys.monitoring` may be active with functions that allocate themselves.
"""

import functools
import gc
import importlib.util
import itertools
import pickle
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import cases
import torch
import viewers
from attack import Budget, Found
from cases import Case
from stack_shapes import SHAPES, in_greenlets

from pytracer import Tracer

PROMISE = (
    "Every recorded stack is exactly what `sys._getframe()` shows at that place, cut at "
    "`stack_depth`, whatever the frames are; no depth of recursion ends the process."
)
DEVICE = "cpu"
SECONDS = 20
DEEPEST = 20_000
SMALL_STACK_BYTES = 2**18  # only calls through C take it
ALLOC = 0

Frames = list[tuple[str, str, int]]


def attack(budget: Budget) -> Found:
    return cases.attack_by_cases(__name__, budget, "stacks", 4)


class Program:
    """A program that allocates and keeps the stack of each allocation."""

    def __init__(self, depth: int, found: Found) -> None:
        from core_events import chain  # enables stacks, which a case does by itself

        self._chain, self.found = chain, found
        self.empty: Callable[..., Any] = lambda size: torch.empty(size, dtype=torch.uint8)
        self.depth = depth
        self.tracer = Tracer(device="cpu", stack_depth=depth, trace_alloc_max_entries=200_000)
        self.expected: dict[int, Frames] = {}  # by the block's size
        self._sizes = itertools.count(1)

    def mark(self) -> None:
        """Allocate and keep the stack, on one line; a finaliser may run in between."""
        empty, kind, chain, depth = torch.empty, torch.uint8, self._chain, self.depth
        size = next(self._sizes)
        # fmt: off
        self.expected[size] = (empty(size, dtype=kind), chain(sys._getframe(), depth))[1]
        # fmt: on

    def nest(self, rng: random.Random, levels: int, shapes: list[Any]) -> None:
        shape = rng.choice(shapes)
        shape((lambda: self.nest(rng, levels - 1, shapes)) if levels else self.mark, rng)

    def deep(self, levels: int) -> None:
        if levels:
            self.deep(levels - 1)
        else:
            self.mark()

    def in_thread(self, work: Callable[[], None], stack_bytes: int) -> None:
        before = threading.stack_size(stack_bytes)
        try:
            with cases.threads(self.found, work):
                pass
        finally:
            threading.stack_size(before)

    def check(self, found: Found) -> None:
        """Compare all stacks of `events()` and of a file."""
        events = self.tracer.events()
        events = events[events["action"] == ALLOC]
        sizes = events["size_bytes"].tolist()
        stacks: dict[int, Frames] = {}
        for stack in set(events["stack"].tolist()):
            frames = self.tracer.frames(stack)
            stacks[stack] = [(f["filename"], f["name"], f["line"]) for f in frames]
        recorded = {
            size: stacks[s] for size, s in zip(sizes, events["stack"].tolist(), strict=True)
        }
        self.tracer.dump("stacks.pickle")
        with open("stacks.pickle", "rb") as file:
            snapshot = pickle.load(file)
        viewers.check_snapshot(snapshot)
        written = {
            event["size"]: [(f["filename"], f["name"], f["line"]) for f in event["frames"]]
            for event in snapshot["device_traces"][0]
            if event["action"] == "alloc"
        }
        for size, expected in self.expected.items():
            for place, stack in (("events()", recorded), ("the file", written)):
                actual = stack.get(size)
                if actual != expected:
                    found.failures.append(f"{place}: {difference(actual, expected)}")
                    return
        dropped = self.tracer.stats()["stacks"]["dropped"]
        found.check(dropped == 0, f"{dropped} stacks were dropped")
        deepest = max(map(len, self.expected.values()))
        found.highest("most frames of a recorded stack", deepest)
        found.tried += len(self.expected)


def difference(actual: Frames | None, expected: Frames) -> str:
    """Describe the first difference of two stacks."""
    if actual is None:
        return f"an event is missing, of {expected[:3]}"
    pairs = zip(actual, expected, strict=False)
    at = next((i for i, pair in enumerate(pairs) if pair[0] != pair[1]), None)
    if at is None:
        return f"{len(actual)} frames, not {len(expected)}"
    return f"frame {at} of {len(expected)} is {actual[at]}, not {expected[at]}"


@contextmanager
def traced(program: Program, kind: str) -> Iterator[None]:
    """Switch on Python's own tracing, with a function that allocates."""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if event in ("call", "c_call") and frame.f_lineno % 7 == 0:
            program.empty(0)
        return trace

    def monitor(*arguments: object) -> None:
        program.empty(0)

    if kind == "settrace":
        sys.settrace(trace)
        threading.settrace(trace)
    elif kind == "setprofile":
        sys.setprofile(trace)
    elif kind == "monitoring" and sys.version_info >= (3, 12):
        monitoring = sys.monitoring
        monitoring.use_tool_id(3, "attack")
        monitoring.register_callback(3, monitoring.events.PY_START, monitor)
        monitoring.set_events(3, monitoring.events.PY_START | monitoring.events.LINE)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        sys.setprofile(None)
        if kind == "monitoring" and sys.version_info >= (3, 12):
            sys.monitoring.set_events(3, 0)
            sys.monitoring.free_tool_id(3)


def case(case: Case) -> Found:
    rng = case.rng
    found = Found()
    shapes = [*SHAPES]
    if importlib.util.find_spec("greenlet") is not None:
        shapes.append(in_greenlets)
    else:
        found.skipped.append("greenlets: the package greenlet is not installed")
    kinds = ["none", "none", "settrace", "setprofile", "monitoring"]
    if sys.version_info < (3, 12):
        kinds.remove("monitoring")
        found.skipped.append("sys.monitoring: Python is older than 3.12")
    sys.setrecursionlimit(3 * DEEPEST)
    program = Program(rng.choice((1, 5, 32, 1024)), found)
    deadline = time.monotonic() + case.seconds
    with program.tracer:
        turn = 0
        while turn < 3 or (time.monotonic() < deadline and len(program.expected) < 20_000):
            turn += 1
            with traced(program, rng.choice(kinds)):
                levels = rng.randrange(6)
                if rng.random() < 0.6:
                    program.nest(rng, levels, shapes)
                else:
                    work = functools.partial(program.nest, rng, levels, shapes)
                    program.in_thread(work, 2**22)
            if turn % 20 == 1:
                program.in_thread(functools.partial(program.deep, DEEPEST), SMALL_STACK_BYTES)
                found.count("recursions of 20,000 frames")
            if found.failures:
                break
        while gc.collect():
            pass
        gc.disable()  # so that no finaliser allocates from here on
        program.check(found)
    return found
