"""Snapshots from boxes: of processes that ended without writing, and of live ones from outside.

A box is read in a process of its own: whatever is in it, nothing happens to this one.
"""

import contextlib
import json
import math
import os
import resource
import signal
import subprocess
import time
from collections.abc import Collection, Iterator
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
    for box, output in left_in(folder, also_below=within_s is None):
        patience_s = min(PATIENCE_S, end - time.monotonic())
        if patience_s <= 0 or not places.is_unclaimed(box):
            continue  # the program claims it, which goes on if this process is killed
        try:
            result = _snapshot(box, output, "killed", when, patience_s)
        except PytracerError as error:
            yield printable(str(error))
            continue
        if result["path"] is not None:
            how = "ended without writing"
            if result["is_by_oom_killer"]:
                how += ", when the kernel's OOM killer ended a process in the same cgroup"
            path = printable(result["path"])
            yield f"{result['who']} {how}; what it had recorded is in {path}"


def left_in(folder: Path, also_below: bool) -> Iterator[tuple[Path, Path]]:
    """Yield the boxes of processes that are gone and whose output was `folder`, or below it.

    With each comes the folder in which its snapshot belongs: the one that the box is next to, which
    may have been moved, or be another container's; or the output that the box names.
    """
    next_to_output, *private = places.folders(folder)
    if also_below:
        for at, names, _ in os.walk(folder):
            if places.FOLDER in names:
                yield from ((box, Path(at)) for box in places.left(Path(at, places.FOLDER)))
    else:
        yield from ((box, folder) for box in places.left(next_to_output))
    wanted = Path(os.path.realpath(folder))
    for other in private:
        for box in places.left(other):
            output = output_of(box)
            if output == wanted or (also_below and output and wanted in output.parents):
                yield box, output


def output_of(box: Path) -> Path | None:
    """Return the folder of the output of a box's process; None: the box does not say it."""
    from pytracer.boxes.description import opened  # the core is not needed where there is no box

    with contextlib.suppress(Exception), opened(box) as found:
        return None if found is None else found[1].output
    return None


def snapshot_of_live(box: Path, folders: Collection[Path]) -> Path | None:
    """Write a snapshot of a live process; return its path, or None if there is nothing to write.

    The process does nothing for it. The file is next to the box's folder. If that is not the
    output, the file is in the output if one of `folders` holds it, and else in the working
    directory: a box may name any folder. A PytracerError says why writing is impossible.
    """
    output = box.parent.parent
    if box.parent.name != places.FOLDER:
        asked = {Path(os.path.realpath(folder)) for folder in folders}
        output = output_of(box) or Path.cwd()
        if asked.isdisjoint((output, *output.parents)):
            output = Path.cwd()
    path = _snapshot(box, output, "demand", _now(), PATIENCE_S)["path"]
    return None if path is None else Path(path)


def _snapshot(box: Path, output: Path, event: str, when: str, patience_s: float) -> dict[str, Any]:
    """Return what `pytracer.tracing.restore` prints, or raise a PytracerError."""
    arguments = (os.path.abspath(box), os.path.abspath(output), event, when)
    try:
        done = run_captured(
            python_command("pytracer.tracing.restore", *arguments),
            patience_s,
            {**os.environ, "PYTRACER": "0"},
        )
    except subprocess.TimeoutExpired:
        raise PytracerError(f"cannot read {box}: it took more than {patience_s:.0f} s") from None
    except (OSError, ValueError) as error:
        raise PytracerError(f"cannot read {box}: {error}") from error
    is_limited = resource.getrlimit(resource.RLIMIT_CPU)[0] != resource.RLIM_INFINITY
    if done.returncode == -signal.SIGXCPU and event == "killed" and not is_limited:
        places.set_aside(box)
        raise PytracerError(f"{box} cannot be read: that would take too much CPU time")
    if done.returncode != 0:
        raise PytracerError(f"cannot read {box}: {last_exception(done.stderr)}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "problem" in result:
        raise PytracerError(result["problem"])
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
