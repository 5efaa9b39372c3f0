"""Public reports on torch's allocator, as requests to the simulator: it needs no torch, no device.

    python tests/helpers/public_reports.py

It prints the rows of the table in tests/simulator/public_reports.md.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pytracer.analysis.allocator_rules import UNLIMITED
from pytracer.analysis.requests import ALLOCATE, FREE, LEAVE, REQUEST_COLUMNS
from pytracer.reading import _reader
from pytracer.simulator.rules import rules_of

MIB = 2**20
DEVICE_BYTES = 64 << 30
STREAMS = 32  # how many streams torch hands out in turn: `torch.cuda.Stream()` makes no others

VERSION = "2.12.1"


class Program:
    """Requests in their order; `rows` has the columns of `Requests` for each."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.marks: list[int] = []
        self._blocks = 0

    def allocate(self, mib: float, stream: int = 0) -> int:
        """Allocate, and return the number of the block."""
        self._blocks += 1
        self.rows.append((ALLOCATE, self._blocks - 1, int(mib * MIB), stream, 0))
        return self._blocks - 1

    def free(self, *blocks: int, kind: int = FREE) -> None:
        self.rows += [(kind, block, 0, 0, 0) for block in blocks]

    def mark(self) -> None:
        """Show the reserved bytes at this place."""
        self.marks.append(len(self.rows) - 1)

    def columns(self) -> dict[str, Any]:
        """Return the columns of `Requests`."""
        columns = np.array(self.rows, np.int64).T.copy()
        return dict(zip(REQUEST_COLUMNS, (columns[0].astype(np.uint8), *columns[1:]), strict=True))


def split_and_expandable() -> Program:
    """Keep 2 MiB of each of 101 cycles, next to 91 and 45.5 MiB that are freed."""
    program = Program()
    for cycle in range(101):
        large = program.allocate(91), program.allocate(45.5)
        program.allocate(2)
        program.free(*large)
        if cycle % 20 == 0:
            program.mark()
    return program


def waiting_block() -> Program:
    """Request 20 MiB twice on a full device, where as much waits for a stream."""
    program = Program()
    program.free(program.allocate(40))
    program.allocate(20)
    waiting = program.allocate(20)
    program.allocate(DEVICE_BYTES / MIB - 40)
    program.free(waiting, kind=LEAVE)
    program.allocate(20)
    program.mark()
    program.allocate(20)
    program.mark()
    program.free(waiting)
    return program


def stream_of_each_step(streams: int = STREAMS) -> Program:
    """Use 1 GiB on a new stream in each of 64 steps."""
    program = Program()
    for step in range(64):
        program.free(program.allocate(1 << 10, stream=1 + step % streams))
        if step + 1 in (8, 16, 32, 64):
            program.mark()
    return program


def one_request() -> Program:
    """Request 514 MiB."""
    program = Program()
    program.allocate(514)
    program.mark()
    return program


@dataclass(frozen=True)
class Report:
    """A public report."""

    name: str  # its number
    what: str  # what the program does
    settings: str  # the settings of the allocator
    program: Callable[[], Program]  # makes the requests


_SPLITS = "keeps 2 MiB in each of 101 cycles, next to 91 and 45.5 MiB that are freed"
_PAIR = "max_split_size_mb:128,expandable_segments:True"
REPORTS = [
    Report("pytorch#193400", _SPLITS, _PAIR, split_and_expandable),
    Report("", "the same", "expandable_segments:True", split_and_expandable),
    Report("", "the same", "max_split_size_mb:128", split_and_expandable),
    Report(
        "pytorch#189504",
        "requests 20 MiB twice on a full device, where 20 MiB wait for a stream",
        "",
        waiting_block,
    ),
    Report("pytorch#161139", "requests 514 MiB", "roundup_power2_divisions:[>:1]", one_request),
    Report("", "the same", "roundup_power2_divisions:[>:2]", one_request),
    Report("vllm#52950", "uses 1 GiB on a new stream in each of 64 steps", "", stream_of_each_step),
    Report("", "the same on one stream", "", lambda: stream_of_each_step(streams=1)),
]


def simulated(report: Report) -> dict[str, Any]:
    """Return how the simulator serves all requests of a report, also those after a failure."""
    rules = asdict(rules_of(report.settings, "cuda", VERSION))
    limits = {"limit_bytes": UNLIMITED, "device_bytes": DEVICE_BYTES, "total_bytes": DEVICE_BYTES}
    found: dict[str, Any] = _reader.simulate(
        **report.program().columns(), rules=rules | limits, with_curve=True, continues=True
    )
    return found


def row(report: Report) -> str:
    """Return the row of a report in the table."""
    found, marks = simulated(report), report.program().marks
    failed = set(found["oom_requests"].tolist())
    reserved = [f"{int(found['reserved_bytes'][at]) // MIB:,}" for at in marks]
    shown = [
        f"{text} (no memory)" if at in failed else text
        for at, text in zip(marks, reserved, strict=True)
    ]
    settings = f"`{report.settings}`" if report.settings else ""
    return f"| {report.name} | {report.what} | {settings} | {', '.join(shown)} |"


if __name__ == "__main__":
    print(*map(row, REPORTS), sep="\n")
