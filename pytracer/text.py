"""Sizes, times and names as text for people, and sizes that people wrote."""

import hashlib
import re
from collections.abc import Collection

END_LINE = "pytracer: wrote "
"""The beginning of the line on stderr that names the snapshot at a tracer's end."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_MOST_QUOTED = 300  # characters
_DURATIONS = (
    (10**3, 1, "µs"),
    (10**6, 10**3, "ms"),
    (10**10, 10**6, "s"),
    (10**99, 36 * 10**8, "h"),
)
_LONGEST_FILE_NAME = 200  # bytes; file systems permit 255, of which prefixes and suffixes need some


def file_name(text: str) -> str:
    """Return a text as the name of a file: a long one ends with its hash instead."""
    content = text.encode(errors="backslashreplace")
    if len(content) <= _LONGEST_FILE_NAME:
        return text
    begin = content[:_LONGEST_FILE_NAME].decode(errors="ignore")
    return f"{begin}-{hashlib.sha256(content).hexdigest()[:20]}"


def did_you_mean(word: str, known: Collection[str], prefix: str = "") -> str:
    """Return "; did you mean NAME?" with the most similar word, behind `prefix`; "": none is."""
    import difflib  # only for errors

    near = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def size(count_bytes: int) -> str:
    """Return bytes to four digits, as in "12.05 MiB"."""
    number, unit = float(count_bytes), 0
    # 1023.96 rounds to 1024 of a unit, which is 1 of the next.
    while float(f"{abs(number):.4g}") >= 1024 and unit + 1 < len(_UNITS):
        number, unit = number / 1024, unit + 1
    return f"{number:.4g} {_UNITS[unit]}"


def signed_size(count_bytes: int) -> str:
    """Return a difference in bytes with its sign."""
    return f"+{size(count_bytes)}" if count_bytes > 0 else size(count_bytes)


def size_range(least_bytes: int, most_bytes: int) -> str:
    """Return two bounds, as in "25.13-26 MiB"; one figure if both have the same four digits."""
    least, most = size(least_bytes), size(most_bytes)
    if least == most:
        return most
    (number, unit), (_, most_unit) = least.split(" "), most.split(" ")
    return f"{number}-{most}" if unit == most_unit else f"{least}-{most}"


def parsed_size(text: str) -> int:
    """Return the bytes that a text means: "80GiB", "79.5 GiB", "80G", "512B" or "85899345920".

    Units are powers of 1024, with or without "iB".

    Raises:
        ValueError: The text is not a size, the size is zero, or a number below 1 MiB has no unit.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGTPE])(?:iB)?|B)?\s*", text)
    count_bytes = 0
    if found is not None:
        power = 0 if found[2] is None else " KMGTPE".index(found[2])
        count_bytes = round(float(found[1]) * 1024**power)
    if count_bytes <= 0:
        raise ValueError(f"{text!r} is not a size: give one such as 80GiB, 512MiB or 1073741824")
    if count_bytes < 2**20 and text.strip()[-1].isdecimal():
        written = text.strip()
        raise ValueError(f"{written} has no unit: give {written}GiB, {written}MiB or {written}B")
    return count_bytes


def number(count: int, singular: str, plural: str = "") -> str:
    """Return a count with its noun, as in "1 free" and "2 frees"."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def sentence(text: str) -> str:
    """Return a text that is not empty with a capital letter."""
    return f"{text[0].upper()}{text[1:]}"


def utc_time(time_us: int) -> str:
    """Return a time in microseconds since the Unix epoch as a date and time in UTC."""
    import numpy as np  # `datetime` ends with the year 9999, a damaged file's times do not

    return f"{np.datetime64(time_us, 'us')}".replace("T", " ") + " UTC"


def duration(duration_us: int) -> str:
    """Return microseconds to four digits, as in "1.5 ms"."""
    rounded_us = abs(float(f"{duration_us:.4g}"))
    _, unit_us, unit = next(row for row in _DURATIONS if rounded_us < row[0])
    return f"{duration_us / unit_us:.4g} {unit}"


def brief(value: object) -> str:
    """Return a value as Python writes it, shortened: a variable may have 100 KB."""
    try:
        shown = repr(value)
    except Exception as error:  # code of the program; or Python prints no integer of that size
        return f"(a value whose repr() raises {type(error).__name__})"
    half = _MOST_QUOTED // 2
    return shown if len(shown) <= _MOST_QUOTED else f"{shown[:half]}...{shown[-half:]}"


class BriefRepr:
    """A dataclass whose `repr` is bounded: a notebook stores that of what its cells return."""

    def __repr__(self) -> str:
        """Return the class and each attribute, shortened."""
        values = ", ".join(f"{name}={brief(value)}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"


def printable(text: str) -> str:
    """Replace characters that would control the terminal.

    A snapshot file's author chooses the names in it.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)


def wrapped_text(text: str, width: int, ends: str = "/_") -> str:
    """Break a text into lines of at most `width`, each after one of the characters `ends`.

    A part without one of `ends` stays in one line, however long. The default suits paths.
    """
    lines = [""]
    for part in re.findall(rf"[^{ends}]*[{ends}]|[^{ends}]+", text):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
