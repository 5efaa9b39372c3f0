"""What a dry run's processes have to know, in an environment variable, and what each reports."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

VARIABLE = "PYTRACER_DRY_RUN"


@dataclass(frozen=True)
class Plan:
    """What the processes of a dry run do.

    Attributes:
        device: The model of the device, as in "h100".
        device_bytes: Its memory.
        context_bytes: What of it is assumed to be taken outside of torch's allocator.
        world_size, rank: The number of ranks, and the one that runs.
        is_together: Whether all ranks run, so that objects of the host can be exchanged.
        stop_after_steps: The number of steps of an optimizer after which a process ends; 0: none.
        time_limit_s: When a process ends, and says where it was.
        allow_writes: Whether checkpoints are written.
        folder: Where each process writes its `Report`.
    """

    device: str
    device_bytes: int
    context_bytes: int
    world_size: int
    rank: int
    is_together: bool
    stop_after_steps: int
    time_limit_s: float
    allow_writes: bool
    folder: str

    @staticmethod
    def of_environment() -> "Plan":
        """Return the plan of this process of a dry run."""
        return Plan(**json.loads(os.environ[VARIABLE]))

    def variable(self) -> dict[str, str]:
        """Return the variable that a process of the dry run needs."""
        return {VARIABLE: json.dumps(asdict(self))}


@dataclass
class Value:
    """A line of the program that reads values of the device, where they are always 0.

    Attributes:
        place: The line, as in "train.py:31".
        source: Its code.
        count: How often it read values.
        decides: Whether a branch, a loop or a size hangs on them.
    """

    place: str
    source: str
    count: int = 0
    decides: bool = False


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
        warning: Why the program would not run on the real device; "": it would.
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
    warning: str = ""

    def write(self, folder: str) -> None:
        """Write the report of this process."""
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(asdict(self)))


def read_report(folder: Path) -> Report | None:
    """Return one report of all processes; None: none of them used a device.

    The files are our own, in a folder of our own.
    """
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    whole = Report()
    for each in found:
        values = [Value(**value) for value in each.pop("values")]
        known = {value.place for value in whole.values}
        whole.values += [value for value in values if value.place not in known]
        whole.unknown += [text for text in each.pop("unknown") if text not in whole.unknown]
        whole.steps = max(whole.steps, each["steps"])
        whole.world_size = max(whole.world_size, each["world_size"])
        whole.unsaved += each["unsaved"]
        whole.gave_up |= each["gave_up"]
        whole.is_other_error |= each["is_other_error"]
        whole.stopped = whole.stopped or each["stopped"]
        whole.place = whole.place or each["place"]
        whole.versions = each["versions"]
        whole.warning = each["warning"]
    return whole if found else None
