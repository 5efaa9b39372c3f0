"""A synthetic program on the CPU that keeps a copy of its live blocks after each event."""

from dataclasses import dataclass, field, replace
from typing import Any

import reference_reader
from hypothesis import strategies as st

from pytracer.reading.snapshot import Frame, Snapshot

TORCH = "/venv/lib/python3.11/site-packages/torch/nn/functional.py"
TORCH_NPU = "/usr/lib/python3/dist-packages/torch_npu/functional.py"
# Innermost frame first. The call site is the first frame outside torch, else the innermost.
STACKS = [
    (Frame("/home/me/model.py", "forward", 1),),
    (
        Frame(TORCH, "linear", 7),
        Frame("/home/me/model.py", "forward", 1),
        Frame("/home/me/train.py", "main", 5),
    ),
    (Frame(TORCH, "linear", 7), Frame(TORCH_NPU, "dropout", 8)),
    (Frame("/home/me/torch/tools.py", "f", 2), Frame("/home/me/train.py", "main", 6)),
    (),
]
CALL_SITES = [STACKS[0][0], STACKS[0][0], STACKS[2][0], STACKS[3][0], None]
PHASES = ["", "rollout", "update"]
SLOT = 1000  # bytes between addresses, more than any allocation takes
FIRST_TIME_US = 1_700_000_000_000_000


@dataclass(frozen=True)
class Block:
    size: int
    stack: int
    phase: str
    event: int  # the event that allocated it
    pending: bool = False


@dataclass
class Program:
    """A program that allocates and frees; its events are those of device 1, device 0 is empty."""

    alive: dict[int, Block] = field(default_factory=dict)
    trace: list[dict[str, Any]] = field(default_factory=list)
    moments: list[dict[int, Block]] = field(default_factory=lambda: [{}])
    phase: str = ""
    boundaries: list[tuple[int, int]] = field(default_factory=list)

    def record(self, action: str, address: int, size: int, stack: int) -> None:
        event = {"action": action, "addr": address, "size": size, "stream": 0}
        event |= {"time_us": FIRST_TIME_US + len(self.trace), "user_metadata": self.phase}
        self.trace.append(event | {"frames": frames_of(stack)})
        self.moments.append(dict(self.alive))

    def alloc(self, size: int, stack: int) -> None:
        address = next(a for a in range(SLOT, 10**9, SLOT) if a not in self.alive)  # reused soon
        self.record("segment_alloc", address, size, stack)
        self.alive[address] = Block(size, stack, self.phase, len(self.trace))
        self.record("alloc", address, size, stack)

    def free(self, which: int, stack: int) -> None:
        allocated = [address for address, block in self.alive.items() if not block.pending]
        if allocated:
            address = allocated[which % len(allocated)]
            self.alive[address] = replace(self.alive[address], pending=True)
            self.record("free_requested", address, self.alive[address].size, stack)

    def complete(self, which: int, stack: int) -> None:
        pending = [address for address, block in self.alive.items() if block.pending]
        if pending:
            address = pending[which % len(pending)]
            size = self.alive.pop(address).size
            self.record("free_completed", address, size, stack)
            self.record("segment_free", address, size, stack)

    def enter(self, phase: int, _: int) -> None:
        self.phase = PHASES[phase % len(PHASES)]

    def step(self, number: int, _: int) -> None:
        self.boundaries.append((len(self.boundaries) + 1, len(self.trace)))

    def content(self, lost: int = 0) -> dict[str, Any]:
        """Return the snapshot's content after the ring has overwritten the first `lost` events."""
        segments = [
            {
                "device": 1,
                "address": address,
                "total_size": block.size,
                "blocks": [
                    {
                        "address": address,
                        "size": block.size,
                        "requested_size": block.size,
                        "state": "active_pending_free" if block.pending else "active_allocated",
                        "frames": frames_of(block.stack),
                    }
                ],
            }
            for address, block in self.alive.items()
        ]
        first_device_block = {
            "address": 0,
            "size": 10**6,
            "requested_size": 10**6,
            "state": "active_allocated",
        }
        segments.append(
            {"device": 0, "address": 0, "total_size": 10**6, "blocks": [first_device_block]}
        )
        # A step whose first event was overwritten begins at event 0 of the file. Of several steps
        # that begin at the same event, the file has the last.
        begins = {max(first - lost, 0): step for step, first in self.boundaries}
        steps = [[step, first] for first, step in begins.items() if first < len(self.trace) - lost]
        device = {"index": 1, "is_cpu": True, "overwritten": lost, "steps": steps}
        return {
            "segments": segments,
            "device_traces": [[], self.trace[lost:]],
            "pytracer": {"backends": ["cpu"], "devices": [device]},
        }

    def snapshot(self, lost: int = 0) -> Snapshot:
        return reference_reader.convert(self.content(lost), "made.pickle")


def frames_of(stack: int) -> list[dict[str, Any]]:
    return [frame._asdict() for frame in STACKS[stack]]


operations = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.integers(1, SLOT // 2), st.integers(0, len(STACKS) - 1)),
        st.tuples(
            st.sampled_from(["free", "complete", "enter", "step"]),
            st.integers(0, 100),
            st.integers(0, len(STACKS) - 1),
        ),
    ),
    max_size=60,
)


def run(operations: list[tuple[str, int, int]]) -> Program:
    program = Program()
    for name, number, stack in operations:
        getattr(program, name)(number, stack)
    return program
