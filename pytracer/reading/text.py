"""Sizes, times and names, as people read them in a terminal."""

import re

import numpy as np

from pytracer.reading.snapshot import Frame

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DURATIONS = (
    (10**3, 1, "µs"),
    (10**6, 10**3, "ms"),
    (10**10, 10**6, "s"),
    (10**99, 36 * 10**8, "h"),
)


def size(count_bytes: int) -> str:
    """Bytes to four digits, as in "12.05 MiB"."""
    number, unit = float(count_bytes), 0
    while abs(number) >= 1024 and unit + 1 < len(_UNITS):
        number, unit = number / 1024, unit + 1
    return f"{number:.4g} {_UNITS[unit]}"


def parsed_size(text: str) -> int:
    """Bytes as people write them, "80GiB", "79.5 GiB", "80G" or "512", all of 1024.

    Raises:
        ValueError: It is none of these, or not more than nothing.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGTPE])(?:iB)?|B)?\s*", text)
    count_bytes = 0
    if found is not None:
        power = 0 if found[2] is None else " KMGTPE".index(found[2])
        count_bytes = round(float(found[1]) * 1024**power)
    if count_bytes <= 0:
        raise ValueError(f"{text!r} is no size: give one as 80GiB, 512MiB or 1073741824")
    return count_bytes


def number(count: int, of_one: str, of_others: str = "") -> str:
    """As in "1 free", "2 frees"."""
    return f"{count:,} {of_one if count == 1 else of_others or of_one + 's'}"


def time(time_us: int) -> str:
    """An instant in microseconds since the Unix epoch, in UTC."""
    return f"{np.datetime64(time_us, 'us')}".replace("T", " ") + " UTC"


def duration(duration_us: int) -> str:
    """Microseconds to four digits, as in "1.5 ms"."""
    _, unit_us, unit = next(each for each in _DURATIONS if abs(duration_us) < each[0])
    return f"{duration_us / unit_us:.4g} {unit}"


def place(frame: Frame | None) -> str:
    """A frame with the last two parts of its file's path; None: not known."""
    if frame is None:
        return "(not known)"
    path = "/".join(re.split(r"[/\\]", frame.filename)[-2:])
    return printable(f"{path}:{frame.line} {frame.name}")


def printable(text: str) -> str:
    """Names in a file are of its choosing: what would control the terminal is replaced."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)


def folded(text: str, width: int, ends: str = "/_") -> str:
    """A text in lines that end behind one of `ends`, if they can: by default those of a path."""
    lines = [""]
    for part in re.findall(rf"[^{ends}]*[{ends}]|[^{ends}]+", text):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
