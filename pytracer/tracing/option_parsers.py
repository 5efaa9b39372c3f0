"""Parsers of the texts of options, in variables and on the command line.

A parser returns the text itself if the text has another form, and leaves the error to the check.
"""

import json
from dataclasses import fields

from pytracer.tracing.step_windows import CyclicSchedule


def parse_int(text: str) -> object:
    """Parse a decimal integer."""
    try:
        return int(text)
    except ValueError:
        return text


def parse_bool(text: str) -> object:
    """Parse a boolean: 1, true, on, yes; 0, false, off, no."""
    known = {"1": True, "true": True, "on": True, "yes": True}
    known.update({"0": False, "false": False, "off": False, "no": False})
    return known.get(text.strip().lower(), text)


def parse_none(text: str) -> str | None:
    """Parse "none" as None; return any other text."""
    return None if text.strip().lower() == "none" else text


def parse_list(text: str) -> list[str]:
    """Parse items separated by commas."""
    return [item.strip() for item in text.split(",")]


def parse_ranks(text: str) -> object:
    """Parse integers separated by commas; "all"."""
    if text.strip().lower() == "all":
        return "all"
    return [parse_int(item) for item in parse_list(text)]


def parse_schedule(text: str) -> object:
    """Parse arguments of `torch.profiler.schedule`, as in "wait=1,active=3"; "none"."""
    known = {field.name for field in fields(CyclicSchedule)}
    numbers: dict[str, int] = {}
    for item in parse_list(text):
        name, _, number = item.partition("=")
        if name not in known or not number.isdecimal():
            return parse_none(text)
        numbers[name] = int(number)
    return CyclicSchedule(**numbers) if numbers.get("active") else text


def parse_discrete(text: str) -> object:
    """Parse a boolean, or names separated by commas; "none" is False."""
    value = parse_bool("no" if parse_none(text) is None else text)
    return value if isinstance(value, bool) else parse_list(text)


def parse_json(text: str) -> object:
    """Parse JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
