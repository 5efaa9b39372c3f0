"""Opening a box, which may be any file, for reading."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pytracer import _core
from pytracer.boxes import places
from pytracer.boxes.description import Description, described
from pytracer.errors import PytracerError


class DamagedBoxError(PytracerError):
    """A box cannot be read by anybody, whatever this process may do."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[_core.Box, Description] | None]:
    """Open a box of this user's, with what its process said last; None: nothing is left to say.

    Raises:
        OSError: It cannot be read, or is not a regular file of this user's.
        DamagedBoxError: It is not a box, is one of another version, or is damaged.
    """
    file = places.open_box(path)
    try:
        if os.fstat(file).st_size == 0:  # the process had not begun, or see `places.empty`
            yield None
            return
        try:
            box = _core.Box(file)
            description = described(box.description)
        except (PytracerError, ValueError) as error:
            raise DamagedBoxError(str(error)) from error
        yield None if description is None else (box, description)
    finally:
        os.close(file)
