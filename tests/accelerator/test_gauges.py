"""Test the figures for monitoring systems against torch's own counters."""

import pytest
import torch

import pytracer
from pytracer.integrations.prometheus import figures


def test_figures_of_an_accelerator(backend: str) -> None:
    # GIVEN a program with memory in use, and memory that is free next to it
    module = getattr(torch, backend)
    device, name = torch.device(backend, 0), f"{backend}:0"
    with pytracer.Tracer(device=backend) as tracer:
        kept = [torch.ones(700_000, dtype=torch.uint8, device=device) for _ in range(6)]
        del kept[::2]
        # WHEN memory runs out, and the figures are read
        before = figures(tracer)["pytracer_out_of_memory_total"][name]
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 50, dtype=torch.uint8, device=device)
        found = {metric: values[name] for metric, values in figures(tracer).items()}
        stats = module.memory_stats(0)
    # THEN they are those of torch's allocator
    assert found["pytracer_allocated_bytes"] == module.memory_allocated(0)
    assert found["pytracer_reserved_bytes"] == module.memory_reserved(0)
    assert found["pytracer_peak_allocated_bytes"] == module.max_memory_allocated(0)
    assert found["pytracer_out_of_memory_total"] == before + 1
    free = stats["inactive_split_bytes.all.current"]
    assert found["pytracer_fragmentation_ratio"] == free / module.memory_reserved(0)
    assert found["pytracer_fragmentation_ratio"] > 0
    assert found["pytracer_recorded_events_total"] > 10
    del kept
