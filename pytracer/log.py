"""Warnings to the user, on the logger "pytracer", and lines on stderr."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

_log = logging.getLogger("pytracer")
_logged: set[str] = set()


def warn_once(message: str, kind: str | None = None) -> None:
    """Log a warning on the logger "pytracer", once in a process. Never raises.

    Messages of one `kind` are logged once, whatever their text; None: the kind is the text.
    """
    kind = message if kind is None else kind
    if kind not in _logged:
        _logged.add(kind)
        with contextlib.suppress(Exception):  # a logging handler of the program may raise
            _end_progress_bar()
            prefix = _prefix()
            for line in message.splitlines():  # lines of several processes may be mixed
                _log.warning("%s%s", prefix, line)


@contextlib.contextmanager
def harmless(
    message: str, kind: str | None = None, log: Callable[[str, str | None], object] = warn_once
) -> Iterator[None]:
    """Log an exception of the body instead of raising it; the body ends there.

    `message` has `{error}` where the exception is named. Of a `kind`, each class of exceptions is
    logged once.
    """
    try:
        yield
    except Exception as error:
        kind = None if kind is None else f"{kind}: {type(error)}"
        text = type(error).__name__
        with contextlib.suppress(Exception):  # an exception of the program may have no text
            text = repr(error)
        log(message.replace("{error}", text), kind)


def report_once(message: str, kind: str | None = None) -> None:
    """Log a warning as `warn_once` does, and write it to stderr even if the program's logging
    does not: for lines about files and out-of-memory errors, which people look for there.
    """
    kind = message if kind is None else kind
    if kind not in _logged:
        warn_once(message, kind)
        with contextlib.suppress(Exception):  # there may be no stderr
            if not _logs_to_stderr():
                print_line("\n".join(f"pytracer: {line}" for line in message.splitlines()))


def _handlers() -> list[logging.Handler]:
    return [*_log.handlers, *(_log.root.handlers if _log.propagate else [])]


def _prefix() -> str:
    """Return what each line begins with: nothing if the program's logging names the logger."""
    formats = [str(getattr(handler.formatter, "_fmt", "")) for handler in _handlers()]
    named = all("(name)" in format or "{name}" in format for format in formats)
    return "" if formats and named else "pytracer: "


def _logs_to_stderr() -> bool:
    """Return whether a warning on the logger reaches stderr.

    `logging.config.dictConfig` disables all loggers that exist, if it is not asked to keep them.
    """
    if not _log.isEnabledFor(logging.WARNING) or sys.stderr is None:  # or the logger is disabled
        return False
    if not (handlers := _handlers()):
        return logging.lastResort is not None
    streams = [getattr(each, "stream", None) for each in handlers if each.level <= logging.WARNING]
    return any(stream is sys.stderr for stream in streams)


def _end_progress_bar() -> None:
    """End the line of a progress bar of tqdm, so that what follows begins a line of its own."""
    with contextlib.suppress(Exception):  # another tqdm than expected
        bars = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
        if bars is not None and any(
            bar.fp is sys.stderr or getattr(bar.fp, "_wrapped", None) is sys.stderr
            for bar in list(bars._instances)
        ):
            sys.stderr.write("\n")


def print_line(line: str) -> None:
    """Write a line to stderr in one piece.

    `print` writes the text and the end of the line by two calls. With `PYTHONUNBUFFERED=1` they
    reach the file one by one, and the lines of several processes become mixed.
    """
    _end_progress_bar()
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
