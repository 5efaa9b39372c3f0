"""The program that writes a snapshot from a box: `pytracer.boxes.restoring` runs it.

`python -m pytracer.tracing.restore BOX EVENT WHEN` prints a JSON object as its last line: `path` of
the snapshot, or null if the process had used no device or had written all, or if somebody else
reads the box; `who`, as in "rank 3 (process 7 of host) in step 12"; and `is_by_oom_killer`. The
event is "killed", and the box is removed then; or "demand" of a live process.
"""

import contextlib
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pytracer.atomic_file import open_atomically
from pytracer.boxes import places
from pytracer.boxes.opening import opened
from pytracer.errors import PytracerError
from pytracer.tracing import cgroup
from pytracer.tracing.source_lines import source_lines

MISSING = ["owners", "statistics", "settings", "phases"]
"""What only the living process could have said."""

_NOTHING = {"path": None, "who": "", "is_by_oom_killer": False}


def main() -> None:
    """Write the snapshot; see the module."""
    box, event, when = sys.argv[1:]
    path = Path(box)
    if event != "killed":
        print(json.dumps(restored(path, event, when)))
        return
    with places.claimed(path) as is_mine:
        result = _NOTHING
        if is_mine:
            try:
                result = restored(path, event, when)
            except (PytracerError, ValueError):
                places.set_aside(path)
                raise
            places.remove(path)
    print(json.dumps(result))


def restored(path: Path, event: str, when: str) -> dict[str, Any]:
    """Write the snapshot of a box, and return what the program prints."""
    with opened(path) as (box, described):
        result = dict(_NOTHING)
        if not described:
            return result
        (depth, context, forward), about = described["recording"], described["metadata"]
        view = box.view(depth, context, forward, places.boot_of(path) == places.boot())
        if described["only_if_used"] and not view.used_devices:
            return result
        about = {**about, "written_ns": time.time_ns(), "current_step": box.last_step}
        if event == "killed":
            by_oom_killer = result["is_by_oom_killer"] = cgroup.has_killed(described["cgroup"])
            about["waiting"] = False
            about["killed"] = {
                "by_oom_killer": by_oom_killer,
                "is_cut": box.is_cut,
                "missing": MISSING,
            }
        about["format_version"] = tuple(about["format_version"])
        about["source_lines"] = source_lines(view, {}, about["torch_folders"])
        devices = {int(index): sizes for index, sizes in described["devices"].items()}
        output = _unused(path, described, event, when)
        output.parent.mkdir(parents=True, exist_ok=True)
        with open_atomically(output) as file:
            view.write(file.fileno(), os.fsencode(output), about, devices)
        who = f"process {about['pid']} of {about['host']}"
        if about["rank"] is not None:
            who = f"rank {about['rank']} ({who})"
        if box.last_step:
            who += f" in step {box.last_step}"
        return {**result, "path": os.fspath(output), "who": who}


def _unused(box: Path, described: dict[str, Any], event: str, when: str) -> Path:
    """Return a path that no file has, in the folder that the box is in now."""
    folder = Path(described["folder"])
    if box.parent.name == places.FOLDER:  # which may have been moved, or be another container's
        folder = box.parent.parent
    before, between, after = described["path"]
    first = folder / f"{before}{event}{between}{when}{after}"
    for number in itertools.count(1):
        end = f"_{number}" if number > 1 else ""
        path = first.with_name(f"{first.stem}{end}{first.suffix}")
        if not path.exists():
            return path
    raise AssertionError


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
