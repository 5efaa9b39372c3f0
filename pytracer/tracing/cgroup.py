"""Whether the kernel's out-of-memory killer has ended a process of this one's cgroup."""

import contextlib
import re
from pathlib import Path

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
