"""Reports in the form of JSON."""

from dataclasses import fields, is_dataclass
from math import isfinite
from types import SimpleNamespace
from typing import Any

from pytracer.reading.metadata import FileMetadata

SCHEMA_VERSION = 3
"""The version of all JSON that commands write.

It is raised when keys are removed or change their meaning, not when keys are added.
"""


def to_json(value: Any) -> Any:
    """Return a report as dicts, lists, strings, numbers, bools and None.

    Args:
        value: Any value. Dataclasses, namespaces and named tuples become dicts of their attributes.
            Values that JSON does not have, as a file's metadata may contain, become strings. The
            metadata of a file is as it is in the file.
    """
    if isinstance(value, FileMetadata):
        value = value.as_written
    if isinstance(value, SimpleNamespace):
        value = vars(value)
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return to_json(value._asdict())
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, str | int | float) else repr(value)
