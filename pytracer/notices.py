"""What pytracer has to say to the person at the other end: once, and never by an exception."""

import contextlib
import logging

_log = logging.getLogger("pytracer")
_said: set[str] = set()


def say_once(message: str) -> None:
    """Logs `message` as a warning of the logger "pytracer", once in a process."""
    if message not in _said:
        _said.add(message)
        with contextlib.suppress(Exception):  # a handler of the user's may raise
            _log.warning("pytracer: %s", message)
