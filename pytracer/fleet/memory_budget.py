"""The memory and the cores that commands may use to read several files at the same time."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

SHARE_OF_FREE = 4  # the budget is the free memory divided by this number

# The names of two files, and of a line in the file `memory.stat`, in each version of cgroups.
_CGROUP_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_CGROUP_V2 = ("memory.max", "memory.current", "inactive_file")


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def free_bytes(root: Path = Path("/")) -> int:
    """Return how much memory this process may still use, in the machine and in its cgroups.

    Args:
        root: The folder that contains `proc` and `sys`.
    """
    return min([_field(root / "proc/meminfo", "MemAvailable") * 1024, *_free_in_cgroups(root)])


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
                # The kernel drops the cache of files when memory is needed.
                yield max(limit - used + _field(mount / folder / "memory.stat", names[2]), 0)


def _field(file: Path, name: str) -> int:
    """Return a number in a file of the kernel by its name; 0: it is not known."""
    with contextlib.suppress(OSError):
        if found := re.search(rf"^{name}:?\s+(\d+)", file.read_text(), re.MULTILINE):
            return int(found[1])
    return 0
