"""Tables for the terminal: numbers, ranges and call sites that fit their columns."""

import re
from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pytracer.analysis.frame_text import call_site_text
from pytracer.reading.snapshot import Frame

_RANGE = re.compile(r"[\d.]+(?: \w+)?-[\d.]+ \w+")
_MARKS = re.compile(r"[\\`*_\[\]<>|~&#$]")
_LEAST_WIDTH = 12


def new_table(*names: str, title: str | None = None, text: int = 0) -> Table:
    """Make a table of numbers.

    Args:
        names: The headers of the columns.
        title: The title above the table.
        text: 1: the first column is text; -1: the last column is text; 0: none is.
    """
    # Titles and cells may hold names from a file, whose brackets are not markup.
    table = Table(title=None if title is None else Text(title, "table.title"), title_justify="left")
    for i, name in enumerate(names):
        is_text = i == (0 if text > 0 else len(names) - 1) and text != 0
        if is_text:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right")
    return table


def add_row(table: Table, *cells: "str | Fitted") -> None:
    """Add a row without markup; a range that is too wide breaks between its bounds."""
    table.add_row(*map(_cell, cells))


def _cell(cell: "str | Fitted") -> "Text | Fitted":
    if isinstance(cell, Fitted):
        return cell
    return _range(cell) if _RANGE.fullmatch(cell) else Text(cell, overflow="fold")


def _range(cell: str) -> "Fitted":
    return Fitted(lambda width: cell if len(cell) <= width else cell.replace("-", "-\n"), cell)


class Fitted:
    """A cell that fits its text to the width of its column.

    Attributes:
        longest: The text for a column that is wide enough.
    """

    def __init__(self, fit: Callable[[int], str], longest: str) -> None:
        """Make a cell.

        Args:
            fit: Returns the text for a width.
            longest: The attribute of this name.
        """
        self._fit = fit
        self.longest = longest
        self._width = max(map(len, longest.split("\n")))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the least width of the cell, and the width of its longest text."""
        width = min(self._width, options.max_width)
        return Measurement(min(width, _LEAST_WIDTH), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the text for the width of the column."""
        yield Text(self._fit(options.max_width), overflow="fold")


def markdown(part: Text | Table) -> str:
    """Return a line or a table as Markdown; "" for an empty line."""
    if isinstance(part, Text):
        return f"**{_escaped(part)}**" if part.style == "bold" else _escaped(part)
    columns = part.columns
    ends = ("---:" if column.justify == "right" else "---" for column in columns)
    rows = [[column.header for column in columns], *zip(*(c.cells for c in columns), strict=True)]
    lines = ["| " + " | ".join(map(_escaped, row)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join(ends) + "|")
    return "\n".join([f"**{_escaped(part.title)}**\n", *lines])


def _escaped(cell: object) -> str:
    """Return the text of a cell without a meaning in Markdown."""
    text = str(cell.longest if isinstance(cell, Fitted) else cell)
    return _MARKS.sub(r"\\\g<0>", text).replace("\n", "<br>")


def call_site(frame: Frame | None, *more: str) -> Fitted:
    """Make the cell of a call site, with further lines below it.

    The file name and the line number stay on one line.
    """

    def lines(width: int | None) -> str:
        return "\n".join([call_site_text(frame, width), *more])

    return Fitted(lines, lines(None))


def call_chain(frame: Frame | None, callers: Sequence[Frame]) -> Fitted:
    """Make the cell of a call site with its callers, one line each where the column is wide."""

    def lines(width: int | None) -> str:
        shorter = None if width is None else width - 2
        called_by = [f"← {call_site_text(caller, shorter)}" for caller in callers]
        return "\n".join([call_site_text(frame, width), *called_by])

    return Fitted(lines, lines(None))
