"""Temporary files of builds whose process was killed.

The folder of a build names the process that made it. A process of this machine is looked up; the
folder may also be on a network file system, where only the age tells.
"""

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path

ABANDONED_S = 3600.0
"""The age after which a temporary file is deleted whose process cannot be looked up: more than all
runs of the compiler and the hook's trial may take."""

_PREFIX = ".build-"
_UNKNOWN = "0-0"
_NAME = re.compile(r"\.build-(?P<machine>[0-9a-f]+-\d+)-(?P<pid>\d+)-(?P<began>\d+)-.+")
_FILE = re.compile(r"\.pytracer-\d+-[0-9a-f]+\.tmp")  # of `open_atomically`


def scratch_prefix() -> str:
    """Return how the names of this process's temporary folders begin."""
    pid = os.getpid()
    return f"{_PREFIX}{_machine()}-{pid}-{_began(pid)}-"


def remove_leftovers(directory: Path) -> None:
    """Delete what killed processes left in a folder of hooks. Never raises."""
    with contextlib.suppress(OSError):
        entries = [
            entry
            for entry in os.scandir(directory)
            if entry.name.startswith(_PREFIX) or _FILE.fullmatch(entry.name)
        ]
        # A fresh file has the time of the machine that keeps the files.
        with tempfile.TemporaryFile(dir=directory) as file:
            now = os.fstat(file.fileno()).st_mtime
        for entry in entries:
            if not _is_abandoned(entry, now):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def _is_abandoned(entry: "os.DirEntry[str]", now: float) -> bool:
    name = _NAME.fullmatch(entry.name)
    if name is not None and name["machine"] == _machine() != _UNKNOWN:
        return int(name["began"]) != _began(int(name["pid"]))
    with contextlib.suppress(OSError):
        return now - entry.stat(follow_symlinks=False).st_mtime > ABANDONED_S
    return False


def _machine() -> str:
    """Identify the machine, since it was booted, and the namespace of process ids on it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return _UNKNOWN


def _began(pid: int) -> int:
    """Return when a process began, in clock ticks since the machine was booted; 0: it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    state, *fields = stat.rpartition(b")")[2].split()
    return 0 if state in (b"Z", b"X") else int(fields[18])
