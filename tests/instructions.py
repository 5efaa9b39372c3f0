"""Instructions that recording adds to an allocation and its free: unlike time, the same every time.

In user space, with full rings and known stacks. What is around the loop cancels out: each count is
the difference between two loops, one twice as long. Counted by the processor, if the system lets
us read its counters; or by callgrind, for which torch is too large, so the core alone. To print
the figures: `pytest -rP` with the tests that use this, or

    python tests/instructions.py cpu
    tests/devices/simulate cuda PYTHON tests/instructions.py cuda
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from core_events import ALLOC, CONTEXTS, FREE, chain
from processes import environment

from pytracer import _core

PAIRS, RING, DEPTH, STACK_BYTES = 2_000, 1_000, 64, 2**25
ADDRESS = 0x1000


class CannotCountError(Exception):
    """Says what is missing."""


class Counter(Protocol):
    """Counts from start() to stop(), on the thread that made it."""

    def start(self) -> None: ...
    def stop(self) -> int: ...


# Makes pairs, as many as it is told; returns what was counted.
Body = Callable[[Counter, int], int]
Figure = dict[str, Any]

# perf_event_open(2): its number, and the values that are needed here.
PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
HARDWARE, INSTRUCTIONS = 0, 1
PINNED, EXCLUDE_KERNEL, EXCLUDE_HYPERVISOR = 1 << 2, 1 << 5, 1 << 6


class _Attributes(ctypes.Structure):
    """The first version of struct perf_event_attr."""

    _fields_ = [
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("bp_addr", ctypes.c_uint64),
    ]


class HardwareCounter:
    """Instructions of this thread in user space."""

    def __init__(self) -> None:
        number = PERF_EVENT_OPEN.get(platform.machine())
        if number is None:
            raise CannotCountError(f"no hardware counters (not known: {platform.machine()})")
        attributes = _Attributes(
            type=HARDWARE,
            size=ctypes.sizeof(_Attributes),
            config=INSTRUCTIONS,
            # Pinned: it counts all the time, or cannot be read.
            flags=PINNED | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
        )
        libc = ctypes.CDLL(None, use_errno=True)
        this_thread, any_cpu, no_group, no_flags = 0, -1, -1, 0
        self._file = libc.syscall(
            number, ctypes.byref(attributes), this_thread, any_cpu, no_group, no_flags
        )
        if self._file < 0:
            error = os.strerror(ctypes.get_errno())
            raise CannotCountError(f"no hardware counters (perf_event_open: {error})")
        self.start()
        sum(range(10_000))
        if self.stop() < 10_000:  # a virtual machine may have them and leave them at zero
            raise CannotCountError("no hardware counters (they do not count)")

    def start(self) -> None:
        self._before = self._read()

    def stop(self) -> int:
        return self._read() - self._before

    def close(self) -> None:
        os.close(self._file)

    def _read(self) -> int:
        value = os.read(self._file, 8)
        if not value:
            raise CannotCountError("no hardware counters (others use them all)")
        return int.from_bytes(value, sys.byteorder)


class Callgrind:
    """Instructions of this process, run by callgrind, which writes its count so far to a file and
    begins again whenever getppid() is called.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._dumps = 0

    @staticmethod
    def command(folder: Path) -> list[str]:
        """What runs a program that counts so."""
        valgrind = shutil.which("valgrind")
        if valgrind is None:
            raise CannotCountError("no valgrind")
        output = f"--callgrind-out-file={folder / 'counts'}"
        return [valgrind, "--quiet", "--tool=callgrind", "--dump-before=getppid", output]

    def start(self) -> None:
        os.getppid()

    def stop(self) -> int:
        os.getppid()
        self._dumps += 2
        dump = (self._folder / f"counts.{self._dumps}").read_text()
        (total,) = re.findall(r"^totals: (\d+)$", dump, re.MULTILINE)
        return int(total)


