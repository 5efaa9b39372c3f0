"""The memory and the cores that commands may use to read several files at the same time."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

SHARE_OF_FREE = 4  # the default budget is the free memory divided by this number

# The names of two files, and of a line in the file `memory.stat`, in each version of cgroups.
_CGROUP_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_CGROUP_V2 = ("memory.max", "memory.current", "inactive_file")


def cores() -> int:
    """Return the cores that this process may use; on macOS, which does not report them, all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_bytes(root: Path = Path("/")) -> int:
    """Return how much memory this process may still use, in the machine and in its cgroups.

    A system that reports neither (macOS) counts as having all of its memory free.

    Args:
        root: The folder that contains `proc` and `sys`.
    """
    return min(
        [*_free_in_machine(root), *_free_in_cgroups(root)],
        default=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )


def _free_in_machine(root: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _free_in_cgroups(root: Path) -> Iterator[int]:
    """Yield the free memory of each cgroup around this process that has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, names = root / "sys/fs/cgroup", _CGROUP_V2
        elif "memory" in controllers.split(","):
            mount, names = root / "sys/fs/cgroup/memory", _CGROUP_V1
        else:
            continue
        # A container may see its own cgroup as the root, although the path names its parents.
        group = PurePosixPath(path.lstrip("/"))
        for folder in {group, *group.parents, PurePosixPath()}:
            with contextlib.suppress(OSError, ValueError):  # the limit "max" is not a number
                limit, used = (int((mount / folder / name).read_text()) for name in names[:2])
                yield max(limit - used + _cached(mount / folder, names[2]), 0)


def _cached(cgroup: Path, name: str) -> int:
    """Return how much of a cgroup's memory is file cache, which the kernel drops when needed."""
    for line in (cgroup / "memory.stat").read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
