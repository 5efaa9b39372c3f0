"""A server for agents, by the Model Context Protocol (MCP): pytracer's answers on files.

`python -m pytracer.integrations.mcp FOLDER...` serves the files below these folders over standard
input and output. It executes nothing: no code in a file, and no command but pytracer's readers.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytracer.child_process import python_command, run_captured
from pytracer.errors import PytracerError
from pytracer.integrations import packages
from pytracer.reading.files import FOLLOWS_NO_LINKS
from pytracer.text import brief, printable

SECONDS = 300  # how long an answer may take
MAX_TEXT = 40_000  # how many characters of an answer are sent
MAX_ERROR = 1_000  # and of an error
MAX_ARGUMENT = 10_000  # how many characters a tool takes


def server(folders: Sequence[str]) -> Any:
    """Return a server, an `MCPServer` of the package `mcp`, for the files below some folders.

    Raises:
        PytracerError: There is no folder, or one does not exist.
        MissingPackageError: The package mcp, 2 or newer, is not installed.
    """
    roots = [Path(folder).resolve() for folder in folders]
    for root in roots:
        if not root.is_dir():
            raise PytracerError(f"{root} is not a folder: name folders with recordings")
    if not roots:
        raise PytracerError("name at least one folder with recordings")
    with packages.needs("mcp", "'mcp>=2'"):
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError

    def allowed(path: str) -> str:
        try:
            found = Path(path).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise ToolError(f"{brief(path)} is not a path: {error}") from None
        if not any(found.is_relative_to(root) for root in roots):
            raise ToolError(f"{brief(path)} is not below {' or '.join(map(str, roots))}")
        return str(found)

    async def answer(*arguments: str) -> str:
        try:
            if sum(map(len, arguments)) > MAX_ARGUMENT:
                raise PytracerError(f"the arguments have more than {MAX_ARGUMENT:,} characters")
            return await asyncio.to_thread(_answer, arguments)
        except subprocess.TimeoutExpired:
            raise ToolError(f"the answer takes more than {SECONDS} s") from None
        except (PytracerError, OSError, ValueError) as error:
            raise ToolError(printable(str(error))[:MAX_ERROR]) from None

    async def show(path: str, by: str | None = None, leaks: bool = False) -> str:
        """Why memory ran out, who holds it, whether it leaks, and what to change.

        `path`: a snapshot, or a directory of them. `by`: print the memory by this instead: line,
        caller, category, holder, module, phase, step, age, stream or pool. `leaks`: print the lines
        whose memory is kept from step to step instead.
        """
        return await answer("show", allowed(path), *_given(by=by), *["--leaks"] * leaks)

    async def diff(old: str, new: str) -> str:
        """What changed between two recordings, files or directories."""
        return await answer("diff", allowed(old), allowed(new))

    async def recommend(path: str) -> str:
        """Which allocator settings help a recording, by a simulation of its requests."""
        return await answer("recommend", allowed(path))

    async def fit(recordings: list[str], at: str, device_memory: str | None = None) -> str:
        """Whether the next run fits, from recordings at small sizes of its data.

        `recordings`: files, with their sizes as in `a.pickle@batch=2` if they do not name them.
        `at`: the sizes of the next run, such as `batch=16`. `device_memory`: such as `80GiB`.
        """
        paths = []
        for recording in recordings:
            path, sign, sizes = recording.rpartition("@")
            paths.append(allowed(path) + sign + sizes if "=" in sizes else allowed(recording))
        return await answer("fit", *paths, *_given(at=at, device_memory=device_memory))

    made = MCPServer("pytracer", instructions="Call show first, then fix what it points to.")
    for tool in (show, diff, recommend, fit):
        made.tool()(tool)
    return made


def _given(**options: str | None) -> list[str]:
    """Return the options that have a value, each as one argument: the value is no other option."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value]


def _answer(arguments: Sequence[str]) -> str:
    """Return what a command of pytracer prints, in a process of its own.

    Raises:
        PytracerError: It fails; the message is its last line.
        subprocess.TimeoutExpired: It takes too long.
    """
    environment = {**os.environ, "COLUMNS": "200", "PYTRACER": "0", FOLLOWS_NO_LINKS: "1"}
    done = run_captured(python_command("pytracer", *arguments), SECONDS, environment, "/")
    text = done.stdout.strip()
    if done.returncode and not text:
        raise PytracerError(done.stderr.strip().rpartition("\n")[2])
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}\n… ({len(text):,} characters)"


if __name__ == "__main__":
    try:
        server(sys.argv[1:]).run()
    except PytracerError as error:
        sys.exit(f"{sys.argv[0]}: {error}")
