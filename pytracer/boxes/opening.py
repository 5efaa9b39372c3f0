"""Opening a box, which may be any file, for reading."""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytracer import _core


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[_core.Box, dict[str, Any]]]:
    """Open a box of this user's, with what its process said last; {}: that it has written all.

    Raises:
        OSError: It cannot be read, is no regular file, or is another user's.
        PytracerError: It is no box, or one of another version.
        ValueError: It is damaged.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it is no file of this user's", os.fspath(path))
        box = _core.Box(file)
        yield box, json.loads(box.description or b"{}")
    finally:
        os.close(file)
