"""The process that a replay runs in: asks its allocator what another one was asked.

    python -m pytracer.replay_process FOLDER CAPACITY NEEDED

The allocator's settings are in the environment; `main` says what the arguments are.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pytracer.devices import automatic, torch_module
from pytracer.reading.requests import ALLOCATE, ASKED, EMPTY_CACHE, FAIL, FREE, LEAVE, RELEASE_POOL
from pytracer.tracer import Tracer

EVENTS_EACH = 4
"""Of a request, at most on average: an allocation and its free have three, and segments some."""


class Allocator:
    """The allocator of the current device, as it is when it has given nothing out."""

    def __init__(self, backend: str, streams: int) -> None:
        """Initialises the device and makes so many streams, of which the first is the default."""
        self._torch = torch_module(backend)
        self._torch.init()
        native = torch._C if backend == "cuda" else sys.modules["torch_npu"]._C
        prefix = f"_{backend}_{backend}CachingAllocator_raw_"
        self.alloc: Callable[[int, int], int] = getattr(native, f"{prefix}alloc")
        self.free: Callable[[int], None] = getattr(native, f"{prefix}delete")
        self._kept = [self._torch.Stream(priority=-(i % 2)) for i in range(1, streams)]
        self.streams = [0, *(getattr(each, f"{backend}_stream") for each in self._kept)]
        self._pools: dict[int, Any] = {}
        self._in_use = ExitStack()

    def limit(self, capacity_bytes: int) -> None:
        """Has it reserve no more than so much."""
        _, total_bytes = self.memory()
        fraction = capacity_bytes / total_bytes
        while int(fraction * total_bytes) < capacity_bytes:  # as torch computes it
            fraction = math.nextafter(fraction, 1)
        self._torch.set_per_process_memory_fraction(fraction)

    def memory(self) -> tuple[int, int]:
        """The device's free bytes, and all it has."""
        free_bytes, total_bytes = self._torch.mem_get_info()
        return free_bytes, total_bytes

    def retries(self) -> int:
        """How often it has given back what it had cached, to allocate."""
        return int(self._torch.memory_stats()["num_alloc_retries"])

    def use_pool(self, number: int) -> None:
        """Has blocks come from a pool from now on; 0 is the default."""
        self._in_use.close()
        if number == 0:
            return
        if number not in self._pools:
            self._pools[number] = self._torch.MemPool()
        self._in_use.enter_context(self._torch.use_mem_pool(self._pools[number]))

    def release_pool(self, number: int) -> None:
        """Gives up a pool; its memory goes back to the device. Not the one in use."""
        self._pools.pop(number, None)

    def empty_cache(self) -> None:
        """Gives cached memory back to the device."""
        self._torch.empty_cache()


