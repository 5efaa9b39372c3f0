"""The figures that monitoring systems read, for `prometheus` and `opentelemetry`."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytracer
from pytracer.backends.names import ACCELERATORS
from pytracer.tracing import process


@dataclass(frozen=True)
class Metric:
    """A figure with its name in both systems."""

    name: str  # a count gets the suffix that the system asks for
    unit: str  # "bytes", "ratio", or "count": the figure only increases while the process runs
    help: str
    read: Callable[[Mapping[str, Any]], float | None]  # from a device's counters; None: has none


def _of_torch(key: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda counters: counters["torch"].get(key)


def _allocated(counters: Mapping[str, Any]) -> float | None:
    allocated: float | None = counters["torch"].get("allocated_bytes.all.current")
    return counters["live_block_bytes"] if allocated is None else allocated


def _fragmentation(counters: Mapping[str, Any]) -> float | None:
    free = counters["torch"].get("inactive_split_bytes.all.current")
    reserved = counters["torch"].get("reserved_bytes.all.current")
    if free is None or reserved is None:
        return None
    return float(free / reserved) if reserved else 0.0


METRICS = (
    Metric(
        "pytracer_allocated_bytes",
        "bytes",
        "Bytes in blocks that the program holds. On the CPU, blocks since the recording began.",
        _allocated,
    ),
    Metric(
        "pytracer_reserved_bytes",
        "bytes",
        "Bytes that the allocator holds on the device.",
        _of_torch("reserved_bytes.all.current"),
    ),
    Metric(
        "pytracer_peak_allocated_bytes",
        "bytes",
        "The most allocated bytes since the start, or since torch's peak was reset.",
        _of_torch("allocated_bytes.all.peak"),
    ),
    Metric(
        "pytracer_fragmentation_ratio",
        "ratio",
        "The part of the reserved bytes that is free, in segments that also have blocks in use.",
        _fragmentation,
    ),
    Metric(
        "pytracer_out_of_memory",
        "count",
        "Out-of-memory errors of the allocator.",
        _of_torch("num_ooms"),
    ),
    Metric(
        "pytracer_recorded_events",
        "count",
        "Events that pytracer has recorded.",
        lambda counters: counters["recorded"],
    ),
    Metric(
        "pytracer_overwritten_events",
        "count",
        "Recorded events that newer ones have overwritten in the ring.",
        lambda counters: counters["overwritten"],
    ),
)


def read(tracer: "pytracer.Tracer | None", metric: Metric) -> Iterator[tuple[str, float]]:
    """Yield the names of the recorded devices, and the figure of each that has it. Never raises.

    Without a `tracer`, all tracers of the process that record are read.
    """
    tracers: Iterable[Any] = [*process.recording] if tracer is None else [tracer]
    seen: set[str] = set()
    for each in tracers:
        try:
            for name, counters in _devices(each):
                value = metric.read(counters)
                if name not in seen and value is not None:
                    seen.add(name)
                    yield name, float(value)
        except Exception:  # another thread stops the tracer, say: the next reading has the figure
            continue


def _devices(tracer: "pytracer.Tracer") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each recorded device, and its counters: pytracer's, and torch's own.

    The accelerator is not asked before it is initialised, because that would initialise it.
    """
    torch: Any = sys.modules.get("torch")
    for counters in tracer.stats()["devices"]:
        index = counters["device"]
        if index < 0:
            yield "cpu", {**counters, "torch": {}}
            continue
        for backend in ACCELERATORS:
            module = getattr(torch, backend, None)
            if module is not None and module.is_initialized():
                torchs = module.memory_stats(index)
                yield f"{backend}:{index}", {**counters, "torch": torchs}
                break
