"""Commands that take a directory, and special files that a directory may hold."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

COMMANDS = (
    *("show", "show --all", "show --leaks", "show --fragmentation", "show by phase"),
    *("view", "diff", "export", "recommend", "fleet collect"),
)


def command(name: str, directory: Path, output: Path | None = None) -> tuple[object, ...]:
    """Return the arguments of a command of `COMMANDS`; what it writes is next to the directory."""
    output = output or directory.parent / "output"
    return {
        "show by phase": ("show", directory, "--at", "peak", "--by", "phase"),
        "diff": ("diff", directory, directory),
        "export": ("export", directory, "--to", "parquet", "--output", output),
        "fleet collect": ("fleet", "collect", directory, "--output", output),
        "view": ("view", directory, "--output", output),
    }.get(name, (*name.split(), directory))


def _link_to_a_fifo(path: Path) -> None:
    pipe = path.with_suffix(".pipe")
    os.mkfifo(pipe)
    path.symlink_to(pipe.name)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fsencode(path))


SPECIAL: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "link to a fifo": _link_to_a_fifo,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "socket": _socket,
}
"""Functions that make a special file at a path, by its kind."""
