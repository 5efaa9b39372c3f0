"""The command `pytracer fleet report`."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from pytracer.commands.json_output import json_option, print_json
from pytracer.commands.shared_options import TOP_HELP, source
from pytracer.commands.table import Columns, Part, echo, line, make_table
from pytracer.errors import optional
from pytracer.fleet.dataset import MARK
from pytracer.fleet.report_results import FleetReport, Row
from pytracer.fleet.report_texts import delta_text, notes, site_text, told_settings
from pytracer.text import number, printable, signed_size, size

_MARKS = {"found": "! ", "unknown": "? ", "none": "  "}


@click.command("report")
@click.argument("table", metavar="DIRECTORY|TABLE", type=source)
@click.option("--run", help="The run to report on.  [default: the run that was written last]")
@click.option("--top", type=click.IntRange(min=0), default=5, show_default=True, help=TOP_HELP)
@click.option(
    "--sql",
    "as_sql",
    is_flag=True,
    help="Print the DuckDB SQL of a TABLE's report, instead of the report.",
)
@json_option
def command(table: str, run: str | None, top: int, as_sql: bool, as_json: bool) -> None:
    """Which ranks use more memory, leak, or ran out of memory first?

    \b
    pytracer fleet report outputs/profile

    Compares the ranks of a run. Reads all snapshots of a DIRECTORY each time, or a TABLE of
    "pytracer fleet collect".
    """
    from pytracer.fleet.report import fleet_report, script

    if as_sql:
        click.echo(script(Path(table), run))
        return
    with ExitStack() as folders:
        found = fleet_report(_dataset(table, folders), run)
    found.table = table
    if as_json:
        print_json(vars(found), [])
    else:
        echo(_parts(found, top))


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


def _parts(report: FleetReport, top: int) -> Iterator[Part]:
    for answer in report.answers:
        style = "bold" if answer.verdict == "found" else ""
        yield line(_MARKS[answer.verdict] + answer.text, style)
    yield ""
    yield from map(line, notes(report))
    for title, rows, columns, text in _tables(report, top) if top else ():
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


def _tables(report: FleetReport, top: int) -> Iterator[tuple[str, Sequence[Row], Columns, int]]:
    """Yield the title, the rows and the columns of each table, and the column that has texts."""
    columns: Columns = {
        "after": lambda oom: "-" if oom.after_s is None else f"{oom.after_s:.3g} s",
        "rank": "process",
        "requested": "requested_bytes",
        "verdict": "verdict",
        "call site": _site,
    }
    yield "Out-of-memory errors in time order", report.oom_order, columns, -1
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
        "most of it at": lambda outlier: _most_at(report.sites_of(outlier)),
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
        "ranks": lambda row: _ranks(row.ranks, [] if row.is_usual else row.processes),
        "setting": "key",
        "value": lambda row: "(not set)" if row.value is None else row.value,
    }
    yield "Settings that differ", told_settings(report.setting_differences), columns, -1


def _site(row: Row) -> str:
    return site_text(row.site)


def _outliers(spread: Row) -> str:
    is_known = spread.verdict in ("none", "outliers")
    return f"{spread.outliers:,}" if is_known else f"? ({spread.verdict})"


def _most_at(sites: Sequence[Row]) -> str:
    if not sites:
        return "-"
    return f"{site_text(sites[0].site)} ({signed_size(round(sites[0].delta_bytes))})"


def _ranks(count: int, names: Sequence[str]) -> str:
    return names[0] if count == 1 and names else f"{count:,}"
