"""Tables for the terminal: numbers, ranges and call sites that fit their columns."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pytracer.analysis.frame_text import call_site_text
from pytracer.reading.snapshot import Frame
from pytracer.text import printable, size

_RANGE = re.compile(r"[\d.]+(?: \w+)?-[\d.]+ \w+")
_MARKS = re.compile(r"[\\`*_\[\]<>|~&#$]")
_LEAST_WIDTH = 12

Cell: TypeAlias = "str | Text | Fitted"
Columns: TypeAlias = "Mapping[str, str | Callable[[Any], Cell]]"
"""The header of each column, and the attribute of a row or the function that gives its cell."""


def make_table(
    rows: Iterable[Any], columns: Columns, *, title: str | None = None, text: int | None = None
) -> Table:
    """Make a table of numbers with a row for each of `rows`.

    Attributes whose name ends in `_bytes` are sizes; "-" stands for None and "". The other
    arguments are those of `new_table`.
    """
    table = new_table(columns, title=title, text=text)
    for row in rows:
        cells = []
        for column in columns.values():
            cells.append(_attribute(row, column) if isinstance(column, str) else column(row))
        add_row(table, *cells)
    return table


def new_table(names: Iterable[str], *, title: str | None = None, text: int | None = None) -> Table:
    """Make a table without rows. Of its columns of numbers, the one at `text` has texts instead."""
    # Titles and cells may hold names from a file, whose brackets are not markup.
    table = Table(title=None if title is None else Text(title, "table.title"), title_justify="left")
    for name in names:
        table.add_column(name, justify="right")
    if text is not None:
        table.columns[text].justify, table.columns[text].overflow = "left", "fold"
    return table


def transposed_table(
    columns: Mapping[str, Any], rows: Mapping[str, Callable[[Any], Cell]], title: str | None = None
) -> Table:
    """Make a table with a column for each of `columns`, by name, and a row for each figure of them.

    A row without texts is left out.
    """
    table = new_table(["", *columns], title=title, text=0)
    for name, figure in rows.items():
        if any(cells := [figure(each) for each in columns.values()]):
            add_row(table, name, *cells)
    return table


def add_row(table: Table, *cells: "Cell") -> None:
    """Add a row without markup; a range that is too wide breaks between its bounds."""
    table.add_row(*map(_shown, cells))


def _shown(cell: "Cell") -> "Text | Fitted":
    if not isinstance(cell, str):
        return cell
    if _RANGE.fullmatch(cell) is None:
        return Text(cell, overflow="fold")

    def range_text(width: int | None) -> str:
        return cell if width is None or len(cell) <= width else cell.replace("-", "-\n")

    return Fitted(range_text)


def _attribute(row: Any, name: str) -> "Cell":
    value: int | Cell | None = getattr(row, name)
    if value is None or value == "":
        return "-"
    if isinstance(value, int):
        return size(value) if name.endswith("_bytes") else f"{value:,}"
    return printable(value) if isinstance(value, str) else value


class Fitted:
    """A cell that fits its text to the width of its column."""

    def __init__(self, fit: Callable[[int | None], str]) -> None:
        """Make a cell, given a function that returns the text for a width; None: any width."""
        self._fit = fit
        self.longest = fit(None)
        self._width = max(map(len, self.longest.split("\n")))

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


def call_chain(frame: Frame | None, callers: Sequence[Frame] = (), *more: str) -> Fitted:
    """Make the cell of a call site: a line for it and for each caller, and then lines `more`.

    The file name and the line number of each stay on one line.
    """

    def lines(width: int | None) -> str:
        shorter = None if width is None else width - len("← ")
        called_by = [f"← {call_site_text(caller, shorter)}" for caller in callers]
        return "\n".join([call_site_text(frame, width), *called_by, *more])

    return Fitted(lines)
