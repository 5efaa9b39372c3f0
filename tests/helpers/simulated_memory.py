"""What torch's allocator holds on a simulated device."""

from contextlib import contextmanager

import torch
from devices import backends

MB = 1 << 20
CAPACITY = 512 * MB


backend = backends.backend


def empty(size_bytes, device=0):
    return torch.empty(size_bytes, dtype=torch.uint8, device=f"{backend.name}:{device}")


def statistic(name, device=0):
    return backend.api.memory_stats(device)[name]


def actions(device=0):
    return [event["action"] for event in backend.api.memory._snapshot()["device_traces"][device]]


@contextmanager
def history(**options):
    backend.api.memory._record_memory_history(**{"stacks": "python", **options})
    try:
        yield
    finally:
        backend.api.memory._record_memory_history(None)


# Pools and graphs.


def pools():
    return {
        tuple(segment["segment_pool_id"]) for segment in backend.api.memory._snapshot()["segments"]
    }
