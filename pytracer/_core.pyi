"""The recorder (C++). Bounds are checked by pytracer.config; ids are explained in tracer.py."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

CPU_DEVICE: int
MAX_STACK_DEPTH: int

class View:
    """What an owner sees at one instant; keeps what it needs alive.

    Attributes:
        used_devices: those with events or memory.
        overwritten: how many of its events the ring has no more.
        has_events: whether there are events in it, other than the markers of snapshots.
        problem: why the accelerator's segments are missing; empty: they are not.
    """

    used_devices: set[int]
    overwritten: int
    has_events: bool
    problem: str

    def write(
        self,
        path: bytes,
        about: dict[str, Any],
        devices: dict[int, dict[str, Any]],
    ) -> None: ...
    def to_bytes(
        self,
        about: dict[str, Any],
        devices: dict[int, dict[str, Any]],
    ) -> bytes: ...

class Owner:
    """A cursor into the shared recorder. Inert in a child forked after it was made."""

    def __init__(
        self,
        devices: list[int],
        max_entries: int,
        stack_depth: int,
        max_stack_bytes: int,
        context: int,
    ) -> None: ...
    def start(self, history: bool = True) -> None: ...  # without: blocks, no events
    def pause(self) -> None: ...  # blocks known stay known; nothing is asked for
    def change(self, max_entries: int, stack_depth: int, context: int) -> None: ...
    def stop(self) -> None: ...
    def clear(self) -> None: ...
    # The events of a phase, and of those within it; 0: all.
    def view(self, history: bool = True, phase: int = 0) -> View: ...
    # Ends a window; the next, in this step, begins at the same instant.
    def turn(self, history: bool, step: int) -> View: ...
    def begin_step(self, number: int) -> None: ...  # 0: none
    def events(self) -> npt.NDArray[np.void]: ...
    def frames(self, stack: int) -> list[tuple[str, str, int]]: ...
    def stats(self) -> dict[str, Any]: ...
    @property
    def recording(self) -> bool: ...
    @property
    def is_ours(self) -> bool: ...

def enter_phase(name: bytes) -> tuple[int, int]: ...  # of this thread: for leave_phase(), number
def leave_phase(entry: int) -> None: ...  # on any thread; once
def is_entered(entry: int) -> bool: ...  # and not left
def phase_path(number: int) -> list[bytes]: ...  # names, outermost first
def attach_hook(path: str) -> bool: ...  # False: the device is not initialised
def observe_oom(observer: Callable[[int, int, int, int], None]) -> None: ...  # of the CPU
def wake_event() -> int: ...  # csrc/wake_signal.h
def wake() -> None: ...
def watch_signal(number: int) -> None: ...
def unwatch_signal(number: int) -> None: ...
def take_signals() -> set[int]: ...
def frame_walk_problem() -> str | None: ...
def enable_stacks() -> None: ...
def prepare_for_exit() -> None: ...
def hold_for_fork() -> None: ...  # csrc/recorder.h
def release_after_fork() -> None: ...

class testing:  # noqa: N801 - a submodule
    """Events on demand, without an allocator: for tests and benchmarks."""

    @staticmethod
    def record(action: int, address: int, size: int, device: int = -1) -> None: ...
    @staticmethod
    def record_pairs(pairs: int, address: int, device: int = -1) -> float: ...
