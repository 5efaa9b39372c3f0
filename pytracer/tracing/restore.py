"""The program that writes a snapshot from a box, for a process that ended without writing.

`python -m pytracer.tracing.restore BOX WHEN ONLY_IN` prints a JSON object as its last line:
`path` of the snapshot, or null if the process had used no device or had written all; `ended`, a
sentence; and `is_other`, whether the output is not in the folder `ONLY_IN`, and the box was left
alone. `WHEN` becomes a part of the snapshot's name.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pytracer import _core
from pytracer.atomic_file import open_atomically
from pytracer.boxes import places
from pytracer.tracing import cgroup
from pytracer.tracing.source_lines import source_lines

MISSING = ["owners", "statistics", "settings", "phases"]
"""What only the living process could have said."""


def main() -> None:
    """Write the snapshot; see the module."""
    box, when, only_in = sys.argv[1:]
    print(json.dumps(restored(Path(box), when, only_in)))


def restored(path: Path, when: str, only_in: str) -> dict[str, Any]:
    """Write the snapshot of a box, and return what the program prints."""
    with open(path, "rb") as file:
        box = _core.Box(file.fileno())
        described = json.loads(box.description or b"{}")
        result = {"path": None, "ended": "", "is_other": False}
        if not described:
            return result
        output = Path(when.join(described["path"]))
        if only_in and Path(only_in) not in output.parents:
            return {**result, "is_other": True}
        (depth, context, forward), about = described["recording"], described["metadata"]
        view = box.view(depth, context, forward, places.boot_of(path) == places.boot())
        if described["only_if_used"] and not view.used_devices:
            return result
        killed = {
            "by_oom_killer": cgroup.has_killed(described["cgroup"]),
            "is_cut": box.is_cut,
            "missing": MISSING,
        }
        about = {
            **about,
            "written_ns": time.time_ns(),
            "killed": killed,
            "waiting": False,
            "current_step": box.last_step,
        }
        about["format_version"] = tuple(about["format_version"])
        about["source_lines"] = source_lines(view, {}, about["torch_folders"])
        devices = {int(index): sizes for index, sizes in described["devices"].items()}
        output.parent.mkdir(parents=True, exist_ok=True)
        with open_atomically(output) as opened:
            view.write(opened.fileno(), os.fsencode(output), about, devices)
        who = f"process {about['pid']} of {about['host']}"
        if about["rank"] is not None:
            who = f"rank {about['rank']} ({who})"
        ended = f"{who} ended without writing"
        if killed["by_oom_killer"]:
            ended += ", when the kernel's out-of-memory killer ended a process of its cgroup"
        return {**result, "path": os.fspath(output), "ended": ended}


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
