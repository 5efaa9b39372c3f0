"""The names that snapshots get in places outside of the job."""

import os
from pathlib import Path


def remote_name(path: str) -> str:
    """Return the path in the working directory, or else the absolute path without its first `/`.

    Names in pytracer's folders differ between ranks and processes, so files do not meet.
    """
    absolute = Path(os.path.abspath(path))
    folder = Path.cwd()
    inside = absolute.relative_to(folder if absolute.is_relative_to(folder) else absolute.anchor)
    return inside.as_posix()
