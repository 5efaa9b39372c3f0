"""The file of a compiled hook: a library, and the SHA-256 of its bytes at the end.

A library that lost a page (an interrupted copy, a bad disk) kills the process that loads it. The
hash is part of the file, so that one rename installs both. The dynamic loader does not read it.
"""

import hashlib
import os
import stat

_LABEL = b"\npytracer-sha256:"
_LENGTH = len(_LABEL) + 64


def sealed(library: bytes) -> bytes:
    """Return a library with the hash of its bytes at the end."""
    return library + _LABEL + hashlib.sha256(library).hexdigest().encode()


def is_intact(content: bytes) -> bool:
    """Return whether a file ends with the hash of its other bytes."""
    return sealed(content[:-_LENGTH]) == content


def read_regular(path: str, folder: int | None = None) -> tuple[bytes, os.stat_result] | None:
    """Return the content and the state of a regular file; None: it is something else.

    Args:
        path: The file, relative to `folder` if that is not None.
        folder: The descriptor of a folder in which `path` must not be a symbolic link.

    Raises:
        OSError: The file cannot be read.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # opening a FIFO would block
    if folder is not None:
        flags |= os.O_NOFOLLOW
    with open(os.open(path, flags, dir_fd=folder), "rb") as file:
        info = os.fstat(file.fileno())
        return (file.read(), info) if stat.S_ISREG(info.st_mode) else None
