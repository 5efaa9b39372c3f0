"""The process of a replay: requests from its allocator what the recorded program requested.

    python -m pytracer.experiments.replay_process FOLDER CAPACITY NEEDED

The environment has the allocator's settings; `main` describes the arguments.
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

from pytracer.analysis.requests import (
    ALLOCATE,
    EMPTY_CACHE,
    FAIL,
    FREE,
    LEAVE,
    RELEASE_POOL,
    REQUEST_COLUMNS,
)
from pytracer.backends.devices import present_accelerator
from pytracer.backends.running_torch import torch_module
from pytracer.tracing.tracer import Tracer

EVENTS_PER_REQUEST = 4
"""The most events of a request on average: an allocation and its free make up to three events,
and segments make some."""


class Allocator:
    """The allocator of the current device, before its first allocation."""

    def __init__(self, backend: str, streams: int) -> None:
        """Initialise the device and make streams.

        Args:
            backend: "cuda" or "npu".
            streams: The number of streams, including the default one.
        """
        self._torch = torch_module(backend)
        self._torch.init()
        native = torch._C if backend == "cuda" else sys.modules["torch_npu"]._C
        prefix = f"_{backend}_{backend}CachingAllocator_raw_"
        self.alloc: Callable[[int, int], int] = getattr(native, f"{prefix}alloc")
        self.free: Callable[[int], None] = getattr(native, f"{prefix}delete")
        self._kept_streams = [self._torch.Stream(priority=-(i % 2)) for i in range(1, streams)]
        self.streams = [0, *(getattr(stream, f"{backend}_stream") for stream in self._kept_streams)]
        self._pools: dict[int, Any] = {}
        self._in_use = ExitStack()

    def limit(self, capacity_bytes: int) -> None:
        """Limit what the allocator reserves."""
        _, total_bytes = self.memory()
        fraction = capacity_bytes / total_bytes
        while int(fraction * total_bytes) < capacity_bytes:  # as torch computes it
            fraction = math.nextafter(fraction, 1)
        self._torch.set_per_process_memory_fraction(fraction)

    def memory(self) -> tuple[int, int]:
        """Return the free bytes and the total bytes of the device."""
        free_bytes, total_bytes = self._torch.mem_get_info()
        return free_bytes, total_bytes

    def retries(self) -> int:
        """Return how often the allocator gave back its cache in order to allocate."""
        return int(self._torch.memory_stats()["num_alloc_retries"])

    def use_pool(self, number: int) -> None:
        """Allocate from a pool from now on; 0 is the default pool."""
        self._in_use.close()
        if number == 0:
            return
        if number not in self._pools:
            self._pools[number] = self._torch.MemPool()
        self._in_use.enter_context(self._torch.use_mem_pool(self._pools[number]))

    def release_pool(self, number: int) -> None:
        """Give up a pool that is not in use; its memory returns to the device."""
        self._pools.pop(number, None)

    def empty_cache(self) -> None:
        """Give cached memory back to the device."""
        self._torch.empty_cache()


class Replay:
    """Replays requests in order, until one of them finds no memory.

    Attributes:
        done: The request of each allocation and free in the allocator's trace, in order; -1: it
            belongs to no request, but was done to find memory.
        failed_request: The request that found no memory, but did in the recording; None: none.
        ooms: The request of each out-of-memory, in order; -1: a second attempt found memory.
        fitted: How many allocations that failed in the recording succeeded.
        freed_early: Blocks that were freed before the streams that they wait for, to find memory.
        retries_of_attempts: How many of the allocator's retries belong to second attempts.
    """

    def __init__(self, allocator: Allocator) -> None:
        """Make a replay that has requested nothing yet."""
        self._allocator = allocator
        self._left: dict[int, None] = {}  # blocks whose free waits for a stream
        self._address: dict[int, int] = {}
        self.done: list[int] = []
        self.ooms: list[int] = []
        self.failed_request: int | None = None
        self.fitted = self.freed_early = self.retries_of_attempts = 0

    def run(self, requests: dict[str, Any]) -> None:
        """Replay requests, which are columns by name."""
        try:
            self._run(requests)
        finally:
            self._allocator.use_pool(0)  # a pool that is in use cannot be given up

    def _run(self, requests: dict[str, Any]) -> None:
        allocator, address, left, done = self._allocator, self._address, self._left, self.done
        alloc, free, streams = allocator.alloc, allocator.free, allocator.streams
        columns = [requests[name].tolist() for name in REQUEST_COLUMNS]
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
                    self.ooms.append(number)
                    if not self._find_memory(number, block, size, streams[stream]):
                        self.failed_request = number
                        return
                done.append(number)
            elif kind == FAIL:
                self._retry_failed(number, size, streams[stream])
            elif kind == RELEASE_POOL:
                allocator.release_pool(pool)
            else:
                assert kind == EMPTY_CACHE
                allocator.empty_cache()

    def _find_memory(self, number: int, block: int, size_bytes: int, stream: int) -> bool:
        """Free the blocks that wait for streams, as the allocator would, and try a second time."""
        if not self._left:
            return False
        self.freed_early += len(self._left)
        for waiting_block in self._left:
            self._allocator.free(self._address.pop(waiting_block))
            self.done.append(-1)
        self._left.clear()
        self.ooms[-1] = -1
        retries = self._allocator.retries()
        try:
            self._address[block] = self._allocator.alloc(size_bytes, stream)
        except torch.OutOfMemoryError:
            self.ooms.append(number)
            return False
        finally:
            self.retries_of_attempts += self._allocator.retries() - retries
        return True

    def _retry_failed(self, number: int, size_bytes: int, stream: int) -> None:
        """Request what failed in the recording, and free it, because the recording has no free."""
        try:
            self._allocator.free(self._allocator.alloc(size_bytes, stream))
        except torch.OutOfMemoryError:
            self.ooms.append(number)
        else:
            self.done += [-1, -1]
            self.fitted += 1


def main(folder: str, capacity: str, needed: str) -> None:
    """Replay requests, and write `trace.pickle`, `done.npy` and `answer.json`.

    If the device is missing or too small, only `answer.json` is written.

    Args:
        folder: The folder of these files, and of `requests.npz`, the columns of the requests.
        capacity: The most bytes that the allocator may reserve; "": all of the device.
        needed: The bytes that the device must have free.
    """
    with np.load(Path(folder, "requests.npz")) as file:
        requests = dict(file)
    backend = present_accelerator()
    if backend is None:
        _write_answer(folder, backend=None)
        return
    allocator = Allocator(backend, int(requests["stream"].max(initial=0)) + 1)
    free_bytes, _ = allocator.memory()
    if free_bytes < int(needed):
        _write_answer(folder, backend=backend, free_bytes=free_bytes)
        return
    limit_bytes = int(capacity) if capacity and int(capacity) < free_bytes else None
    if limit_bytes is not None:
        allocator.limit(limit_bytes)
    replay = Replay(allocator)
    entries = 100_000 + EVENTS_PER_REQUEST * len(requests["kind"])
    with Tracer(
        device=backend, context=None, trace_alloc_max_entries=entries, on_oom=False
    ) as tracer:
        began = time.perf_counter()
        replay.run(requests)
        seconds = time.perf_counter() - began
        tracer.dump(Path(folder, "trace.pickle"))
    np.save(Path(folder, "done.npy"), np.array(replay.done, np.int64))
    _write_answer(
        folder,
        backend=backend,
        failed_request=replay.failed_request,
        ooms=replay.ooms,
        fitted=replay.fitted,
        freed_early=replay.freed_early,
        retries=allocator.retries() - replay.retries_of_attempts,
        free_bytes=free_bytes,
        limit_bytes=limit_bytes,
        seconds=seconds,
        untraced=tracer.stats()["untraced"],
    )


def _write_answer(folder: str, **answer: Any) -> None:
    Path(folder, "answer.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
