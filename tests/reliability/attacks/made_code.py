"""Code that is made and dropped by the million, at addresses that are used again and again.

Functions are made by `compile`, `exec`, `eval`, `types.FunctionType`, as lambdas, generators and
methods. Each has its own name, file name and line, is called once, and is dropped. Each allocates a
block of its own size. The recorded stacks are compared with the names and lines of the functions.
Some tracers have a stack table that is far too small. Threads dump at the same time, so that code
objects are freed while their names are read.
"""

import contextlib
import functools
import gc
import itertools
import random
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import cases
import numpy as np
import torch
from attack import Budget, Found
from cases import Case
from flat import check_flat
from memory import status_bytes

from pytracer import Tracer
from pytracer.reading import load

PROMISE = (
    "The recorded names and lines are those of the code that ran, although the addresses of code "
    "objects are used again; the stack table keeps its bound, and counts each event without a "
    "stack."
)
DEVICE = "cpu"
SECONDS = 20
BATCH = 20_000  # functions for each tracer
FULL_TABLE_BYTES, SMALL_TABLE_BYTES = 2**26, 2**18
TOLERANCE_BYTES = 48 * 2**20
ALLOC, FREED = 0, 2

Frame = tuple[str, str, int]


def attack(budget: Budget) -> Found:
    return cases.attack_by_cases(__name__, budget, "functions", 300)


class Maker:
    """Make functions that allocate, and keep the frame of each allocation."""

    def __init__(self, rng: random.Random, empty: Callable[[int], Any]) -> None:
        self.rng = rng
        self.names: dict[str, Any] = {"empty": empty}
        exec("def template(size):\n    return empty(size)\n", self.names)
        self.template = self.names["template"].__code__
        self.expected: dict[int, Frame] = {}
        self.addresses: set[int] = set()
        self.again = 0

    def run(self, size: int) -> None:
        """Make a function, call it and drop it."""
        kind = self.rng.random()
        name, line = f"made{self.rng.randrange(10**9)}", self.rng.randrange(1, 10**6)
        file = f"<{self.rng.randrange(1000)}>"
        if kind < 0.9:
            code = self.template.replace(co_name=name, co_filename=file, co_firstlineno=line)
            function = types.FunctionType(code, self.names)
            self.expected[size] = (file, name, line + 1)
            self.note(code)
            function(size)
            return
        line %= 50
        scope: dict[str, Any] = {}
        if kind < 0.92:
            text = f"{{}}def {name}(size):\n empty(size)\n return []"
        elif kind < 0.94:
            text = f"{{}}def {name}(size):\n yield empty(size)"
        elif kind < 0.96:
            text = f"class Made:\n{{}} def {name}(self, size):\n  empty(size)\n  return []"
        elif kind < 0.98:
            text, line = f"{{}}{name} = [lambda size:\n empty(size), []]", line
        else:
            text = f"{{}}async def {name}(size):\n empty(size)\n"
        exec(compile(text.format("\n" * line), file, "exec"), self.names, scope)
        function = scope.get(name)
        first = line + 1
        label = name
        if function is None:
            function = getattr(scope["Made"](), name)
            first += 1
        elif isinstance(function, list):
            function, label = function[0], "<lambda>"
        self.expected[size] = (file, label, first + 1)
        self.note(function.__code__)
        result = function(size)
        if isinstance(result, types.CoroutineType):
            with contextlib.suppress(StopIteration):
                result.send(None)
        elif isinstance(result, types.GeneratorType):
            list(result)

    def note(self, code: types.CodeType) -> None:
        """Count an address where another code object was before."""
        self.again += id(code) in self.addresses
        self.addresses.add(id(code))


def batch(case: Case, number: int, empty: Callable[[int], Any], end: float, found: Found) -> None:
    """Run functions in two threads, recorded by one tracer."""
    rng = random.Random(f"{case.seed} {number}")
    is_small = rng.random() < 0.3
    bound = SMALL_TABLE_BYTES if is_small else FULL_TABLE_BYTES
    makers = [Maker(random.Random(rng.random()), empty) for _ in range(2)]
    dumping = threading.Event()

    def make(maker: Maker, sizes: range) -> None:
        for size in sizes:
            maker.run(size)
            if size % 256 == 0 and time.monotonic() > end:
                return

    def dump() -> None:
        while not dumping.wait(0.02):
            tracer.dump("meanwhile.pickle")

    with Tracer(device="cpu", max_stack_bytes=bound, stack_depth=4) as tracer:
        halves = (range(1, BATCH // 2), range(BATCH // 2, BATCH))
        makes = [functools.partial(make, *each) for each in zip(makers, halves, strict=True)]
        with cases.threads(found, dump):
            with cases.threads(found, *makes):
                pass
            dumping.set()
    if found.failures:
        return
    expected = {size: frame for maker in makers for size, frame in maker.expected.items()}
    check(tracer, expected, bound, is_small, found)
    found.tried += len(expected)
    found.count("code objects at an address used before", sum(maker.again for maker in makers))


def check(
    tracer: Any, expected: dict[int, Frame], bound: int, is_small: bool, found: Found
) -> None:
    """Compare the innermost frame of each allocation, in `events()` and in a file."""
    events = tracer.events()
    stats = tracer.stats()["stacks"]
    missing = int(np.sum(events["stack"] == 0))
    if is_small:
        full = len(expected) < BATCH - 1 or missing > 0
        found.check(full, "no stack was dropped by a table that is too small")
        found.count("events without a stack, in small tables", missing)
    else:
        found.check(missing == 0, f"{missing} events have no stack")
    found.check(
        stats["dropped"] == missing, f"{missing} stacks missing, {stats['dropped']} counted"
    )
    found.check(stats["bytes"] <= stats["max_bytes"] == bound, f"the table's bound: {stats}")
    tracer.dump("made.pickle")
    snapshot = load("made.pickle")
    (trace,) = snapshot.traces
    written = {}
    for row in np.flatnonzero(trace.action == ALLOC).tolist():
        frames = snapshot.stacks.frames(int(trace.stack[row]))
        written[int(trace.size_bytes[row])] = tuple(frames[0]) if frames else None
    recorded: dict[int, tuple[Any, ...] | None] = {}
    for event in events[events["action"] == ALLOC]:
        frames = tracer.frames(int(event["stack"])) if event["stack"] else []
        recorded[int(event["size_bytes"])] = tuple(frames[0].values()) if frames else None
    found.check(recorded.keys() == expected.keys(), "allocations are missing")
    for place, actual in (("events()", recorded), ("the file", written)):
        wrong = [
            (size, actual[size], frame)
            for size, frame in expected.items()
            if actual.get(size) not in (frame, None)
        ]
        found.check(not wrong, f"{place}: {len(wrong)} frames are wrong, such as {wrong[:1]}")
        empty = sum(frame is None for frame in actual.values())
        found.check(is_small or empty == 0, f"{place}: {empty} allocations have no stack")


def case(case: Case) -> Found:
    empty = functools.partial(torch.empty, dtype=torch.uint8)  # adds no Python frame
    sys.setswitchinterval(0.0005)
    found = Found()
    end = time.monotonic() + case.seconds
    resident = []
    for number in itertools.count():
        batch(case, number, empty, end, found)
        gc.collect()
        resident.append(status_bytes("VmRSS"))
        if found.failures or time.monotonic() > end:
            break
    check_flat(resident, TOLERANCE_BYTES, found)
    return found
