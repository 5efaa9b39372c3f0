"""Reports on small snapshots with numbers counted by hand."""

from typing import Any

import reference_reader
from synthetic_program import FIRST_TIME_US

from pytracer.analysis.report import DeviceReport, stats

SEGMENT = 2 * 2**20
FRAMES = [{"filename": "train.py", "name": "step", "line": 3}]


def event(action: str, address: int, size: int, phase: str = "") -> dict[str, Any]:
    key = "device_free" if action == "oom" else "addr"
    return {
        "action": action,
        key: address,
        "size": size,
        "stream": 0,
        "frames": FRAMES,
        "user_metadata": phase,
    }


def cuda_content(**device_metadata: object) -> dict[str, Any]:
    """Return a 2 MiB segment: A and B are allocated, A is freed, and a 3 MiB request fails."""
    events = [
        event("segment_alloc", 0, SEGMENT),
        event("alloc", 0, 500, "rollout"),
        event("alloc", 512, 1000, "update"),
        event("free_requested", 0, 500),
        event("free_completed", 0, 500),
        event("oom", 4096, 3 * 2**20, "update"),
        event("snapshot", 0, 0),
    ]
    for i, entry in enumerate(events):
        entry["time_us"] = FIRST_TIME_US + 10 * i
    blocks = [
        {"address": 0, "size": 512, "state": "inactive"},
        {"address": 512, "size": 1024, "requested_size": 1000, "state": "active_allocated"},
        {"address": 1536, "size": SEGMENT - 1536, "state": "inactive"},
    ]
    segment = {"device": 0, "address": 0, "total_size": SEGMENT, "blocks": blocks}
    device = {"index": 0, "is_cpu": False, "overwritten": 0, "steps": [[4, 0], [5, 3]]}
    device |= device_metadata
    return {
        "segments": [segment],
        "device_traces": [events],
        "pytracer": {"backends": ["cuda"], "devices": [device], "rank": 3},
    }


def only_device(content: Any, **options: Any) -> DeviceReport:
    (device,) = stats(reference_reader.convert(content, "made.pickle"), **options).devices
    return device
