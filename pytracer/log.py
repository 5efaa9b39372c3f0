"""Warnings to the user, on the logger "pytracer", and lines on stderr."""

import contextlib
import logging
import sys

_log = logging.getLogger("pytracer")
_logged: set[str] = set()


def warn_once(message: str, kind: str | None = None) -> None:
    """Log a warning on the logger "pytracer", once in a process. Never raises.

    Args:
        message: The text.
        kind: Messages of one kind are logged once, whatever their text; None: `message` itself.
    """
    kind = message if kind is None else kind
    if kind not in _logged:
        _logged.add(kind)
        with contextlib.suppress(Exception):  # a logging handler of the program may raise
            _log.warning("pytracer: %s", message)


def print_line(line: str) -> None:
    """Write a line to stderr in one piece.

    `print` writes the text and the end of the line by two calls. With `PYTHONUNBUFFERED=1` they
    reach the file one by one, and the lines of several processes become mixed.
    """
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
