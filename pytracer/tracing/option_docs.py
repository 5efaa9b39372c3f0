"""The documentation of a tracer's options, made from the table `OPTIONS`."""

import inspect
import textwrap
from typing import TypeVar

from pytracer.tracing.options import OPTIONS, Option

Class = TypeVar("Class", bound=type)

PLACEHOLDER = "    ...: see `pytracer.tracing.options.OPTIONS`."
"""The line of a docstring that `with_options` replaces."""


def with_options(documented: Class) -> Class:
    """Insert all options into the docstring of a class; a class decorator."""
    if documented.__doc__ is not None:  # `python -OO` drops docstrings
        arguments = "\n".join(map(_argument, OPTIONS.values()))
        documented.__doc__ = inspect.cleandoc(documented.__doc__).replace(PLACEHOLDER, arguments)
    return documented


def _argument(option: Option) -> str:
    text = f"{option.name}: {option.doc} Default: `{option.shown_default}`."
    return textwrap.fill(
        text, 96, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False
    )


def markdown_table() -> str:
    """Return the table of options for the documentation, in Markdown."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for option in OPTIONS.values():
        default = f"`{option.shown_default}`"
        if option.environment_default != option.default:
            default += f"; with `PYTRACER=1`: `{option.shown_environment_default}`"
        rows.append(f"| `{option.name}` | {default} | {option.doc} |")
    return "\n".join(rows) + "\n"
