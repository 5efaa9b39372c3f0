"""The answer about a program of the corpus, as `pytracer show` gives it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from corpus.truth import HEALTHY, LEAK, UNKNOWN, Program

from pytracer.analysis import explain
from pytracer.analysis.answer import Answer
from pytracer.analysis.answer_of_files import importance
from pytracer.analysis.answer_words import NO_PROBLEM, answer_of
from pytracer.analysis.blocks import held_at
from pytracer.analysis.device_data import device_data
from pytracer.analysis.holder_names import tells_where
from pytracer.analysis.leaks.results import DeviceLeaks
from pytracer.analysis.life_rules import UNKNOWN as NO_CATEGORY
from pytracer.analysis.oom.reasons import KEPT_GROWING, STREAMS, WAITING
from pytracer.reading import load
from pytracer.simulator.trials import try_settings

KINDS = {
    **{NO_PROBLEM: HEALTHY, "LEAK": LEAK, "CAN'T TELL": UNKNOWN, "MEMORY KEPT": KEPT_GROWING},
    **{"CACHED": STREAMS, "FREED": WAITING, "HOST": "host"},
}
"""The kind of an answer about a program that did not run out of memory, by its first words."""


CALL_SITE = re.compile(r"(\S+\.py|(?<=← )|(?<=called from )):\d+ \S+")


@dataclass(frozen=True)
class Found:
    """What pytracer says of a program.

    Attributes:
        kind: The kind, in the words of `Program.kinds`.
        answer: The answer about the device that matters.
        leaks: The search for leaks; None if there was none.
        status: The program's exit status.
        text: What the program and pytracer have printed.
        path: The file.
    """

    kind: str
    answer: Answer
    leaks: DeviceLeaks | None
    status: int
    text: str
    path: Path

    def texts(self, *roles: str) -> str:
        """Return the texts and the notes of the lines that have one of these roles."""
        lines = (line for line in self.answer.lines if line.role in roles)
        return "\n".join(f"{line.text} {line.note}" for line in lines).replace("`", "")


def look(program: Program, device: str, folder: Path, **more: str) -> Found:
    """Run a program in a folder, and ask for the answer."""
    done = program.run(device, folder, **more)
    path = program.recording(folder)
    explained = min(explain(load(path), try_settings=try_settings), key=importance)
    answer = answer_of(explained)
    if answer.kind == "oom":
        kind = explained.verdicts[0].kind
    else:
        (kind,) = (kind for words, kind in KINDS.items() if answer.verdict.startswith(words))
    said = "\n".join(
        f"{line.role:6} {line.amount} {line.text} ({line.note})" for line in answer.lines
    )
    text = f"{done.stderr[-2000:]}\n{answer.verdict}\n{said}"
    return Found(kind, answer, explained.leaks, done.returncode, text, path)


def is_line(program: Program, found: Found) -> bool:
    """Return whether a line that leaks is named, or one that calls it or is called by it."""
    growths = found.leaks.growths[:1] if found.leaks is not None else []
    places = {(frame.filename, frame.line) for growth in growths for frame in growth.frames}
    said, name = found.texts("why", "from"), Path(program.file).name
    return any(
        (program.file, line) in places or re.search(rf"\b{name}:{line}\b", said)
        for line in program.lines
    )


def is_rate(program: Program, found: Found) -> bool:
    """Return whether the answer has the bytes a step of a leak, within 2 %."""
    true = program.per_step or 0.0
    return found.leaks is not None and abs(found.leaks.bytes_per_step - true) <= true * 0.02


def is_kind(program: Program, found: Found) -> bool:
    """Return whether the kind is right, of a program that has ended as it should."""
    has_ended = found.status == 0 or found.answer.kind == "oom"
    return found.kind in program.kinds and has_ended


def is_keeper(program: Program, found: Found) -> bool:
    """Return whether the keeper is named; functions and lines are not searched for its name."""
    return program.kept in CALL_SITE.sub("", found.texts("why", "from", "held", "lines"))


def is_advice(program: Program, found: Found) -> bool:
    """Return whether one of the first two remedies is the right one."""
    return any(program.do in line for line in found.texts("do").splitlines()[:2])


def helps(program: Program, found: Found) -> bool:
    """Return whether a program that does what helps runs to its end, with nothing wrong.

    It may handle an error of another kind, which came before.
    """
    is_handled = found.answer.kind == "oom" and found.kind not in program.kinds
    return found.status == 0 and (is_handled or found.kind in (HEALTHY, UNKNOWN))


Check = Callable[[Program, Found], bool]
PROPERTIES: dict[str, tuple[Callable[[Program], object], Check]] = {
    "verdict": (lambda program: program.kinds, is_kind),
    "keeper": (lambda program: program.kept, is_keeper),
    "line": (lambda program: program.lines, is_line),
    "rate": (lambda program: program.per_step, is_rate),
    "advice": (lambda program: program.do, is_advice),
    "remedy": (lambda program: program.helped, helps),
}
"""The properties of an answer: whether a program states the truth, and whether an answer is true.
The remedy is one of a second run, with what helps."""


def stated(program: Program, device: str) -> list[str]:
    """Return the properties that a program states on a device. NPUs add 32 bytes to each block."""
    names = [name for name, (states, _) in PROPERTIES.items() if states(program)]
    return [name for name in names if (name, device) != ("rate", "npu")]


def nameless_part(found: Found) -> float | None:
    """Return the part of the memory of which the file tells neither what it is nor who keeps it.

    Of the memory at the error, or at the peak. The part is 0 to 1; None: the file has no blocks.
    """
    snapshot = load(found.path)
    data = device_data(snapshot, 0)
    usage = data.history.usage.allocated_bytes
    if data.block_categories is None or not len(usage):
        return None
    held = held_at(data, len(data.trace) if found.answer.kind == "oom" else int(usage.argmax()))
    is_nameless = held.is_in("category", NO_CATEGORY) & ~held.are("holder", tells_where)
    size_bytes = held["size_bytes"]
    return float(size_bytes[is_nameless].sum() / max(size_bytes.sum(), 1))
