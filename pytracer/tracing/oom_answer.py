"""The answer about an out-of-memory: in the job's log, and in the exception that torch raises.

The thread that ran out of memory reads the snapshot again, which takes host memory only: nothing
here calls a device. The size of the file bounds the time and the memory; a larger file is left to
`pytracer show`.

People read the last lines of a traceback, in the log of Ray's driver or of a scheduler, and not the
stderr of the process that failed. torch makes the exception after the snapshot was written, maybe
on another thread, so the answer waits here for it.
"""

import contextlib
import sys
from pathlib import Path
from typing import Any

from pytracer.analysis.answer import Answer, log_lines
from pytracer.log import harmless, report_once
from pytracer.reading.snapshot import Snapshot
from pytracer.tracing import ranks

MOST_BYTES = 16 * 2**20  # of a file that is read: about 250,000 events, 1 s and 100 MB
_ROLES = ("why", "held", "do")
_TORCHS = "Tried to allocate"  # of torch's own exceptions; a program may raise others

_waiting = ""  # the note for the next exception
_follows = False


def report(message: str, kind: str | None = None) -> None:
    """Log lines as `report_once` does. Each names the rank, because ranks write into one log."""
    rank = ranks.current()
    name = f"rank {rank.rank}: " if rank.is_one_of_several else ""
    report_once("\n".join(name + line for line in message.splitlines()), kind)


def read_again(path: Path) -> Snapshot | None:
    """Return the snapshot that the job has written; None if it is too large to be read there."""
    from pytracer.reading.reader import load

    return load(path) if path.stat().st_size <= MOST_BYTES else None


def explain(path: Path, device: int) -> Answer | None:
    """Log the answer about a device's out-of-memory, one line a role; return it. Never raises."""
    failed = (
        f"the out-of-memory error was not explained: {{error}}. The snapshot {path} is complete; "
        "read it with `pytracer show`"
    )
    moved = contextlib.suppress(FileNotFoundError)  # by `on_snapshot`
    with harmless(failed, "out-of-memory error not explained", report), moved:
        if (snapshot := read_again(path)) is not None:
            from pytracer.analysis.answer_words import answer_of
            from pytracer.analysis.explanation import explain
            from pytracer.simulator.trials import try_settings

            (explanation,) = explain(snapshot, device, try_settings)
            answer = answer_of(explanation)
            report("\n".join(log_lines(answer)))
            return answer
    return None


def leave_note(path: Path, answer: Answer | None) -> None:
    """Add a note to the exception that torch raises next for an allocation that failed.

    From Python 3.11 on it is a note (PEP 678), so that the message stays as it is for frameworks
    that read it; before, it follows the message. Without an answer, the note names the snapshot
    alone. Never raises.
    """
    global _waiting
    with harmless("no note was added to the out-of-memory exception: {error}"):  # another torch
        _follow()
        lines = ["memory ran out; `pytracer show` says why"]
        if answer is not None:
            lines = log_lines(answer, _ROLES)
        _waiting = "\n  ".join((f"pytracer: {lines[0]}", *lines[1:], f"file: {path}"))


def forget_note() -> None:
    """Forget a note whose exception did not come: C++ code has handled it."""
    global _waiting
    _waiting = ""


def _follow() -> None:
    global _follows
    if _follows:
        return
    kind = sys.modules["torch"].OutOfMemoryError
    begin = kind.__init__

    def initialise(self: Any, *arguments: Any) -> None:
        global _waiting
        begin(self, *arguments)
        message = self.args[0] if self.args else None
        if not _waiting or not isinstance(message, str) or _TORCHS not in message:
            return
        text, _waiting = _waiting, ""
        self.add_note(text)

    kind.__init__ = initialise
    _follows = True
