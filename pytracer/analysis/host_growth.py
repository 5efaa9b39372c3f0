"""Whether the host memory of a process grows from step to step, and the recorded CPU does not."""

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from pytracer.analysis.device_data import DeviceData
from pytracer.reading.snapshot import used_devices

_LEAST_SAMPLES = 12
_LEAST_BYTES = 128 * 2**20
_LEAST_A_STEP = 2**20
"""The least growth that counts: what pytracer itself takes grows at first, by less than that."""


@dataclass(frozen=True)
class HostGrowth:
    """Host memory that grows from step to step.

    Attributes:
        bytes_per_step: By how much.
        first, last: The steps in which it grew.
        first_bytes, last_bytes: The memory of the process in these steps.
        is_cpu_recorded: Whether the tensors on the CPU are in the file, and are not what grows.
    """

    bytes_per_step: int
    first: int
    last: int
    first_bytes: int
    last_bytes: int
    is_cpu_recorded: bool


def host_growth(data: DeviceData) -> HostGrowth | None:
    """Return the growth of host memory, for the first device of a file; else, and without, None.

    It has to grow evenly in the last three quarters of the steps: a program that warms up, or that
    fills a cache, does not.
    """
    samples = data.snapshot.metadata.host_memory
    samples = samples[len(samples) // 4 :]
    if len(samples) < _LEAST_SAMPLES or used_devices(data.snapshot)[:1] != [data.device]:
        return None
    bounds = [len(samples) * i // 4 for i in range(5)]
    parts = [samples[begin:end] for begin, end in pairwise(bounds)]
    middles = [[median(column) for column in zip(*part, strict=True)] for part in parts]
    rises = [after - before for (_, before), (_, after) in pairwise(middles)]
    (first, first_bytes), (last, last_bytes) = samples[0], samples[-1]
    grown, a_step = sum(rises), sum(rises) / max(middles[-1][0] - middles[0][0], 1)
    if grown < _LEAST_BYTES or a_step < _LEAST_A_STEP or min(rises) < grown / 6:
        return None
    is_recorded = data.is_cpu is True and data.history.is_known
    if is_recorded:
        usage = data.history.usage.allocated_bytes
        begins = [event for step, event in data.boundaries if first <= step <= last]
        if not begins or 2 * (usage[begins[-1]] - usage[begins[0]]) > last_bytes - first_bytes:
            return None
    return HostGrowth(round(a_step), first, last, first_bytes, last_bytes, is_recorded)
