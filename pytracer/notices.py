"""What pytracer has to say to the person at the other end: once, and never by an exception."""

import contextlib
import logging

_log = logging.getLogger("pytracer")
_said: set[str] = set()


def say_once(message: str, kind: str | None = None) -> None:
    """Logs `message` as a warning of the logger "pytracer", once in a process.

    With `kind`: one of its kind, of which there may be any number.
    """
    kind = message if kind is None else kind
    if kind not in _said:
        _said.add(kind)
        with contextlib.suppress(Exception):  # a handler of the user's may raise
            _log.warning("pytracer: %s", message)
