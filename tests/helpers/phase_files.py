"""The files of phases, and the job with phases that their tests record."""

from pathlib import Path
from typing import Any

import torch
from files_left import load
from step_files import BYTE, Snapshot

from pytracer import annotate

Events = list[dict[str, Any]]


def read(folder: Path) -> dict[str, Snapshot]:
    """Return all files by their folders; each folder has one file."""
    paths = [*folder.rglob("*.pickle")]
    found = {path.parent.relative_to(folder).as_posix(): load(path) for path in paths}
    assert len(found) == len(paths)
    return found


def trace(snapshot: Snapshot) -> Events:
    """Return the events of the only device, without what this file lacks of their blocks."""
    (events,) = snapshot["device_traces"]
    return [{key: event[key] for key in event if key != "allocation"} for event in events]


def of_phase(events: Events, *names: str) -> Events:
    return [event for event in events if event["user_metadata"] in names]


def window(snapshot: Snapshot) -> tuple[int, int, bool, str | None, int | None]:
    keys = ("first", "last", "complete", "phase", "occurrence")
    first, last, complete, phase, occurrence = (snapshot["pytracer"]["window"][key] for key in keys)
    return first, last, complete, phase, occurrence


def roll_out(size: int) -> torch.Tensor:
    torch.empty(size + 1, dtype=BYTE)
    return torch.empty(size, dtype=BYTE)


@annotate("actor_update")
def update(batch: list[torch.Tensor]) -> None:
    torch.empty(600, dtype=BYTE)
    with annotate("forward"):
        torch.empty(601, dtype=BYTE)
        batch.clear()
    torch.empty(602, dtype=BYTE)


def step_of_a_job(step: int) -> None:
    batch = []
    with annotate("rollout"):
        batch.append(roll_out(1000 * step))
    torch.empty(7, dtype=BYTE)
    update(batch)
    with annotate("rollout"):
        roll_out(1500 * step)
