"""Snapshots from boxes: of processes that ended without writing, and of live ones from outside.

A box is read in a process of its own: whatever is in it, nothing happens to this one.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pytracer.boxes import places
from pytracer.child_process import last_exception, python_command, run_captured
from pytracer.errors import PytracerError
from pytracer.text import printable

PATIENCE_S = 60.0
"""How long reading one box may take."""


def restore(folder: Path) -> list[str]:
    """Write a snapshot for each process that is gone and has left a box. Never raises.

    Looks for boxes of runs whose output is `folder`, or below it.

    Returns:
        A line for each box, which says what was written, or why nothing was.
    """
    lines, when = [], _now()
    for box in _left_in(folder):
        with places.claimed(box) as is_mine:
            if not is_mine:
                continue
            try:
                result = _snapshot(box, "killed", when)
            except PytracerError as error:
                lines.append(str(error))
                continue
            places.remove(box)
        if result["path"] is not None:
            how = "ended without writing"
            if result["is_by_oom_killer"]:
                how += ", when the kernel ended a process of its cgroup for want of memory"
            path = printable(result["path"])
            lines.append(f"{result['who']} {how}; what it had recorded is in {path}")
    return lines


def _left_in(folder: Path) -> Iterator[Path]:
    for at, names, _ in os.walk(folder):
        if places.FOLDER in names:
            yield from places.left(Path(at, places.FOLDER))
    wanted = Path(os.path.realpath(folder))
    for private in places.folders(folder)[1:]:
        yield from (box for box in places.left(private) if _is_of(box, wanted))


def _is_of(box: Path, folder: Path) -> bool:
    """Return whether the output of a box's process is in a folder, or is that folder."""
    from pytracer.boxes.opening import opened  # the core is not needed where there is no box

    with contextlib.suppress(Exception), opened(box) as (_, described):  # it may say anything
        output = Path(os.path.realpath(described["folder"]))
        return folder in (output, *output.parents)
    return False


def snapshot_of_live(box: Path) -> Path | None:
    """Write a snapshot of a live process; return its path, or None if there is nothing to write.

    The process does nothing for it. A PytracerError says why that is impossible.
    """
    path = _snapshot(box, "demand", _now())["path"]
    return None if path is None else Path(path)


def _snapshot(box: Path, event: str, when: str) -> dict[str, Any]:
    """Return what `pytracer.tracing.restore` prints, or raise a PytracerError."""
    command = python_command("pytracer.tracing.restore", os.path.abspath(box), event, when)
    try:
        done = run_captured(command, PATIENCE_S, {**os.environ, "PYTRACER": "0"})
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PytracerError(f"{printable(str(box))} cannot be read: {error}") from error
    if done.returncode != 0:
        reason = last_exception(done.stderr)
        raise PytracerError(f"{printable(str(box))} cannot be read: {reason}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _now() -> str:
    return f"{datetime.now():%Y%m%d-%H%M%S-%f}"


def remove_surplus(folder: Path) -> None:
    """Remove the oldest boxes of processes that are gone, beyond `MOST_LEFT`. Never raises."""
    with contextlib.suppress(OSError):
        for box in places.left(folder)[: -places.MOST_LEFT]:
            with places.claimed(box) as is_mine:
                if is_mine:
                    places.remove(box)
