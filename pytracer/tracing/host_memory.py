"""The host memory of the process at its steps: what grows there is in no allocator's recording.

And how often the kernel has ended a process for it.
"""

import contextlib
import os
import re
from pathlib import Path

MOST_SAMPLES = 512

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class HostMemory:
    """How much host memory the process had when its steps began.

    Attributes:
        samples: Pairs of a step and bytes, less than `MOST_SAMPLES`: then every second one is
            dropped, and every second step is noted from then on.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.samples: list[tuple[int, int]] = []
        self._every = 1

    def note(self, step: int) -> None:
        """Note the memory of the process as that of a step. Takes about 20 us, and never raises."""
        if self.samples and step <= self.samples[-1][0]:  # the steps have begun anew
            self._clear()
        if step % self._every:
            return
        with contextlib.suppress(OSError, ValueError):
            self.samples.append((step, _private_bytes()))
        if len(self.samples) == MOST_SAMPLES:
            self._every *= 2
            self.samples = [pair for pair in self.samples if pair[0] % self._every == 0]


def _private_bytes() -> int:
    """Return the resident memory without that of files, which the kernel can drop: see proc(5)."""
    with open("/proc/self/statm", "rb") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * _PAGE_BYTES


_COUNTER = re.compile(r"/sys/fs/cgroup/([^\0]*/)?memory\.events")
_MOST_BYTES = 4096

Kills = tuple[str, int]  # the file that counts, and how many there were


def kills() -> Kills | None:
    """Return how many processes of this cgroup the kernel has ended so far; None: unknown."""
    with contextlib.suppress(OSError, StopIteration):
        groups = Path("/proc/self/cgroup").read_text().splitlines()
        own = next(line[3:] for line in groups if line.startswith("0::"))
        for folder in (Path("/sys/fs/cgroup", own.lstrip("/")), Path("/sys/fs/cgroup")):
            file = folder / "memory.events"
            if (count := _count(file)) is not None:
                return str(file), count
    return None


def has_killed(before: Kills | None) -> bool | None:
    """Return whether there were more kills since; None: unknown. `before` may name any file."""
    is_counter = before is not None and _COUNTER.fullmatch(before[0]) and ".." not in before[0]
    now = _count(Path(before[0])) if before is not None and is_counter else None
    return None if before is None or now is None or now < before[1] else now > before[1]


def _count(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError), open(file, "rb", buffering=0) as counters:
        found = re.search(rb"^oom_kill (\d{1,18})$", counters.read(_MOST_BYTES), re.MULTILINE)
        return None if found is None else int(found[1])
    return None
