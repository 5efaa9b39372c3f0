"""Gauges of the recorded devices for OpenTelemetry, by `opentelemetry-api`.

    pytracer.integrations.opentelemetry.register()

The program sets the meter provider, or `opentelemetry-instrument` does.
"""

from collections.abc import Callable
from typing import Any

import pytracer
from pytracer.integrations import gauges
from pytracer.integrations.packages import needs

with needs("opentelemetry", "opentelemetry-api"):
    from opentelemetry import metrics

_UNITS = {"bytes": "By", "ratio": "1", "count": "1"}


def register(tracer: "pytracer.Tracer | None" = None, meter: Any = None) -> None:
    """Create the instruments. The meter's provider reads them, and decides when.

    Args:
        tracer: The tracer; None: all tracers of the process that record.
        meter: An OpenTelemetry meter; None: the meter "pytracer" of the global provider.
    """
    meter = metrics.get_meter("pytracer", pytracer.__version__) if meter is None else meter
    for metric in gauges.METRICS:
        kind = "counter" if metric.unit == "count" else "gauge"
        create = getattr(meter, f"create_observable_{kind}")
        name = metric.name.replace("pytracer_", "pytracer.", 1)
        create(name, [_observer(tracer, metric)], _UNITS[metric.unit], metric.help)


def _observer(
    tracer: "pytracer.Tracer | None", metric: gauges.Metric
) -> Callable[[Any], list[Any]]:
    def observe(_options: Any) -> list[Any]:
        return [
            metrics.Observation(value, {"device": device})
            for device, value in gauges.read(tracer, metric)
        ]

    return observe
