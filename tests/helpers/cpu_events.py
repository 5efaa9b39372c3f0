"""The events and live blocks of a tracer that records torch's CPU allocator."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from core_events import Frames
from torch import Tensor

from pytracer import ACTIONS, Tracer

Block = tuple[int, int]  # address, size in bytes


BYTE = torch.uint8


class Event(NamedTuple):
    """A row of `events()`."""

    action: str
    address: int
    size: int
    frames: Frames

    @property
    def block(self) -> Block:
        return self.address, self.size


def frames_of(listed: list[dict[str, Any]]) -> Frames:
    return [(frame["filename"], frame["name"], frame["line"]) for frame in listed]


def events_of(tracer: Tracer) -> list[Event]:
    return [
        Event(
            ACTIONS[row["action"]],
            int(row["address"]),
            int(row["size_bytes"]),
            frames_of(tracer.frames(int(row["stack"]))),
        )
        for row in tracer.events()
    ]


def blocks_of(snapshot: dict[str, Any]) -> dict[Block, Frames]:
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    return {(block["address"], block["size"]): frames_of(block["frames"]) for block in blocks}


def block(tensor: Tensor) -> Block:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def counts(tracer: Tracer) -> dict[str, int]:
    (device,) = tracer.stats()["devices"]
    counted: dict[str, int] = device
    return counted


def run_together(works: list[Callable[[], None]]) -> None:
    """Run each function on its own thread; raise here what one of them raises."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


def allocs(tracer: Tracer) -> list[dict[str, Any]]:
    (trace,) = (trace for trace in tracer.snapshot()["device_traces"] if trace)
    return [event for event in trace if event["action"] == "alloc"]
