"""torch's recorder functions, which pytracer replaces, as a program calls them."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

HUGE = 1 << 50
NAMES = ("_record_memory_history", "_snapshot", "_dump_snapshot", "memory_snapshot")


class Torch:
    """Torch's functions as a program finds them, and the original ones."""

    def __init__(self, backend: str, device: ModuleType) -> None:
        self.backend = backend
        self.device = device
        self.core: Any = sys.modules["torch" if backend == "cuda" else "torch_npu"]._C
        self.history_enabled = f"_{backend}_isHistoryEnabled"
        self.attach = f"_{backend}_attach_out_of_memory_observer"
        self.places = [(device.memory, name) for name in NAMES] + [
            (device, "memory_snapshot"),
            (self.core, self.history_enabled),
            (self.core, self.attach),
        ]
        self.before = {name: getattr(holder, name) for holder, name in self.places}

    def now(self) -> list[Any]:
        return [getattr(holder, name) for holder, name in self.places]

    def record(self, *args: Any, **kwargs: Any) -> None:
        self.device.memory._record_memory_history(*args, **kwargs)

    def snapshot(self) -> dict[str, Any]:
        snapshot: dict[str, Any] = self.device.memory._snapshot()
        return snapshot

    def is_enabled(self) -> bool:
        return bool(getattr(self.core, self.history_enabled)())

    def is_native_enabled(self) -> bool:
        """Return whether torch's own recorder is enabled."""
        return bool(self.before[self.history_enabled]())

    def observe(self, observer: Callable[..., None]) -> None:
        getattr(self.core, self.attach)(observer)

    def new(self, size: int = 1000) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.backend)

    def run_out(self) -> str:
        with pytest.raises(torch.OutOfMemoryError) as raised:
            self.new(HUGE)
        return str(raised.value)


def events(snapshot: dict[str, Any], device: int = 0) -> list[tuple[str, int]]:
    return [
        (event["action"], event["size"])
        for event in snapshot["device_traces"][device]
        if event["action"] != "snapshot"
    ]


def blocks(snapshot: dict[str, Any]) -> dict[int, list[str]]:
    """Return the function names in the stacks of allocated blocks, by address."""
    return {
        block["address"]: [frame["name"] for frame in block["frames"]]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def deep(program: Torch, levels: int = 40) -> torch.Tensor:
    return deep(program, levels - 1) if levels else program.new()
