"""The origin of an exported snapshot: its rank, host and process, and a name for its output."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytracer.reading.files import SUFFIXES, Place
from pytracer.reading.snapshot import Snapshot
from pytracer.text import file_name


@dataclass(frozen=True)
class Origin:
    """The origin of a snapshot.

    Attributes:
        name: The name of the output, unique among the snapshots that are exported together.
        rank, pid: The process's rank and pid; None if unknown.
        step: The step of all events, if the file's name has one and the file itself has none.
        host: The host; "" if unknown.
    """

    name: str
    rank: int | None
    step: int | None
    host: str
    pid: int | None


def find_origin(snapshot: Snapshot, name: str, place: Place) -> Origin:
    """Return a snapshot's origin, from its metadata or else from its file's name."""
    metadata = snapshot.metadata
    return Origin(
        name=name,
        rank=place.rank if metadata.rank is None else metadata.rank,
        step=place.first if place.first == place.last else None,
        host=metadata.host or "",
        pid=metadata.pid,
    )


def unique_names(paths: Sequence[Path]) -> list[str]:
    """Return a different name for each snapshot's output.

    The name joins the parts of the path with dots, without the folders that all paths share:
    "step3.torch_memory_rank0_pid7".
    """
    absolute = [Path(os.path.abspath(path)) for path in paths]
    common = Path(os.path.commonpath([path.parent for path in absolute]))
    found: dict[str, None] = {}
    for path in absolute:
        text = ".".join(path.relative_to(common).parts)
        suffix = next((suffix for suffix in SUFFIXES if text.endswith(suffix)), "")
        stem = file_name(text.removesuffix(suffix))
        name, number = stem, 1
        while name in found:
            number += 1
            name = f"{stem}_{number}"
        found[name] = None
    return list(found)
