"""What a dry run's processes have to know, in an environment variable, and what each reports."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

VARIABLE = "PYTRACER_DRY_RUN"


@dataclass(frozen=True)
class Plan:
    """What the processes of a dry run do.

    Attributes:
        world_size, rank: The number of ranks, and the one that runs.
        is_together: Whether all ranks run, so that objects of the host can be exchanged.
        stop_after_steps: The number of steps of an optimizer after which a process ends; 0: none.
        time_limit_s: When a process ends, and says where it was.
        allow_writes: Whether checkpoints are written.
        folder: Where each process writes its `Report`.
    """

    world_size: int
    rank: int
    is_together: bool
    stop_after_steps: int
    time_limit_s: float
    allow_writes: bool
    folder: str


class Value(NamedTuple):
    """A line of the program that reads values of the device, where they are always 0.

    Attributes:
        place: The line, as in "train.py:31".
        source: Its code.
        decides: Whether a branch, a loop or a size hangs on them.
    """

    place: str
    source: str
    decides: bool


@dataclass
class Report:
    """What a process of a dry run says of itself at its end.

    Attributes:
        world_size: The number of ranks.
        steps: How many steps an optimizer made.
        stopped: Why the process ended early: "steps", "time"; "": it did not.
        gave_up: Whether memory ran out after the last step of an optimizer.
        is_other_error: Whether the process ended by an error that is not of memory.
        place: Where it was when its time was over, as in "train.py:31 while True:".
        versions: The versions of torch and of libraries that decide what is allocated.
        values: The lines that read values.
        unsaved: How many checkpoints were not written.
        unknown: What takes memory of a real device, and none here, as parts of a sentence.
    """

    world_size: int = 1
    steps: int = 0
    stopped: str = ""
    gave_up: bool = False
    is_other_error: bool = False
    place: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    unsaved: int = 0
    unknown: list[str] = field(default_factory=list)

    def write(self, folder: str) -> None:
        """Write the report of this process."""
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(asdict(self)))


def read_report(folder: Path) -> Report | None:
    """Return one report of all processes; None: none of them used a device.

    The files are our own, in a folder of our own.
    """
    whole = None
    for path in sorted(folder.glob("*.json")):
        each = Report(**json.loads(path.read_text()))
        each.values = [Value(*value) for value in each.values]
        whole = whole or each
        for name, value in vars(each).items():
            known = getattr(whole, name)
            if isinstance(value, list):
                known += [part for part in value if part not in known]
            elif not isinstance(value, dict):  # numbers: the largest; texts: one that is not empty
                setattr(whole, name, max(known, value))
    return whole
