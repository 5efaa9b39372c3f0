"""What recorded processes of this user do now, from their boxes.

The processes are not asked: a box is found among the files that a process has mapped, and read.
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from pytracer import _core
from pytracer.boxes.description import opened

_MAPPED = re.compile(
    rb" (/\S.*/(?:\.pytracer_boxes|pytracer_boxes_\d+)/[\w-]+\.box)$", re.MULTILINE
)


@dataclass(frozen=True)
class LiveDevice:
    """What a device of a recorded process has now.

    Attributes:
        pid: The process.
        rank: Its rank; None if it has none.
        device: The device, as in "cuda:0".
        step: The step in which the process is; 0: none.
        recorded: How many events it has recorded.
        allocated_bytes: The memory of blocks that were allocated since the recording began.
        peak_bytes: The most that was allocated, as far back as the ring has events.
        reserved_bytes: The memory of segments, likewise; None for the CPU.
        box: The file that has it.
    """

    pid: int
    rank: int | None
    device: str
    step: int
    recorded: int
    allocated_bytes: int
    peak_bytes: int
    reserved_bytes: int | None
    box: str


def live_devices(wanted: Collection[int | Path] = ()) -> list[LiveDevice]:
    """Return the devices of recorded processes of this user, by rank and pid.

    Args:
        wanted: Pids, and folders that have the outputs of processes. (): all processes.
    """
    folders = {Path(os.path.realpath(each)) for each in wanted if isinstance(each, Path)}
    found: list[LiveDevice] = []
    for pid, box in _boxes():
        with contextlib.suppress(Exception):  # it has ended meanwhile, or the file is damaged
            found += _devices(pid, box, folders if wanted and pid not in wanted else None)
    return sorted(found, key=lambda each: (each.rank is None, each.rank, each.pid, each.device))


def _boxes() -> Iterator[tuple[int, Path]]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if process.stat().st_uid != os.geteuid():
                continue
            boxes = set(_MAPPED.findall((process / "maps").read_bytes()))
            for box in boxes:
                # In the folders of the process, which may be those of a container.
                path = os.fsdecode(box)
                inside = Path(f"{process}/root", path.lstrip("/"))
                is_ours = os.path.exists(path) and os.path.samefile(path, inside)
                yield int(process.name), Path(path) if is_ours else inside


def _devices(pid: int, path: Path, folders: Set[Path] | None) -> Iterator[LiveDevice]:
    with opened(path) as found:
        if found is None:
            return
        box, described = found
        output = described.output
        if folders is not None and (
            output is None or folders.isdisjoint((output, *output.parents))
        ):
            return
        names = {_core.CPU_DEVICE: "cpu", _core.HOST_DEVICE: "host"}
        for now in filter(lambda now: now["recorded"], box.devices):
            index, reserved = now.pop("device"), now.pop("reserved_bytes")
            yield LiveDevice(
                pid=pid,
                rank=described.about.rank,
                device=names.get(index, f"{described.accelerator}:{index}"),
                step=box.last_step,
                reserved_bytes=None if index == _core.CPU_DEVICE else reserved,
                box=os.fspath(path),
                **now,
            )
