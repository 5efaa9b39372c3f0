"""Files that appear under their names only when they are complete."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_unfinished: set[Path] = set()


def remove_unfinished() -> None:
    """Remove the unfinished files of `open_atomically` before the process ends."""
    for path in tuple(_unfinished):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def open_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when it is complete and on the disk.

    If the file cannot be completed, `path` stays as it was. If `path` exists and is not a regular
    file (a pipe, `/dev/null`), it is opened itself.

    Raises:
        OSError: The file cannot be written.
    """
    if path.exists() and not path.is_file():
        with open(path, "wb") as file:
            yield file
        return
    temporary = path.with_name(f".pytracer-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
    _unfinished.add(temporary)
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    finally:
        _unfinished.discard(temporary)
