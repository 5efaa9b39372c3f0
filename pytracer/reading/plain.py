"""Reports as JSON has them."""

from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any


def plain(value: Any) -> Any:
    """A report as dicts, lists, strings, numbers, bools and None.

    Args:
        value: Dataclasses and named tuples, which become dicts of their attributes, and all that
            JSON has. What it has no word for, as a stranger's file may hold, becomes a string.
    """
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, str | int | float) else repr(value)
