"""Where snapshots go.

`output` is None (nothing is written), a file name ending in `.pickle`, or a directory, which gets
the layout of verl's `torch_memory` profiler: `exit/torch_memory_rank{R}_pid{P}.pickle` at the end,
`oom_{time}/torch_memory_oom_rank{R}_pid{P}.pickle` when memory runs out; the host's name stands for
`rank{R}` if the launcher set no RANK. Beside a file `name.pickle` that is `name.oom-{time}.pickle`.
"""

import os
import socket
import tempfile
from datetime import datetime
from pathlib import Path

from pytracer.errors import ConfigError


def snapshot_path(output: str) -> Path:
    """The file that the snapshot at the end of a recording goes to."""
    path = Path(output)
    if path.suffix == ".pickle":
        return path
    return path / "exit" / f"torch_memory_{_who()}.pickle"


def oom_path(output: str, now: datetime) -> Path:
    """The file that the snapshot of an out-of-memory goes to."""
    path = Path(output)
    event = f"oom_{now:%Y%m%d-%H%M%S-%f}"
    if path.suffix == ".pickle":
        return path.with_name(f"{path.stem}.{event.replace('_', '-')}.pickle")
    return path / event / f"torch_memory_oom_{_who()}.pickle"


def _who() -> str:
    rank = os.environ.get("RANK", "")
    return f"{f'rank{rank}' if rank.isdecimal() else socket.gethostname()}_pid{os.getpid()}"


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
