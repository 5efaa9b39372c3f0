"""The program that writes a snapshot from a box: `pytracer.boxes.restoring` runs it.

`python -m pytracer.tracing.restore BOX FOLDER EVENT WHEN` writes a snapshot into FOLDER, and prints
a JSON object as its last line: `path` of the snapshot, or null if the process had used no device or
had written all, or if somebody else reads the box; `who`, as in "rank 3 (process 7 of host) in step
12"; and `is_by_oom_killer`. Or `problem`: why nothing was written.

The event is "killed" or, of a live process, "demand". The box of a killed process is removed when
its snapshot could be read. A box that nobody can read is set aside. What only this process could
not do, for want of memory, files or space, is tried again the next time.
"""

import contextlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from pytracer import _core
from pytracer.atomic_file import folders_of, open_output
from pytracer.boxes import places
from pytracer.boxes.description import DamagedBoxError, Description, opened
from pytracer.errors import PytracerError
from pytracer.reading.reader import load
from pytracer.tracing import host_memory
from pytracer.tracing.snapshot_files import numbered
from pytracer.tracing.source_lines import source_lines

MISSING = ["owners", "statistics", "settings", "phases"]
"""What only the living process could have said."""

SECONDS, BYTES_PER_SECOND = 10, 2**22
"""How much processor time a box may take, and how much longer for its size."""

_NOTHING = {"path": None, "who": "", "is_by_oom_killer": False}


def main() -> None:
    """Write the snapshot; see the module."""
    box, folder, event, when = sys.argv[1:]
    path = Path(box)
    try:
        if event != "killed":
            result = restored(path, Path(folder), event, when)
        else:
            with places.claimed(path) as is_mine:
                result = _moved(path, Path(folder), when) if is_mine else _NOTHING
    except (OSError, MemoryError, PytracerError) as error:  # messages of a PytracerError are whole
        is_whole = isinstance(error, PytracerError)
        reason = str(error) or "there is not enough memory"
        result = {"problem": reason if is_whole else f"cannot read {path}: {reason}"}
    print(json.dumps(result))


def _moved(path: Path, folder: Path, when: str) -> dict[str, Any]:
    """Write the snapshot of a box, and remove the box."""
    try:
        result = restored(path, folder, "killed", when)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, PytracerError) and not isinstance(error, DamagedBoxError):
            raise
        places.set_aside(path)
        raise DamagedBoxError(f"{path} cannot be read: {error}") from error
    # Else the next command would write another file.
    if not places.remove(path) and not places.empty(path):
        if result["path"] is not None:
            output = Path(result["path"])
            with contextlib.suppress(OSError):
                output.unlink()
                output.parent.rmdir()  # unless it has other files
        raise PytracerError(f"no snapshot was made of {path}: it cannot be removed")
    return result


def restored(path: Path, folder: Path, event: str, when: str) -> dict[str, Any]:
    """Write the snapshot of a box, and return what the program prints."""
    with opened(path) as found:
        if found is None:
            return _NOTHING
        box, described = found
        # If a box was made to take long, the kernel ends this process.
        before, most = resource.getrlimit(resource.RLIMIT_CPU)
        seconds = SECONDS + path.stat().st_blocks * 512 // BYTES_PER_SECOND
        if before == resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, most))
        depth, context = described.stack_depth, described.context
        try:
            is_same_boot = places.is_of_this_boot(path)
            view = box.view(depth, context, described.has_forward_stacks, is_same_boot)
        except PytracerError as error:  # there is no address space
            raise MemoryError(str(error)) from error
        if described.is_only_if_used and not view.used_devices:
            return _NOTHING
        about = dict(described.about.as_written)
        about |= {"written_ns": time.time_ns(), "current_step": box.last_step}
        by_oom_killer = None
        if event == "killed":
            by_oom_killer = host_memory.has_killed(described.kills)
            killed = {"by_oom_killer": by_oom_killer, "is_cut": box.is_cut, "missing": MISSING}
            killed["is_ray_worker"] = described.is_ray_worker
            about |= {"waiting": False, "killed": killed}
        about["source_lines"] = source_lines(view, {}, [*described.about.torch_folders])
        names = numbered(folder / described.file(event, when))
        output = next(path for path in names if not os.path.lexists(path))
        _write(output, view, about, described)
        who = described.who + (f" in step {box.last_step}" if box.last_step else "")
        return {"path": os.fspath(output), "who": who, "is_by_oom_killer": by_oom_killer}


def _write(output: Path, view: _core.View, about: dict[str, Any], described: Description) -> None:
    sizes = {index: {"total_bytes": size} for index, size in described.total_bytes.items()}
    try:
        with folders_of(output):
            with open_output(output) as file:
                view.write(file.fileno(), os.fsencode(output), about, sizes)
            try:
                load(output)
            except BaseException:
                output.unlink()
                raise
    except OSError as error:
        raise PytracerError(f"cannot write {output}: {error.strerror or error}") from error
    except PytracerError as error:
        if isinstance(error.__cause__, OSError | MemoryError):
            raise
        raise DamagedBoxError(str(error)) from error


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
