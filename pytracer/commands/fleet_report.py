"""The command `pytracer fleet report`."""

import io
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path

import click
from rich.console import Console

from pytracer import __version__
from pytracer.commands.json_output import JsonOutput, json_options
from pytracer.commands.shared_options import source
from pytracer.commands.table import Columns, Part, echo, line, make_table
from pytracer.errors import optional
from pytracer.fleet.dataset import MARK
from pytracer.fleet.report_results import FleetReport, Row
from pytracer.fleet.report_texts import delta_text, notes, site_text, told_settings
from pytracer.text import number, printable, signed_size, size

_ROWS_OF_PAGE = 200  # the most rows of a table in the HTML file

_COLUMNS = 120
_PAGE_MARK = '<meta name="generator" content="pytracer fleet report'

# Rich fills in the style sheet and the text.
_PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{_PAGE_MARK} {escape(__version__)}">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TITLE</title>
<style>
:root {{{{ color-scheme: light dark; }}}}
pre {{{{ width: {_COLUMNS + 2}ch; margin: 2rem auto; white-space: pre-wrap; }}}}
{{stylesheet}}
</style>
</head>
<body>
<pre>{{code}}</pre>
</body>
</html>
"""

_MARKS = {"found": "! ", "unknown": "? ", "none": "  "}


@click.command("report")
@click.argument("table", metavar="DIRECTORY|TABLE", type=source)
@click.option("--run", help="The run to report on.  [default: the run that was written last]")
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    help="The number of ranks of the job, so that missing last ranks are found.  "
    "[default: the highest rank of a file, and one]",
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="How many rows of each table to print. JSON has all rows.",
)
@click.option(
    "--html",
    "html_path",
    metavar="PATH",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the report as one HTML file that needs no network, with 200 rows a table.",
)
@click.option(
    "--sql",
    "as_sql",
    is_flag=True,
    help="Print the SQL of the report on a TABLE for DuckDB, and nothing else.",
)
@json_options
def command(
    table: str,
    run: str | None,
    ranks: int | None,
    top: int,
    html_path: Path | None,
    as_sql: bool,
    json_output: JsonOutput,
) -> None:
    """Which ranks use more memory, leak, or ran out of memory first?

    \b
    pytracer fleet report outputs/profile
    pytracer fleet report outputs/profile --html report.html

    Compares the ranks of a run. Reads all snapshots of a DIRECTORY each time. A TABLE of
    "pytracer fleet collect" has been read once.
    """
    from pytracer.fleet.report import fleet_report, script

    if as_sql:
        click.echo(script(Path(table), run, ranks))
        return
    with ExitStack() as folders:
        found = fleet_report(_dataset(table, folders), run, ranks=ranks)
    found.table = table
    json_output.write(vars(found), [])
    if not json_output.is_only:
        echo(_parts(found, top))
    if html_path is not None:
        _write_page(found, html_path)
        if not json_output.is_only:
            click.echo(printable(f"wrote {html_path}"))


def _dataset(path: str, folders: ExitStack) -> Path:
    """Return the dataset at `path`, or one of the snapshots there, which `folders` removes."""
    if Path(path, MARK).exists():
        return Path(path)
    from pytracer.commands.fleet_collect import collect_with_progress
    from pytracer.fleet.collection import LocalEngine
    from pytracer.fleet.report import WHO_NEEDS

    optional(WHO_NEEDS, "duckdb", "pyarrow")
    dataset = Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="pytracer-")))
    collected = collect_with_progress([path], dataset, LocalEngine())
    for error in collected.errors:
        click.echo(f"Error: {printable(error)}", err=True)
    return dataset


def _write_page(report: FleetReport, path: Path) -> None:
    """Write a report as a page. Only an earlier page of this kind is overwritten.

    Raises:
        PytracerError: The file cannot be written, or exists and is no such page.
    """
    from pytracer.page.page import write_page  # needed for a page only

    console = Console(record=True, file=io.StringIO(), width=_COLUMNS, highlight=False)
    echo(_parts(report, _ROWS_OF_PAGE, is_page=True), console)
    title = f"{report.run or 'Files without a run'}: {number(report.overview.processes, 'rank')}"
    shown = escape(printable(title)).replace("{", "{{").replace("}", "}}")
    text = console.export_html(code_format=_PAGE.replace("TITLE", shown))
    write_page(path, text.encode(errors="replace"), _PAGE_MARK, "pytracer fleet report")


def _parts(report: FleetReport, top: int, *, is_page: bool = False) -> Iterator[Part]:
    for answer in report.answers:
        style = "bold" if answer.verdict == "found" else ""
        yield line(_MARKS[answer.verdict] + answer.text, style)
    yield ""
    yield from map(line, notes(report))
    for title, rows, columns, text in _tables(report, top, is_page=is_page) if top else ():
        if rows:
            table = make_table(rows[:top], columns, title=title, text=text)
            if len(rows) > top:
                table.caption = number(len(rows) - top, "more row")
            yield from ("", table)
    if report.commands:
        yield from ("", "Look further:")
        for command in report.commands:
            yield line(f"  {command.command}", "bold")
            yield line(f"      {command.why}")


def _tables(
    report: FleetReport, top: int, *, is_page: bool
) -> Iterator[tuple[str, Sequence[Row], Columns, int]]:
    """Yield the title, the rows and the columns of each table, and the column that has texts."""
    columns: Columns = {
        "after": lambda oom: "-" if oom.after_s is None else f"{oom.after_s:.3g} s",
        "rank": "process",
        "requested": "requested_bytes",
        "verdict": "verdict",
        "call site": _site,
    }
    yield "Out-of-memory errors in order of time", report.ooms, columns, -1
    columns = {
        "files": "slot",
        "ranks": "ranks",
        "lowest": "least_bytes",
        "median": "median_bytes",
        "highest": "most_bytes",
        "outliers": _outliers,
    }
    highest = sorted(report.spread, key=lambda each: -each.most_bytes)[:top]
    shown_first = sorted(report.spread, key=lambda each: each not in highest)
    yield "Peaks of allocated memory", shown_first, columns, 0
    columns = {
        "rank": "process",
        "files": lambda outlier: f"{outlier.slots:,} of {outlier.of_slots:,}",
        "peak": "peak_bytes",
        "delta": lambda outlier: delta_text(outlier.median_bytes, outlier.peak_bytes),
        "most of it at": _most_at,
    }
    yield "Ranks that differ from the median", report.outliers, columns, -1
    columns = {
        "growth": lambda row: f"{size(round(row.bytes_per_step))} a {row.unit or 'step'}",
        "ranks": lambda row: f"{_ranks(row.ranks, row.processes)} of {row.of_ranks:,}",
        "verdict": "verdict",
        "held": "held_bytes",
        "call site": _site,
    }
    yield "Memory that grows", report.growth, columns, -1
    columns = {
        "phase": lambda phase: phase.phase or "(none)",
        "median": "median_bytes",
        "highest": "most_bytes",
        "ratio": lambda phase: f"{phase.imbalance:.3g}",
        "ranks": "ranks",
        "rank": "process",
    }
    phases = report.phases if any(phase.phase for phase in report.phases) else []
    yield "Peaks by phase, where the ranks differ most", phases, columns, 0
    columns = {
        "ranks": lambda row: _ranks(row.ranks, [] if row.is_usual else row.processes),
        "setting": "key",
        "value": lambda row: "(not set)" if row.value is None else row.value,
    }
    yield "Settings that differ", told_settings(report.settings), columns, -1
    if not is_page:  # a terminal has no room for further tables; the answers name what is in them
        return
    columns = {
        "rank": lambda missing: f"{missing.role} {missing.rank}".strip(),
        "reason": "reason",
        "files that most ranks have": lambda missing: (
            "all" if missing.has_none else ", ".join(missing.slots)
        ),
    }
    yield "Ranks without files", report.missing, columns, -1
    columns = {
        "file": "source",
        "reason": lambda file: file.error.removeprefix(f"{file.source} "),
    }
    yield "Files that cannot be read", report.damaged, columns, -1


def _site(row: Row) -> str:
    return site_text(row.site)


def _outliers(spread: Row) -> str:
    is_known = spread.verdict in ("none", "outliers")
    return f"{spread.outliers:,}" if is_known else f"? ({spread.verdict})"


def _most_at(outlier: Row) -> str:
    if not outlier.sites:
        return "-"
    most = outlier.sites[0]
    return f"{site_text(most.site)} ({signed_size(round(most.delta_bytes))})"


def _ranks(count: int, names: Sequence[str]) -> str:
    return names[0] if count == 1 and names else f"{count:,}"
