"""Make events on demand: tests of the C++ core without an allocator."""

import sys
from types import FrameType
from typing import Any

from pytracer import _core

ALLOC, FREE = 0, 2
CONTEXTS = {None: 0, "state": 1, "alloc": 2, "all": 3}
Frames = list[tuple[str, str, int]]

assert _core.frame_walk_problem() is None
_core.enable_stacks()


def started_session(
    entries: int = 100_000,
    depth: int = 32,
    context: str | None = "all",
    stack_bytes: int = 2**25,
) -> Any:
    """Return a started session that records the CPU's ring."""
    session = _core.Session([_core.CPU_DEVICE], entries, depth, stack_bytes, CONTEXTS[context])
    session.start()
    return session


def chain(frame: FrameType | None, depth: int = 10_000) -> Frames:
    """Return the stack as Python's frame objects give it: from `frame` outwards, cut at `depth`."""
    frames: Frames = []
    while frame is not None and len(frames) < depth:
        frames.append((frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return frames


class Probe:
    """A callable that records an event and keeps Python's own view of the stack at that place."""

    def __init__(self) -> None:
        self.expected: list[Frames] = []

    def __call__(self) -> None:
        self.expected.append(
            (_core.testing.record(ALLOC, 64 + 64 * len(self.expected), 1), chain(sys._getframe()))[
                1
            ]
        )

    def check(self, recorder: Any, depth: int) -> None:
        """Compare all frames of every event of a session, in order, with the kept stacks."""
        events = recorder.events()
        assert len(events) == len(self.expected) > 0
        recorded = [recorder.frames(int(stack)) for stack in events["stack"]]
        assert recorded == [frames[:depth] for frames in self.expected]
