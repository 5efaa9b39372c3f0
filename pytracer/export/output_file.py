"""The files that an export writes."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pytracer.atomic_file import open_atomically
from pytracer.errors import PytracerError


@contextlib.contextmanager
def open_output(path: Path) -> Iterator[BinaryIO]:
    """Open a file as `open_atomically` does, in a folder that is created if it is missing.

    Raises:
        PytracerError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_atomically(path) as file:
            yield file
    except OSError as error:
        raise PytracerError(f"cannot write {path}: {error.strerror or error}") from error
