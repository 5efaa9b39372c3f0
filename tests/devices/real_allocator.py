"""A process that makes requests to torch's own allocator on a simulated device.

    python real_allocator.py FOLDER

A block that is left is a tensor that another stream uses, on a busy device. Its free completes when
the first `FREE` of such a block, after which all left blocks are freed, makes the device idle.

FOLDER has the file `requests.npz`, with the columns of `Requests`, `capacity_bytes`, `has_limit`
and `limit_bytes`. The process writes `answer.npz`, with the reserved bytes and the address after
each request, and the calls to the device.
"""

import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import simulated
import torch

from pytracer.analysis.requests import ALLOCATE, EMPTY_CACHE, FREE, LEAVE, RELEASE_POOL
from pytracer.backends.devices import present_accelerator
from pytracer.backends.running_torch import torch_module

CALLS = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")


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


def answer(requests: dict[str, Any]) -> dict[str, Any]:
    """Return what the real allocator answered; requests after an out-of-memory are made."""
    backend = present_accelerator()
    assert backend is not None
    simulated.set_capacity(int(requests["capacity_bytes"]))
    streams = int(requests["stream"].max(initial=0)) + 1
    allocator = Allocator(backend, streams)
    native = torch._C if backend == "cuda" else sys.modules["torch_npu"]._C
    module = getattr(torch, backend)
    if requests["has_limit"]:
        allocator.limit(int(requests["limit_bytes"]))
    module.memory._record_memory_history(max_entries=10_000_000, stacks="python", context=None)
    statistics = getattr(native, f"_{backend}_memoryStats")
    default = module.default_stream()
    own_streams = {getattr(default, f"{backend}_stream"): default}
    own_streams |= {handle: module.ExternalStream(handle) for handle in allocator.streams[1:]}
    handles = sorted(own_streams)  # as the allocator orders streams
    other_stream = module.Stream()
    is_left = set(requests["block"][requests["kind"] == LEAVE].tolist())
    address: dict[int, int] = {}
    tensors: dict[int, torch.Tensor] = {}
    in_use = 0
    reserved, addresses, ooms = [], [], []
    names = ("kind", "block", "size_bytes", "stream", "pool")
    rows = zip(*(requests[name].tolist() for name in names), strict=True)
    simulated.set_busy(True)
    for number, (kind, block, size, stream, pool) in enumerate(rows):
        place = 0
        if kind == ALLOCATE:
            if pool != in_use:
                allocator.use_pool(pool)
                in_use = pool
            try:
                if block in is_left:
                    with module.stream(own_streams[handles[stream]]):
                        tensor = torch.empty(size, dtype=torch.uint8, device=backend)
                    tensors[block] = tensor
                    place = tensor.data_ptr()
                    del tensor
                else:
                    place = address[block] = allocator.alloc(size, handles[stream])
            except torch.OutOfMemoryError:
                ooms.append(number)
            simulated.set_busy(True)  # the allocator has seen which frees are complete
        elif kind == LEAVE:
            if in_use != 0:  # torch 2.12.1 delays such frees further while a pool is in use
                allocator.use_pool(0)
                in_use = 0
            if block in tensors:
                tensors[block].record_stream(other_stream)
                del tensors[block]
        elif kind == FREE:
            if block in address:
                allocator.free(address.pop(block))
            elif block in is_left:
                simulated.set_busy(False)
                module.synchronize()
        else:
            if in_use != 0:
                allocator.use_pool(0)
                in_use = 0
            if kind == EMPTY_CACHE:
                allocator.empty_cache()
                simulated.set_busy(True)
            else:
                assert kind == RELEASE_POOL
                allocator.release_pool(pool)
        reserved.append(statistics(0)["reserved_bytes"]["all"]["current"])
        addresses.append(place)
    snapshot = module.memory._snapshot()
    calls = [
        (CALLS.index(event["action"]), event["addr"], event["size"])
        for event in snapshot["device_traces"][0]
        if event["action"] in CALLS
    ]
    return {
        "reserved_bytes": np.array(reserved, np.int64),
        "address": np.array(addresses, np.int64),
        "ooms": np.array(ooms, np.int64),
        "calls": np.array(calls, np.int64).reshape(-1, 3),
        "retries": allocator.retries(),
        "total_bytes": allocator.memory()[1],
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with np.load(folder / "requests.npz") as file:
        np.savez(folder / "answer.npz", **answer(dict(file)))