class Replay:
    """Requests, asked of an allocator in order, until there is no memory for one of them.

    Attributes:
        done: The request that each allocation and free of the allocator's trace answers, in their
            order; -1: none, it was done to find memory.
        failed_request: The one for which there was no memory, though there was in the recording.
        failed: How many there was no memory for, as in the recording.
        fitted: For how many of these there was some now.
        freed_early: Blocks whose free waited for a stream, and was waited for to find memory.
        tried_again: How many of the allocator's retries are of what was tried again after that.
    """

    def __init__(self, allocator: Allocator) -> None:
        """Nothing has been asked yet."""
        self._allocator = allocator
        self._left: dict[int, None] = {}  # blocks whose free waits
        self._address: dict[int, int] = {}
        self.done: list[int] = []
        self.failed_request: int | None = None
        self.failed = self.fitted = self.freed_early = self.tried_again = 0

    def ask(self, requests: dict[str, Any]) -> None:
        """Asks for all of them; `requests` are columns by name."""
        try:
            self._ask(requests)
        finally:
            self._allocator.use_pool(0)  # a pool in use cannot be given up

    def _ask(self, requests: dict[str, Any]) -> None:
        allocator, address, left, done = self._allocator, self._address, self._left, self.done
        alloc, free, streams = allocator.alloc, allocator.free, allocator.streams
        columns = [requests[name].tolist() for name in ASKED]
        pool_in_use = 0
        for number, (kind, block, size, stream, pool) in enumerate(zip(*columns, strict=True)):
            if kind == FREE:
                left.pop(block, None)
                if block in address:
                    free(address.pop(block))
                    done.append(number)
                continue
            if kind == LEAVE:
                left[block] = None
                continue
            wanted = pool if kind in (ALLOCATE, FAIL) else 0
            if wanted != pool_in_use:
                allocator.use_pool(wanted)
                pool_in_use = wanted
            if kind == ALLOCATE:
                try:
                    address[block] = alloc(size, streams[stream])
                except torch.OutOfMemoryError:
                    if not self._find_memory(block, size, streams[stream]):
                        self.failed_request = number
                        return
                done.append(number)
            elif kind == FAIL:
                self._try(size, streams[stream])
            elif kind == RELEASE_POOL:
                allocator.release_pool(pool)
            else:
                assert kind == EMPTY_CACHE
                allocator.empty_cache()

    def _find_memory(self, block: int, size_bytes: int, stream: int) -> bool:
        """Tries once more, after the frees that wait, as the allocator itself would."""
        if not self._left:
            return False
        self.freed_early += len(self._left)
        for each in self._left:
            self._allocator.free(self._address.pop(each))
            self.done.append(-1)
        self._left.clear()
        retries = self._allocator.retries()
        try:
            self._address[block] = self._allocator.alloc(size_bytes, stream)
        except torch.OutOfMemoryError:
            return False
        finally:
            self.tried_again += self._allocator.retries() - retries
        return True

    def _try(self, size_bytes: int, stream: int) -> None:
        """What failed in the recording; nobody has freed it there."""
        try:
            self._allocator.free(self._allocator.alloc(size_bytes, stream))
        except torch.OutOfMemoryError:
            self.failed += 1
        else:
            self.done += [-1, -1]
            self.fitted += 1


def main(folder: str, capacity: str, needed: str) -> None:
    """Leaves `trace.pickle`, `done.npy` and `answer.json`; if nothing was asked the last alone.

    Args:
        folder: Where they go, and where `requests.npz` is, the columns of the requests.
        capacity: How many bytes the allocator may reserve at most; "": all there are.
        needed: How many have to be there.
    """
    with np.load(Path(folder, "requests.npz")) as file:
        requests = dict(file)
    backend = automatic()
    if backend == "cpu":
        _answer(folder, backend=backend)
        return
    allocator = Allocator(backend, int(requests["stream"].max(initial=0)) + 1)
    free_bytes, _ = allocator.memory()
    if free_bytes < int(needed):
        _answer(folder, backend=backend, free_bytes=free_bytes)
        return
    limit_bytes = int(capacity) if capacity and int(capacity) < free_bytes else None
    if limit_bytes is not None:
        allocator.limit(limit_bytes)
    replay = Replay(allocator)
    entries = 100_000 + EVENTS_EACH * len(requests["kind"])
    with Tracer(
        device=backend, context=None, trace_alloc_max_entries=entries, on_oom=False
    ) as tracer:
        began = time.perf_counter()
        replay.ask(requests)
        seconds = time.perf_counter() - began
        tracer.dump(Path(folder, "trace.pickle"))
    np.save(Path(folder, "done.npy"), np.array(replay.done, np.int64))
    _answer(
        folder,
        backend=backend,
        failed_request=replay.failed_request,
        failed=replay.failed,
        fitted=replay.fitted,
        freed_early=replay.freed_early,
        retries=allocator.retries() - replay.tried_again,
        free_bytes=free_bytes,
        limit_bytes=limit_bytes,
        seconds=seconds,
        untraced=tracer.stats()["untraced"],
    )


def _answer(folder: str, **told: Any) -> None:
    Path(folder, "answer.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
