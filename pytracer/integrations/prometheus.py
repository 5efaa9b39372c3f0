"""Gauges of the recorded devices for Prometheus, by `prometheus_client`.

pytracer.integrations.prometheus.register()
prometheus_client.start_http_server(9000)
"""

from collections.abc import Iterator
from typing import Any

import pytracer
from pytracer.integrations import gauges
from pytracer.integrations.packages import needs

with needs("prometheus", "prometheus-client"):
    from prometheus_client import REGISTRY
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily


class Collector:
    """Reads the counters of allocator and recorder each time that Prometheus asks."""

    def __init__(self, tracer: "pytracer.Tracer | None" = None) -> None:
        self._tracer = tracer

    def describe(self) -> list[Any]:
        """Return the metrics without values, so that registering reads nothing."""
        return [self._family(metric) for metric in gauges.METRICS]

    def collect(self) -> Iterator[Any]:
        """Yield the metrics, with a value for each device."""
        for metric in gauges.METRICS:
            family = self._family(metric)
            for device, value in gauges.read(self._tracer, metric):
                family.add_metric([device], value)
            yield family

    def _family(self, metric: gauges.Metric) -> Any:
        kind = CounterMetricFamily if metric.unit == "count" else GaugeMetricFamily
        return kind(metric.name, metric.help, labels=["device"])


def register(tracer: "pytracer.Tracer | None" = None, registry: Any = REGISTRY) -> Collector:
    """Add the gauges to a registry, from which `prometheus_client` serves or pushes them.

    Args:
        tracer: The tracer; None: all tracers of the process that record.
        registry: A `prometheus_client.CollectorRegistry`.

    Returns:
        The collector, for `registry.unregister()`.
    """
    collector = Collector(tracer)
    registry.register(collector)
    return collector