def count(device: str, way: str, folder: Path) -> dict[str, Figure]:
    """What is added to a pair, by case; counted in a process of its own.

    Args:
        device: "cpu": the core without an allocator; "cuda", "npu": torch's caching allocator.
        way: "hardware" or "callgrind".
        folder: For callgrind's files.

    Raises:
        CannotCountError: That way there is none.
    """
    command, arguments = [], [device]
    if way == "hardware":
        HardwareCounter().close()
    else:
        command = Callgrind.command(folder)
        arguments.append(str(folder))
    done = subprocess.run(
        [*command, sys.executable, __file__, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Figure] = json.loads(done.stdout)
    return result


def limit(counted: float) -> float:
    """A tenth above what was counted with Python 3.11 on x86-64; others' code is not the same."""
    alike = sys.version_info[:2] == (3, 11) and platform.machine() == "x86_64"
    return counted * (1.1 if alike else 1.5)


def at_depth(frames: int, body: Callable[..., int], *arguments: Any) -> int:
    """Calls `body` so that it runs at `frames` Python frames."""
    here = len(chain(sys._getframe()))
    if here == frames - 1:
        return body(*arguments)
    return at_depth(frames, body, *arguments)


def one_stack(counter: Counter, pairs: int) -> int:
    counter.start()
    _core.testing.record_pairs(pairs, ADDRESS)
    return counter.stop()


def two_stacks(counter: Counter, pairs: int) -> int:
    record = _core.testing.record
    counter.start()
    for _ in range(pairs):
        record(ALLOC, ADDRESS, 512)
        record(FREE, ADDRESS, 0)
    return counter.stop()


def two_paths(counter: Counter, pairs: int, calls: int = 20) -> int:
    """From two places by turns, so many calls deep, and with none of these in common."""
    record = _core.testing.record_pairs

    def one(more: int) -> None:
        if more:
            one(more - 1)
        else:
            record(1, ADDRESS)

    def other(more: int, *_: int) -> None:  # whose frames have another size
        if more:
            other(more - 1, 1, 2, 3)
        else:
            record(1, ADDRESS)

    counter.start()
    for _ in range(pairs // 2):
        one(calls - 1)
        other(calls - 1)
    return counter.stop()


def deep_paths(counter: Counter, pairs: int) -> int:
    """With no frame in common among those that are kept."""
    return two_paths(counter, pairs, calls=DEPTH + 15)


def torch_pairs(device: str) -> Body:
    """Through torch's caching allocator, with the hook attached: three events, of two stacks."""
    import torch

    from pytracer import hooks

    module = getattr(torch, device)
    module.init()
    hooks.attach(device)
    stream = getattr(module.current_stream(), f"{device}_stream")
    if device == "cuda":
        allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
        release = torch._C._cuda_cudaCachingAllocator_raw_delete
    else:
        native = importlib.import_module("torch_npu._C")
        allocate = native._npu_npuCachingAllocator_raw_alloc
        release = native._npu_npuCachingAllocator_raw_delete

    def body(counter: Counter, pairs: int) -> int:
        counter.start()
        for _ in range(pairs):
            release(allocate(512, stream))
        return counter.stop()

    return body


def per_pair(counter: Counter, body: Body, frames: int) -> float:
    counts = []
    for pairs in (PAIRS, PAIRS, 2 * PAIRS):  # at first the ring is filled and stacks become known
        counts.append(at_depth(frames, body, counter, pairs))
    return (counts[2] - counts[1]) / PAIRS


def added(counter: Counter, device: int, body: Body, frames: int, context: str | None) -> Figure:
    """What recording adds to a pair, and what was recorded: events of a pair, frames of a stack."""
    recorder = _core.Owner([device], RING, DEPTH, STACK_BYTES, CONTEXTS[context])
    off = per_pair(counter, body, frames)
    recorder.start()
    on = per_pair(counter, body, frames)
    (counts,) = recorder.stats()["devices"]
    stacks = set(recorder.events()["stack"].tolist()) - {0}
    recorder.stop()
    return {
        "instructions": round(on - off, 1),
        "events": counts["recorded"] / (4 * PAIRS),
        "frames": [len(recorder.frames(stack)) for stack in stacks],
    }


# By name: what makes the pairs, at how many Python frames, and which stacks are kept.
CORE = {
    "without stacks": (one_stack, 5, None),
    "one stack, 5 frames": (one_stack, 5, "all"),
    "one stack, 40 frames": (one_stack, 40, "all"),
    "two stacks, 5 frames": (two_stacks, 5, "all"),
    "two stacks, 40 frames": (two_stacks, 40, "all"),
    "two paths, 25 frames": (two_paths, 5, "all"),
    "two paths, 84 frames, 64 kept": (deep_paths, 5, "all"),
}
TORCH = {
    "without stacks": (5, None),
    "allocations' stacks, 5 frames": (5, "alloc"),
    "allocations' stacks, 40 frames": (40, "alloc"),
    "all stacks, 5 frames": (5, "all"),
    "all stacks, 40 frames": (40, "all"),
}


if __name__ == "__main__":
    if sys.argv[1:2] not in (["cpu"], ["cuda"], ["npu"]):
        sys.exit(__doc__)
    gc.disable()
    backend, *folder = sys.argv[1:]
    way: Counter = Callgrind(Path(folder[0])) if folder else HardwareCounter()
    results: dict[str, Figure] = {}
    if backend == "cpu":
        for name, case in CORE.items():
            results[name] = added(way, _core.CPU_DEVICE, *case)
    else:
        torchs = torch_pairs(backend)
        for name, (frames, context) in TORCH.items():
            results[name] = added(way, 0, torchs, frames, context)
    print(json.dumps(results, indent=2))
