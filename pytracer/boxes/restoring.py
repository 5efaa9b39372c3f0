"""Snapshots from boxes: of processes that ended without writing, and of live ones from outside.

A box is read in a process of its own: whatever is in it, nothing happens to this one.
"""

import contextlib
import json
import math
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pytracer.boxes import places
from pytracer.child_process import last_exception, python_command, run_captured
from pytracer.errors import PytracerError
from pytracer.text import printable

PATIENCE_S = 60.0  # how long reading one box may take


def restore(folder: Path, within_s: float | None = None) -> Iterator[str]:
    """Write a snapshot for each process that is gone and has left a box. Never raises.

    Args:
        folder: The output of the runs that left them, or a folder above it.
        within_s: How long that may take, for a job that has other things to do: then only boxes of
            runs whose output is `folder` itself are looked for. None: as long as it takes.

    Yields:
        A line for each box, which says what was written, or why nothing was.
    """
    when = _now()
    end = time.monotonic() + (math.inf if within_s is None else within_s)
    for box in left_in(folder, also_below=within_s is None):
        patience_s = min(PATIENCE_S, end - time.monotonic())
        if patience_s <= 0 or not places.is_unclaimed(box):
            continue  # the program claims it, which goes on if this process is killed
        try:
            result = _snapshot(box, "killed", when, patience_s)
        except PytracerError as error:
            yield str(error)
            continue
        if result["path"] is not None:
            how = "ended without writing"
            if result["is_by_oom_killer"]:
                how += ", when the kernel ended a process of its cgroup for want of memory"
            path = printable(result["path"])
            yield f"{result['who']} {how}; what it had recorded is in {path}"


def left_in(folder: Path, also_below: bool) -> Iterator[Path]:
    """Yield the boxes of processes that are gone and whose output was `folder`, or below it."""
    next_to_output, *private = places.folders(folder)
    if also_below:
        for at, names, _ in os.walk(folder):
            if places.FOLDER in names:
                yield from places.left(Path(at, places.FOLDER))
    else:
        yield from places.left(next_to_output)
    wanted = Path(os.path.realpath(folder))
    for other in private:
        for box in places.left(other):
            output = output_of(box)
            if output == wanted or (also_below and output and wanted in output.parents):
                yield box


def output_of(box: Path) -> Path | None:
    """Return the folder of the output of a box's process; None: the box does not say it."""
    from pytracer.boxes.opening import opened  # the core is not needed where there is no box

    with contextlib.suppress(Exception), opened(box) as (_, described):  # it may say anything
        return Path(os.path.realpath(described["folder"]))
    return None


def left_by_output(output: Path) -> dict[str, int]:
    """Return how many boxes of processes that are gone there are, by the output of their runs.

    Those next to `output` are counted, and those in this user's folders on disks of this machine.
    """
    found: Counter[str] = Counter()
    next_to_output, *private = places.folders(output)
    for folder in (next_to_output, *private):
        for box in places.left(folder):
            of_run = output if folder == next_to_output else output_of(box)
            if of_run is not None and places.is_unclaimed(box):
                found[os.path.realpath(of_run)] += 1
    return dict(found)


def snapshot_of_live(box: Path) -> Path | None:
    """Write a snapshot of a live process; return its path, or None if there is nothing to write.

    The process does nothing for it. A PytracerError says why that is impossible.
    """
    path = _snapshot(box, "demand", _now(), PATIENCE_S)["path"]
    return None if path is None else Path(path)


def _snapshot(box: Path, event: str, when: str, patience_s: float) -> dict[str, Any]:
    """Return what `pytracer.tracing.restore` prints, or raise a PytracerError."""
    command = python_command("pytracer.tracing.restore", os.path.abspath(box), event, when)
    try:
        done = run_captured(command, patience_s, {**os.environ, "PYTRACER": "0"})
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
    for suffix in (".box", places.UNREADABLE):
        for box in places.left(folder, suffix)[: -places.MOST_LEFT]:
            with places.claimed(box) as is_mine:
                if is_mine:
                    places.remove(box)
