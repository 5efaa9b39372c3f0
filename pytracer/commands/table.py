"""What commands print: texts, and tables of numbers and call sites that fit their columns.

All texts are made printable here, because the author of a file chooses the names in it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pytracer.analysis.frame_text import call_site_text
from pytracer.reading.snapshot import Frame
from pytracer.text import number, printable, signed_size, size

_RANGE = re.compile(r"[\d.]+(?: \w+)?-[\d.]+ \w+")
_MARKS = re.compile(r"[\\`*_\[\]<>|~&#$]")
_LEAST_WIDTH = 12

Cell: TypeAlias = "str | Text | Fitted"
Column: TypeAlias = "str | Summed | Callable[[Any], Cell]"
"""An attribute of a row, or the function that returns the cell of a row."""
Columns: TypeAlias = "Mapping[str, Column]"
"""The columns of a table by their headers."""
Part: TypeAlias = "str | Text | Table"
"""A text, which is wrapped, "" for an empty line; a `line`; or a table."""


def echo(parts: Iterable[Part], console: Console | None = None) -> None:
    """Print parts, one below the other."""
    console = console or Console(highlight=False)
    for part in parts:
        shown = bold(part, "") if isinstance(part, str) else part
        console.print(shown, soft_wrap=isinstance(shown, Text) and bool(shown.no_wrap))


def bold(text: str, style: str = "bold") -> Text:
    """Return a text that is wrapped."""
    return Text(printable(text), style)


def line(text: str, style: str = "") -> Text:
    """Return a text that only the terminal wraps, so that its paths and commands can be copied."""
    return Text(printable(text), style, no_wrap=True)


def make_table(
    rows: Iterable[Any],
    columns: Columns,
    *,
    title: str = "",
    text: int | None = None,
    top: int | None = None,
    others: str = "other",
) -> Table:
    """Make a table of numbers with a row for each of `rows`.

    Attributes whose name ends in `_bytes` are sizes; "-" stands for None and "".

    Args:
        rows, columns: The content.
        title: The title.
        text: Of the columns of numbers, the one that has texts instead.
        top: The most rows. One more row has the sums of the other rows' attributes, and says how
            many `others` they are.
    """
    table, rows = new_table(columns, title=title, text=text), [*rows]
    for row in rows[:top]:
        add_row(table, *(_cell(column, row) for column in columns.values()))
    if left := rows[len(rows) if top is None else top :]:
        *summed, _ = columns.values()
        total = Total(left)
        sums = ("" if callable(column) else _cell(column, total) for column in summed)
        add_row(table, *sums, f"({number(len(left), others)})")
    return table


class Summed(NamedTuple):
    """A column whose function also returns the cell of a `Total`."""

    cell: Callable[[Any], Cell]


class Total:
    """A row with a name. Its other attributes are sums of those of rows; "" if they are texts."""

    def __init__(self, rows: Sequence[Any], name: Cell = "") -> None:
        """Make the row of one or several."""
        self._rows, self.name = rows, name

    def __getattr__(self, name: str) -> Any:
        """Return the sum of an attribute."""
        values = [getattr(row, name) for row in self._rows]
        return sum(values) if all(type(value) is int for value in values) else ""


def new_table(names: Iterable[str], *, title: str = "", text: int | None = None) -> Table:
    """Make a table without rows; the arguments are those of `make_table`."""
    # Titles and cells may hold names from a file, whose brackets are not markup.
    table = Table(title=bold(title, "table.title") if title else None, title_justify="left")
    for name in names:
        table.add_column(name, justify="right")
    if text is not None:
        table.columns[text].justify, table.columns[text].overflow = "left", "fold"
    return table


def transposed_table(
    columns: Iterable[tuple[str, Any]], rows: Mapping[str, Callable[[Any], Cell]], title: str = ""
) -> Table:
    """Make a table with a named column for each of `columns`, and a row for each figure of them.

    A row without texts is left out.
    """
    names, values = zip(*columns, strict=True)
    table = new_table(["", *names], title=title, text=0)
    for name, figure in rows.items():
        if any(cells := [*map(figure, values)]):
            add_row(table, name, *cells)
    return table


def add_row(table: Table, *cells: "Cell") -> None:
    """Add a row without markup; a range that is too wide breaks between its bounds."""
    table.add_row(*map(_shown, cells))


def _shown(cell: "Cell") -> "Text | Fitted":
    if not isinstance(cell, str):
        return cell
    if _RANGE.fullmatch(cell) is None:
        return Text(_printable(cell), overflow="fold")
    broken = cell.replace("-", "-\n")
    return Fitted(lambda width: cell if width is None or len(cell) <= width else broken)


def _cell(column: "Column", row: Any) -> "Cell":
    if isinstance(column, Summed):
        return column.cell(row)
    if callable(column):
        return column(row)
    value: int | Cell | None = getattr(row, column)
    if value is None or value == "":
        return "-"
    if not isinstance(value, int):
        return printable(value) if isinstance(value, str) else value
    if column.endswith("delta_bytes"):
        return signed_size(value)
    return size(value) if column.endswith("_bytes") else f"{value:,}"


def _printable(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


class Fitted:
    """A cell that fits its text to the width of its column."""

    def __init__(self, fit: Callable[[int | None], str]) -> None:
        """Make a cell, given a function that returns the text for a width; None: any width."""
        self._fit = fit
        self.longest = _printable(fit(None))
        self._width = max(map(len, self.longest.split("\n")))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the least width of the cell, and the width of its longest text."""
        width = min(self._width, options.max_width)
        return Measurement(min(width, _LEAST_WIDTH), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the text for the width of the column."""
        yield Text(_printable(self._fit(options.max_width)), overflow="fold")


def markdown(part: Part) -> str:
    """Return a text or a table as Markdown; "" for an empty line."""
    if isinstance(part, str):
        return _escaped(printable(part))
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
