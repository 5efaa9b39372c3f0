"""End a command that runs other processes when a signal asks for it."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn


class Interruption(SystemExit):
    """A signal has asked the command to end; the exit code is that which shells use for it."""


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raise `Interruption` on SIGINT, SIGTERM and SIGHUP, so that child processes end too.

    A signal that the command was started to ignore, as by nohup, stays ignored.
    """

    def interrupt(number: int, _: FrameType | None) -> NoReturn:
        raise Interruption(128 + number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
