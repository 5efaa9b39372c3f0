"""The settings of an accelerator's allocator, before and after a test."""

from types import ModuleType
from typing import Any

import torch
from processes import environment

from pytracer import Tracer
from pytracer.settings import change

MIB = 2**20
LARGE = 30 * MIB
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF")


# Settings next to expandable segments that a string without them resets to their defaults. On an
# NPU they can be changed only before it is initialised; see the tests with processes.
OTHER_SETTINGS = {"cuda": "garbage_collection_threshold:0.8,max_split_size_mb:100", "npu": ""}


class State:
    """The allocator's settings and behaviour, for comparisons."""

    def __init__(self, backend: str, device: ModuleType) -> None:
        self.backend = backend
        self.device = device

    def settings(self) -> str | None:
        return change.in_force(self.backend)

    def values(self) -> dict[str, Any]:
        """Return the settings that CUDA shows."""
        found: dict[str, Any] = self.device.memory._snapshot().get("allocator_settings", {})
        unlimited = [name for name in found if name.startswith("max_") and found[name] < 0]
        return {**found, **dict.fromkeys(unlimited, -1)}

    def expandable(self) -> bool:
        """Return whether a new segment is expandable, from its events in a recording."""
        self.device.empty_cache()
        with Tracer(device=self.backend) as tracer:
            block = torch.empty(LARGE, dtype=torch.uint8, device=self.backend)
            del block
        actions = {
            event["action"]
            for event in tracer.snapshot()["device_traces"][0]
            if event["action"].startswith("segment") and event["size"] >= LARGE
        }
        self.device.empty_cache()
        assert actions in ({"segment_map"}, {"segment_alloc"})
        return actions == {"segment_map"}

    def all(self) -> tuple[object, ...]:
        return self.settings(), self.values(), self.expandable()


PROGRAM = """
import sys, torch
backend, change = sys.argv[1:3]
if backend == "npu":
    import torch_npu
import pytracer
from pytracer.settings.change import in_force
device = getattr(torch, backend)

def show():
    block = torch.empty(30 << 20, dtype=torch.uint8, device=backend)
    segment, = device.memory._snapshot()["segments"]
    print(in_force(backend), segment["is_expandable"])
    del block, segment
    device.empty_cache()

print(in_force(backend))
change = pytracer.allocator_settings(change)
print(in_force(backend), device.is_initialized())
if sys.argv[3:] == ["before"]:
    change.__exit__(None, None, None)
    print(in_force(backend), device.is_initialized())
    show()
else:
    show()
    change.__exit__(None, None, None)
    show()
"""


def without_settings(**changes: str) -> dict[str, str]:
    """Return the environment of a program without variables of settings, except `changes`."""
    kept = {name: value for name, value in environment().items() if name not in VARIABLES}
    return {**kept, **changes}
