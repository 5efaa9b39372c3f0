"""Gauges of the recorded devices for Prometheus, by `prometheus_client`.

pytracer.integrations.prometheus.register()
prometheus_client.start_http_server(9000)
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytracer
from pytracer.backends.names import ACCELERATORS
from pytracer.integrations.packages import needs
from pytracer.tracing import process

_ALLOCATED, _RESERVED = "allocated_bytes.all.current", "reserved_bytes.all.current"

Counters = Mapping[str, Any]  # of a device: the recorder's, and those of torch's allocator

METRICS: dict[str, tuple[str, Callable[[Counters], float | None]]] = {
    "pytracer_allocated_bytes": (
        "Bytes in blocks that the program holds. On the CPU, only those made while recording.",
        lambda counters: counters.get(_ALLOCATED, counters["live_block_bytes"]),
    ),
    "pytracer_reserved_bytes": (
        "Bytes that the allocator holds on the device.",
        lambda counters: counters.get(_RESERVED),
    ),
    "pytracer_peak_allocated_bytes": (
        "The peak of allocated bytes since the start, or since torch's peak was reset.",
        lambda counters: counters.get("allocated_bytes.all.peak"),
    ),
    "pytracer_fragmentation_ratio": (
        "Free bytes inside segments with blocks in use, as a share of the reserved bytes.",
        lambda counters: (
            counters["inactive_split_bytes.all.current"] / max(counters[_RESERVED], 1)
            if _RESERVED in counters
            else None
        ),
    ),
    "pytracer_out_of_memory_total": (
        "Out-of-memory errors of the allocator.",
        lambda counters: counters.get("num_ooms"),
    ),
    "pytracer_recorded_events_total": (
        "Events that pytracer has recorded.",
        lambda counters: counters["recorded"],
    ),
    "pytracer_overwritten_events_total": (
        "Recorded events that newer ones have overwritten in the ring.",
        lambda counters: counters["overwritten"],
    ),
}
"""The help of each figure, and its value; None: the device does not have it."""


def figures(tracer: "pytracer.Tracer | None" = None) -> dict[str, dict[str, float]]:
    """Return the value of each figure on each recorded device, such as "cuda:0". Never raises.

    Without a `tracer`, all tracers of the process that record are read.
    """
    found: dict[str, dict[str, float]] = {name: {} for name in METRICS}
    tracers: Iterable[Any] = [*process.recording] if tracer is None else [tracer]
    for each in tracers:
        with contextlib.suppress(Exception):  # another thread may stop the tracer meanwhile
            for device, counters in _devices(each):
                for name, (_, value_of) in METRICS.items():
                    if (value := value_of(counters)) is not None:
                        found[name].setdefault(device, float(value))
    return found


def _devices(tracer: "pytracer.Tracer") -> Iterator[tuple[str, Counters]]:
    """Yield the name and the counters of each recorded device.

    The accelerator is not asked before it is initialised, because that would initialise it.
    """
    for counters in tracer.stats()["devices"]:
        if (index := counters["device"]) < 0:
            yield "cpu", counters
        for backend in ACCELERATORS if index >= 0 else ():
            module = getattr(sys.modules.get("torch"), backend, None)
            if module is not None and module.is_initialized():
                yield f"{backend}:{index}", {**counters, **module.memory_stats(index)}
                break


class Collector:
    """Reads the figures each time that Prometheus asks."""

    def __init__(self, tracer: "pytracer.Tracer | None" = None) -> None:
        self._tracer = tracer

    def describe(self) -> list[Any]:
        """Return the metrics without values, so that registering reads nothing."""
        return [*self._families({})]

    def collect(self) -> Iterator[Any]:
        """Return the metrics, with a value for each device."""
        return self._families(figures(self._tracer))

    def _families(self, values: Mapping[str, Mapping[str, float]]) -> Iterator[Any]:
        with needs("prometheus", "prometheus-client"):
            from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, (text, _) in METRICS.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name, text, labels=["device"])
            for device, value in values.get(name, {}).items():
                family.add_metric([device], value)
            yield family


def register(tracer: "pytracer.Tracer | None" = None, registry: Any = None) -> Collector:
    """Add the gauges to a registry, from which `prometheus_client` serves or pushes them.

    Args:
        tracer: The tracer; None: all tracers of the process that record.
        registry: A `prometheus_client.CollectorRegistry`; None: the default one.

    Returns:
        The collector, for `registry.unregister()`.
    """
    with needs("prometheus", "prometheus-client"):
        from prometheus_client import REGISTRY

    collector = Collector(tracer)
    (registry or REGISTRY).register(collector)
    return collector
