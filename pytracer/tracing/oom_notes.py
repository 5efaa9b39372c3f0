"""The answer about an out-of-memory, in the exception that torch raises for it.

People read the last lines of a traceback, in the log of Ray's driver or of a scheduler, and not the
stderr of the process that failed. torch makes the exception after the snapshot was written, maybe
on another thread, so the answer waits here for it.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytracer.log import warn_once

if TYPE_CHECKING:
    from pytracer.analysis.answer import Answer

_ROLES = ("why", "held", "do")
_TORCHS = "Tried to allocate"
"""What the message has if an allocation failed. A program may raise the exception, too."""

_waiting = ""
_follows = False


def leave(path: Path, answer: "Answer | None") -> None:
    """Add a note to the exception that torch raises next for an allocation that failed.

    From Python 3.11 on it is a note (PEP 678), so that the message stays as it is for frameworks
    that read it; before, it stands behind the message. Never raises.

    Args:
        path: The snapshot.
        answer: The answer about it; None if it is unknown.
    """
    global _waiting
    try:
        _follow()
        lines = ["memory ran out; `pytracer show` says why"]
        if answer is not None:
            from pytracer.analysis.answer import log_lines  # not needed while memory is enough

            lines = log_lines(answer, _ROLES)
        _waiting = "\n  ".join((f"pytracer: {lines[0]}", *lines[1:], f"file: {path}"))
    except Exception as error:  # another torch than expected
        warn_once(f"the exception of an out-of-memory has no note: {error!r}")


def forget() -> None:
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
        begin(self, *arguments)
        _note(self)

    kind.__init__ = initialise
    _follows = True


def _note(error: Any) -> None:
    global _waiting
    message = error.args[0] if error.args else None
    if not _waiting or not isinstance(message, str) or _TORCHS not in message:
        return
    text, _waiting = _waiting, ""
    if sys.version_info >= (3, 11):
        error.add_note(text)
    else:
        error.args = (f"{message}\n{text}", *error.args[1:])
