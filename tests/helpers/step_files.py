"""Files of steps, and the job that the tests of steps record."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from files_left import load

from pytracer import Tracer

Snapshot = dict[str, Any]


BYTE = torch.uint8


def names(folder: Path) -> list[str]:
    """Return the names of all files, without the host, and with P for the process id."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*.pickle"))
    return sorted(re.sub(r"torch_memory_.*_pid\d+", "P", name) for name in found)


def only(folder: Path) -> Snapshot:
    (path,) = folder.glob("*.pickle")
    return load(path)


def timeless(snapshot: Snapshot, device: int = 0) -> list[dict[str, Any]]:
    """Return what all files have of a device's events, without the markers of snapshots.

    Times become more exact with more readings of the clock. An allocation is told at the free if
    the file lacks it.
    """
    return [
        {**event, "time_us": 0, "allocation": 0}
        for event in snapshot["device_traces"][device]
        if event["action"] != "snapshot"
    ]


def allocated(snapshot: Snapshot) -> list[int]:
    return [event["size"] for event in snapshot["device_traces"][0] if event["action"] == "alloc"]


def job(tracer: Tracer, steps: int) -> None:
    for step in range(1, steps + 1):
        torch.empty(step, dtype=BYTE)
        tracer.step()


def optimizer(kind: Callable[..., Any] = torch.optim.SGD) -> Any:
    weight = torch.ones(1, requires_grad=True)
    weight.grad = torch.ones(1)
    return kind([weight], lr=0.1)
