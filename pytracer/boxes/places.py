"""Where boxes are, and whose.

A box (csrc/support/box.h) lies next to the output, if that is on a disk of this machine: the kernel
writes a mapped file back whenever it likes, which another machine's file system is not made for.
Else it lies in a folder of the user's on a local disk, or in memory that processes share.

The name of a box tells its process: `PID-START-NAMESPACE-BOOT-NUMBER.box`, with a number for each
program that the process becomes. The process holds a shared lock on the file as long as it lives,
for observers in other containers, which do not see its pid.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from pytracer.backends.trusted_folders import open_trusted

FOLDER = ".pytracer_boxes"
UNREADABLE = ".unreadable"  # the suffix of a box that is damaged, or of another version
MOST_LEFT = 64  # boxes of processes that are gone, in one folder; the oldest ones are removed

_NAME = re.compile(r"(\d+)-(\d+)-(\d+)-(\w+)-\d+\.(?:box|unreadable)")
# File systems of this machine that keep the space that was taken for a file. btrfs and ZFS write to
# other places each time, for which there may be no space.
_LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "f2fs", "tmpfs", "overlay"))
_LOWEST_DESCRIPTOR = 200  # programs count on small numbers

_made_for: dict[Path, list[Path]] = {}  # folders, by the box that this process made them for


def folders(output: Path) -> list[Path]:
    """Return the folders in which a process with this output may have a box, the best one first."""
    private = f"pytracer_boxes_{os.geteuid()}"
    # Not tempfile.gettempdir(): its lock stays locked in a process that is forked meanwhile.
    bases = (os.environ.get("TMPDIR") or "/tmp", "/dev/shm")
    return [output / FOLDER, *(Path(base, private) for base in bases)]


def make(folder: Path) -> tuple[int, Path]:
    """Make an empty file for this process's box; return its descriptor and path.

    Raises:
        OSError: It cannot be there.
    """
    if (kind := _file_system(folder)) not in _LOCAL:
        raise OSError(errno.ENOTSUP, f"the file system {kind} is not local or cannot reserve space")
    missing = [*itertools.takewhile(lambda above: not above.exists(), folder.parents)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    at, _ = open_trusted(
        os.path.abspath(folder), forbidden_mode=0o077, follow_last=False, make=True
    )
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        process = f"{os.getpid()}-{_start('self')}-{_namespace()}-{boot()}"
        for number in itertools.count():
            path = folder / f"{process}-{number}.box"
            with contextlib.suppress(FileExistsError):
                file = os.open(path.name, flags, 0o600, dir_fd=at)
                break
    finally:
        os.close(at)
    _made_for[path] = missing
    with contextlib.suppress(OSError):  # so many files are not allowed
        higher = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _LOWEST_DESCRIPTOR)
        os.close(file)
        file = higher
    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return file, path


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    """Open a folder of boxes for its entries. It is this user's own, and no link: somebody else's
    folder may have a link to this user's boxes, which belong to another output.
    """
    at = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(at).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "another user's folder", os.fspath(path))
        yield at
    finally:
        os.close(at)


def open_box(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a box, which may be any file, and return its descriptor.

    Raises:
        OSError: It cannot be opened, is not a regular file of this user's, or is behind a link.
    """
    with _folder(path.parent) as at:
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(path.name, flags, dir_fd=at)
    info = os.fstat(file)
    if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid():
        return file
    os.close(file)
    raise PermissionError(errno.EPERM, "not a regular file of this user", os.fspath(path))


def remove(path: Path) -> bool:
    """Remove a box, and folders that were made for it and are empty. Never raises.

    Returns:
        Whether the box is gone.
    """
    try:
        with contextlib.suppress(FileNotFoundError), _folder(path.parent) as at:
            os.unlink(path.name, dir_fd=at)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        path.parent.rmdir()
        for folder in _made_for.pop(path, []):
            folder.rmdir()
    return True


def empty(path: Path) -> bool:
    """Empty a box of a process that is gone; return whether it is empty. Never raises."""
    with contextlib.suppress(OSError):
        file = open_box(path, os.O_WRONLY)
        try:
            os.ftruncate(file, 0)
            return True
        finally:
            os.close(file)
    return False


def set_aside(path: Path) -> None:
    """Rename a box that cannot be read, so that nobody tries again. Never raises."""
    with contextlib.suppress(OSError), _folder(path.parent) as at:
        os.rename(path.name, path.with_suffix(UNREADABLE).name, src_dir_fd=at, dst_dir_fd=at)


def left(folder: Path, suffix: str = ".box") -> list[Path]:
    """Return the boxes in a folder whose processes are gone, the oldest first; only this user's.

    Of other containers' processes, only the lock on the box tells whether they are (`claimed`).
    """
    found = []
    with contextlib.suppress(OSError), _folder(folder) as at:
        for entry in os.scandir(at):
            info = entry.stat(follow_symlinks=False)
            is_file = stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid()
            is_file = is_file and entry.name.endswith(suffix)
            if is_file and (name := _NAME.fullmatch(entry.name)) and _is_gone(*name.groups()):
                found.append((info.st_mtime_ns, folder / entry.name))
    return [path for _, path in sorted(found)]


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Have a box that nobody else has; False: somebody has, or has removed it."""
    try:
        file = open_box(path)
    except OSError:
        yield False
        return
    try:
        is_mine = False
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_mine = os.path.samestat(os.lstat(path), os.fstat(file))
        yield is_mine
    finally:
        os.close(file)


def is_unclaimed(path: Path) -> bool:
    """Return whether nobody has a box."""
    with claimed(path) as is_mine:
        return is_mine


def boot() -> str:
    """Return what tells this start of the machine from others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "").strip()[:16]


def is_of_this_boot(path: Path) -> bool:
    """Return whether a box was made since this start of the machine."""
    name = _NAME.fullmatch(path.name)
    return name is not None and name[4] == boot()


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _start(pid: str) -> str | None:
    """Return when a process began, in ticks since the boot; None: it has ended."""
    with contextlib.suppress(OSError):
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if state not in "ZX":
            return numbers[18]
    return None


def _is_gone(pid: str, start: str, namespace: str, of_boot: str) -> bool:
    """Return whether a process has ended. Of another container's, the lock on the box tells."""
    if of_boot != boot() or namespace != str(_namespace()):
        return True
    return _start(pid) != start


def _file_system(folder: Path) -> str:
    """Return the kind of the file system that a folder is on, or will be."""
    while not folder.exists():
        folder = folder.parent
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            mount, _, about = line.partition(" - ")
            if mount.split()[2] == number:
                return about.split()[0]
    return "unknown"
