"""Call sites as text."""

import re
from collections.abc import Sequence

from pytracer.reading.snapshot import Frame
from pytracer.text import printable


def call_site_text(frame: Frame | None, width: int | None = None) -> str:
    """Return a call site as text, as in "models/llama.py:123 forward"; without an unknown line.

    Args:
        frame: The call site's frame; None if the call site is unknown.
        width: The length of the longest line. A text that does not fit is shortened: first the path
            from the left, then the function from the right. The file name and the line number stay
            together, and the function gets a line of its own where they leave no room for it.
    """
    if frame is None:
        return "(unknown)"
    if frame.filename in ("", "??"):  # a C++ function has no file
        of_backward = _OF_BACKWARD.match(frame.name)
        name = frame.name if of_backward is None else "backward"
        if of_backward is not None and of_backward[1]:
            name += f" ({of_backward[1]})"
        return _shortened(printable(name), width)
    folder, name = ["", *re.split(r"[/\\]", printable(frame.filename))][-2:]
    file, function = f"{name}:{frame.line}" if frame.line else name, printable(frame.name)
    path = f"{folder}/{file}" if folder else file
    if width is None or len(path) + 1 + len(function) <= width:
        return f"{path} {function}"
    if len(file) + 1 + min(len(function), _LEAST_FUNCTION) <= width:
        return f"{file} {_shortened(function, width - len(file) - 1)}"
    if len(file) > width:
        file = "…" + file[1 - width :]
    return f"{file}\n{_shortened(function, width)}"


# A node of autograd, or its engine, as torch's recorder names their C++ functions.
_OF_BACKWARD = re.compile(r"torch::autograd::(?:(?:\w+::)*(\w+)::apply\(|Engine::)")

MOST_CALLERS = 2  # how many callers of a call site are shown


def is_users(frame: Frame) -> bool:
    """Return whether a frame is of the user's own code, not of an installed package."""
    return "site-packages" not in frame.filename and "dist-packages" not in frame.filename


def shown_callers(frame: Frame | None, callers: Sequence[Frame]) -> list[Frame]:
    """Return the first callers of a call site, at most `MOST_CALLERS`.

    If all frames are of installed packages, the last is the first one of the user's own code.
    """
    shown = list(callers[:MOST_CALLERS])
    if frame is None or any(map(is_users, (frame, *shown))):
        return shown
    users = [caller for caller in callers if is_users(caller)]
    return [*shown[: MOST_CALLERS - 1], *users[:1]] if users else shown


def chain_text(frame: Frame | None, callers: Sequence[Frame]) -> str:
    """Return a call site and its callers, as in "models/llama.py:123 forward ← :98 train".

    A caller in the same file as the frame before it has no file name.
    """
    text, before = call_site_text(frame), frame
    for caller in callers:
        where = call_site_text(caller)
        if before is not None and caller.filename == before.filename and caller.line:
            where = f":{caller.line} {printable(caller.name)}"
        text, before = f"{text} ← {where}", caller
    return text


_LEAST_FUNCTION = 12  # the least number of characters that are shown of a function's name


def _shortened(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: max(width - 1, 0)] + "…"
