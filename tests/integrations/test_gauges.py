"""Test the gauges on the CPU, with the official client libraries."""

from collections.abc import Iterator

import pytest
import tools
import torch

import pytracer
from pytracer.integrations.prometheus import figures, register


@pytest.fixture
def tracer() -> Iterator[pytracer.Tracer]:
    with pytracer.Tracer(device="cpu", trace_alloc_max_entries=10) as tracer:
        yield tracer


def test_prometheus(tracer: pytracer.Tracer) -> None:
    # GIVEN a registry with the gauges, and a tracer that records
    tools.packages("prometheus_client")
    import prometheus_client as client

    registry = client.CollectorRegistry()
    collector = register(registry=registry)
    # WHEN the program allocates
    kept = torch.ones(1_000_000)
    text = client.generate_latest(registry).decode()
    # THEN a reading has the memory of the CPU's blocks
    value = registry.get_sample_value("pytracer_allocated_bytes", {"device": "cpu"})
    assert value is not None
    assert value >= kept.nbytes
    assert 'pytracer_recorded_events_total{device="cpu"}' in text
    # AND no figures that the CPU does not have
    assert "pytracer_reserved_bytes{" not in text
    # AND the next reading has new figures
    del kept
    after = registry.get_sample_value("pytracer_allocated_bytes", {"device": "cpu"})
    assert after is not None
    assert after <= value - 4_000_000
    for _ in range(10):
        torch.ones(100)
    overwritten = registry.get_sample_value("pytracer_overwritten_events_total", {"device": "cpu"})
    assert overwritten
    # AND the collector can be removed
    registry.unregister(collector)
    assert "pytracer" not in client.generate_latest(registry).decode()


def test_a_tracer_that_fails_has_no_figures() -> None:
    # GIVEN something that is no tracer
    broken = object()
    # THEN a reading has no figure, and does not raise
    assert not any(figures(broken).values())  # type: ignore[arg-type]
