"""Where snapshots go.

`output` is None (nothing is written), a file name ending in `.pickle`, or a directory, which gets
the layout of verl's `torch_memory` profiler: `exit/torch_memory_rank{R}_pid{P}.pickle`, where the
host's name stands for `rank{R}` if the launcher set no RANK.
"""

import os
import socket
import tempfile
from pathlib import Path

from pytracer.errors import ConfigError


def snapshot_path(output: str) -> Path:
    """The file that the snapshot at the end of a recording goes to."""
    path = Path(output)
    if path.suffix == ".pickle":
        return path
    rank = os.environ.get("RANK", "")
    who = f"rank{rank}" if rank.isdecimal() else socket.gethostname()
    return path / "exit" / f"torch_memory_{who}_pid{os.getpid()}.pickle"


def prepare(output: str) -> None:
    """Makes the directory and tries it, so that a bad one is known before the training, not after.

    Raises:
        ConfigError: the directory cannot be made or written to.
    """
    directory = snapshot_path(output).parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory, prefix=".pytracer-"):
            pass
    except OSError as error:
        raise ConfigError(
            f"output={output!r} cannot be written: {directory}: {error.strerror}; give a path in a "
            "directory that exists and is writable, or None to write nothing"
        ) from None
    if Path(output).suffix == ".pickle" and Path(output).is_dir():
        raise ConfigError(
            f"output={output!r} is a directory: give another file name, or a directory whose name "
            "does not end in .pickle"
        )
