"""A process that makes requests to the real allocator of a simulated device.

    python real_allocator.py FOLDER

FOLDER has the file `requests.npz`, with the columns of `Requests`, `capacity_bytes`, `has_limit`
and `limit_bytes`. The process writes `answer.npz`, with the reserved bytes and the address after
each request, and the calls to the device.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import simulated  # type: ignore[import-not-found]  # the module of tests/devices
import torch

from pytracer.analysis.requests import ALLOCATE, EMPTY_CACHE, FREE, LEAVE, RELEASE_POOL
from pytracer.backends.devices import present_accelerator
from pytracer.experiments.replay_process import Allocator

CALLS = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")


def answer(requests: dict[str, Any]) -> dict[str, Any]:
    """Return what the real allocator answered; requests after an out-of-memory are made."""
    backend = present_accelerator()
    assert backend is not None
    simulated.set_capacity(int(requests["capacity_bytes"]))
    allocator = Allocator(backend, int(requests["stream"].max(initial=0)) + 1)
    native = torch._C if backend == "cuda" else sys.modules["torch_npu"]._C
    module = getattr(torch, backend)
    if requests["has_limit"]:
        allocator.limit(int(requests["limit_bytes"]))
    module.memory._record_memory_history(max_entries=10_000_000, stacks="python", context=None)
    statistics = getattr(native, f"_{backend}_memoryStats")
    order = np.argsort(allocator.streams)  # the allocator orders streams by handle
    address: dict[int, int] = {}
    in_use = 0
    reserved, addresses, ooms = [], [], []
    names = ("kind", "block", "size_bytes", "stream", "pool")
    rows = zip(*(requests[name].tolist() for name in names), strict=True)
    for number, (kind, block, size, stream, pool) in enumerate(rows):
        place = 0
        if kind == ALLOCATE:
            if pool != in_use:
                allocator.use_pool(pool)
                in_use = pool
            try:
                place = address[block] = allocator.alloc(size, allocator.streams[order[stream]])
            except torch.OutOfMemoryError:
                ooms.append(number)
        elif kind == FREE:
            if block in address:
                allocator.free(address.pop(block))
        elif kind != LEAVE:
            if in_use != 0:
                allocator.use_pool(0)
                in_use = 0
            if kind == EMPTY_CACHE:
                allocator.empty_cache()
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
