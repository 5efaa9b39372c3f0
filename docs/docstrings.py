"""What the docstrings of classes say of their attributes."""

import inspect
import re
from typing import Any


def attributes(kind: Any) -> dict[str, str]:
    """Return the meaning of each attribute, from the docstrings of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(base.__doc__ or "")
        _, _, block = text.partition("Attributes:\n")
        for match in re.finditer(r"^ {4}([\w, ]+): (.+(?:\n {8}.*|\n(?= *\n {8}))*)", block, re.M):
            found |= dict.fromkeys(match[1].split(", "), as_json(match[2]))
    return found


def as_json(text: str) -> str:
    """Return a text of a docstring as one line, with JSON's name for None."""
    return re.sub(r"\bNone\b", "null", " ".join(text.split()))
