"""Snapshots of processes that ended without writing: from the boxes that they have left.

A box is read in a process of its own: whatever is in it, nothing happens to this one.
"""

import contextlib
import json
import os
import subprocess
from datetime import datetime
from pathlib import Path

from pytracer.boxes import places
from pytracer.child_process import last_exception, python_command, run_captured
from pytracer.text import printable

PATIENCE_S = 60.0
"""How long reading one box may take."""


def restore(folder: Path) -> list[str]:
    """Write a snapshot for each process that is gone and has left a box. Never raises.

    Looks for boxes of runs whose output is `folder`, or below it.

    Returns:
        A line for each box, which says what was written, or why nothing was.
    """
    lines, when = [], f"{datetime.now():%Y%m%d-%H%M%S-%f}"
    inside = [Path(at, places.FOLDER) for at, names, _ in os.walk(folder) if places.FOLDER in names]
    private = places.folders(folder)[1:]
    for box in [box for at in [*inside, *private] for box in places.left(at)]:
        only_in = folder if box.parent in private else None
        if line := _restore(box, when, only_in):
            lines.append(line)
    return lines


def _restore(box: Path, when: str, only_in: Path | None) -> str | None:
    with places.claimed(box) as file:
        if file is None:
            return None
        arguments = [os.fspath(box), when, os.path.abspath(only_in) if only_in else ""]
        try:
            done = run_captured(
                python_command("pytracer.tracing.restore", *arguments),
                PATIENCE_S,
                {**os.environ, "PYTRACER": "0"},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{printable(str(box))} cannot be read: {error}"
        if done.returncode != 0:
            return f"{printable(str(box))} cannot be read: {last_exception(done.stderr)}"
        result = json.loads(done.stdout.splitlines()[-1])
        if result["is_other"]:
            return None
        places.remove(box)
        path, ended = result["path"], result["ended"]
        return None if path is None else f"{ended}; what it had recorded is in {printable(path)}"


def remove_surplus(folder: Path) -> None:
    """Remove the oldest boxes of processes that are gone, beyond `MOST_LEFT`. Never raises."""
    with contextlib.suppress(OSError):
        for box in places.left(folder)[: -places.MOST_LEFT]:
            with places.claimed(box) as file:
                if file is not None:
                    places.remove(box)
