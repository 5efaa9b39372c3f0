"""Files that appear under their names only when they are complete."""

import contextlib
import errno
import io
import itertools
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pytracer.errors import PytracerError

_REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
"""The errors of a folder in which no file can be made or renamed, and of a file that is a mount."""

open_file = io.open  # the builtin one is gone when the last destructors run
_unfinished: set[Path] = set()


def remove_unfinished() -> None:
    """Remove the unfinished files of `open_atomically` before the process ends."""
    for path in tuple(_unfinished):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def open_atomically(path: Path | int) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when it is complete and on the disk.

    If the file cannot be completed, `path` stays as it was. Symbolic links are followed, and a file
    keeps its mode and its owner. A file that has several hard links, or that cannot be replaced in
    its folder, gets the content when the content is complete. If no other file can be made in the
    folder, the file is written in place, and is empty if it cannot be completed. What is not a
    regular file (a pipe, `/dev/null`) is written to. A descriptor is written to and closed, as by
    `open()`.

    Raises:
        OSError: The file cannot be written.
    """
    if isinstance(path, int):
        with open_file(path, "wb") as opened:
            yield opened
        return
    existing: BinaryIO | None = None
    with contextlib.suppress(FileNotFoundError):  # what exists stays as it is
        existing = open_file(os.open(path, os.O_WRONLY | os.O_CLOEXEC), "wb")
    with contextlib.nullcontext() if existing is None else existing:
        target = _target(path)
        if existing is not None:
            is_regular = stat.S_ISREG(os.fstat(existing.fileno()).st_mode)
            if target is None or not is_regular:
                yield existing
                return
        assert target is not None
        try:
            temporary, file = _make_temporary(target, is_private=existing is not None)
        except OSError as error:
            if existing is None or error.errno not in _REFUSALS:
                raise OSError(error.errno, error.strerror, os.fspath(path)) from error
            with _written_in_place(existing):
                yield existing
            return
        try:
            with file:
                yield file
                _flush(file)
                _finish(file, temporary, target, existing)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            _unfinished.discard(temporary)


@contextlib.contextmanager
def folders_of(path: Path) -> Iterator[None]:
    """Make the folders of a file that the body writes.

    If the body raises, the folders that were made are removed if they are empty.
    """
    missing = [*itertools.takewhile(lambda folder: not folder.exists(), path.parents)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()
        raise


@contextlib.contextmanager
def open_output(path: Path, *, makes_folder: bool = False) -> Iterator[BinaryIO]:
    """Open a file that a user asked for as `open_atomically` does, or raise a PytracerError."""
    try:
        if makes_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        with open_atomically(path) as file:
            yield file
    except OSError as error:
        raise PytracerError(f"cannot write {path}: {error.strerror or error}") from error


def _target(path: Path) -> Path | None:
    """Return the file that links lead to; None: one that a process has open (`/dev/stdout`)."""
    target = Path(path)
    for _ in range(40):  # as many links as Linux follows
        target = target.parent.resolve() / target.name
        if target.is_relative_to("/proc"):
            return None
        if not target.is_symlink():
            return target
        target = target.parent / target.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))


def _make_temporary(target: Path, *, is_private: bool) -> tuple[Path, BinaryIO]:
    """Make a hidden file next to `target`. A private file gets its mode when it is complete."""
    path = target.with_name(f".pytracer-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
    _unfinished.add(path)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return path, open_file(os.open(path, flags, 0o600 if is_private else 0o666), "w+b")
    except BaseException:
        _unfinished.discard(path)
        raise


def _flush(file: BinaryIO) -> None:
    file.flush()
    try:
        os.fsync(file.fileno())
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system without it
            raise


def _finish(file: BinaryIO, temporary: Path, target: Path, existing: BinaryIO | None) -> None:
    """Give a complete file its name, or its content to the existing file."""
    if existing is None or _can_replace(file, existing):
        try:
            os.replace(temporary, target)
            return
        except OSError as error:
            if existing is None or error.errno not in _REFUSALS:
                raise
    file.seek(0)
    with _written_in_place(existing):
        shutil.copyfileobj(file, existing, 1 << 20)


def _can_replace(file: BinaryIO, existing: BinaryIO) -> bool:
    """Give a file the owner and the mode of the existing one; return whether it has them then."""
    new, old = os.fstat(file.fileno()), os.fstat(existing.fileno())
    if old.st_nlink > 1:
        return False
    with contextlib.suppress(OSError):  # not permitted, or no such owners or modes exist there
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
            os.fchown(file.fileno(), old.st_uid, old.st_gid)
        if stat.S_IMODE(new.st_mode) != stat.S_IMODE(old.st_mode):
            os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
        return True
    return False


@contextlib.contextmanager
def _written_in_place(existing: BinaryIO) -> Iterator[None]:
    """Replace the content of a file, which is empty if the new content cannot be completed."""
    descriptor = os.dup(existing.fileno())
    try:
        os.truncate(descriptor, 0)
        yield
        _flush(existing)
    except BaseException:
        with contextlib.suppress(OSError):
            existing.close()  # which writes what is buffered
        with contextlib.suppress(OSError):
            os.truncate(descriptor, 0)
        raise
    finally:
        os.close(descriptor)
