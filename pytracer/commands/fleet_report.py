"""The command `pytracer fleet report`."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from pytracer.commands.interruption import Interruption
from pytracer.commands.shared_options import json_options
from pytracer.commands.table import new_table
from pytracer.errors import PytracerError
from pytracer.fleet.dataset import MARK
from pytracer.fleet.report_results import FleetReport
from pytracer.fleet.report_words import delta_text, notes, signed, site_text, told_settings
from pytracer.text import number, printable, size

_ROWS_OF_PAGE = 200
"""The most rows of a table in the HTML file."""

_MARKS = {"found": "! ", "unknown": "? ", "none": "  "}


@click.command("report")
@click.argument("table", metavar="DIRECTORY|TABLE")
@click.option("--run", help="The run to report on.  [default: the run that was written last]")
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    help="The number of ranks of the job, so that missing last ranks are found.  "
    "[default: the highest rank of a file, and one]",
)
@click.option(
    "--baseline",
    metavar="DIRECTORY|TABLE",
    help="Also report what changed against this run.",
)
@click.option(
    "--baseline-run", metavar="RUN", help="The run of --baseline.  [default: as for --run]"
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
@click.pass_context
def report(
    context: click.Context,
    table: str,
    run: str | None,
    ranks: int | None,
    baseline: str | None,
    baseline_run: str | None,
    top: int,
    html_path: Path | None,
    as_sql: bool,
    as_json: bool,
    json_path: str | None,
) -> None:
    """Which ranks use more memory, leak, or ran out of memory first?

    \b
    pytracer fleet report outputs/profile
    pytracer fleet report outputs/profile --html report.html
    pytracer fleet report outputs/profile --baseline last-week

    Compares the ranks of a run. Reads all snapshots of a DIRECTORY each time. A TABLE of
    "pytracer fleet collect" has been read once.
    """
    from pytracer.fleet.report import script

    if baseline is None and baseline_run is not None:
        raise click.UsageError("--baseline-run needs --baseline")
    if as_sql:
        click.echo(script(Path(table), run, ranks))
        return
    try:
        found = _report(table, run, ranks, baseline, baseline_run)
    except Interruption as interruption:
        context.exit(interruption.exit_code)
    if as_json or json_path is not None:
        from pytracer.commands.json_output import write_results

        write_results(vars(found), [], to_stdout=as_json, path=json_path)
    if not as_json:
        _show(Console(highlight=False), found, top)
    if html_path is not None:
        from pytracer.commands.fleet_page import write_page

        title = f"{found.run or 'Files without a run'}: {number(found.overview.processes, 'rank')}"
        show = partial(_show, report=found, top=_ROWS_OF_PAGE, is_page=True)
        write_page(title, show, html_path)
        if not as_json:
            click.echo(printable(f"wrote {html_path}"))


def _report(
    table: str, run: str | None, ranks: int | None, baseline: str | None, baseline_run: str | None
) -> FleetReport:
    from pytracer.fleet.report import fleet_report

    with ExitStack() as folders:
        found = fleet_report(
            _dataset(table, folders),
            run,
            ranks=ranks,
            baseline=None if baseline is None else _dataset(baseline, folders),
            baseline_run=baseline_run,
        )
    change = found.baseline
    if change is not None:
        change = replace(change, table=str(baseline))
    return replace(found, table=table, baseline=change)


def _dataset(path: str, folders: ExitStack) -> Path:
    """Return the dataset that a path names, or a temporary one with its snapshots.

    Args:
        path: A dataset, or a file, a directory, a pattern or a URL of snapshots.
        folders: Removes the temporary datasets when it is closed.
    """
    if Path(path, MARK).exists():
        return Path(path)
    from pytracer.commands.fleet_collect import collect_with_progress
    from pytracer.fleet.collection import LocalEngine

    dataset = Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="pytracer-")))
    collected = collect_with_progress([path], dataset, LocalEngine())
    if not collected.read:
        raise PytracerError(collected.errors[0])
    for error in collected.errors:
        click.echo(f"Error: {printable(error)}", err=True)
    return dataset


def _show(console: Console, report: FleetReport, top: int, *, is_page: bool = False) -> None:
    for answer in report.answers:
        style = "bold" if answer.verdict == "found" else ""
        text = _MARKS[answer.verdict] + printable(answer.text)
        console.print(Text(text, style), soft_wrap=True)
    console.print()
    for line in notes(report):
        console.print(Text(printable(line)), soft_wrap=True)
    if top:
        rare = _tables_of_page(report, top) if is_page else ()
        for table in chain(_tables(report, top), rare):
            console.print()
            console.print(table)
    if report.commands:
        console.print()
        console.print("Look further:")
        for command in report.commands:
            console.print(Text(f"  {printable(command.command)}", "bold"), soft_wrap=True)
            console.print(Text(f"      {printable(command.why)}"), soft_wrap=True)


def _tables(report: FleetReport, top: int) -> Iterator[object]:
    if report.baseline is not None and report.baseline.sites:
        table = new_table(
            *("delta", "baseline", "new", "call site"),
            title=f"Changes at the peaks of {printable(report.baseline.sites[0].slot)}, medians",
            text=-1,
        )
        for site in report.baseline.sites[:top]:
            sizes = size(site.baseline_bytes), size(site.size_bytes)
            table.add_row(signed(site.delta_bytes), *sizes, _text(site_text(site.site)))
        _more(table, len(report.baseline.sites) - top)
        yield table
    if report.ooms:
        table = new_table("after", "rank", "requested", "verdict", "call site", text=-1)
        table.title = Text("Out-of-memory errors in order of time", "table.title")
        for oom in report.ooms[:top]:
            table.add_row(
                "-" if oom.after_s is None else f"{oom.after_s:.3g} s",
                _text(oom.process),
                "-" if oom.requested_bytes is None else size(oom.requested_bytes),
                _text(oom.verdict or "-"),
                _text(site_text(oom.site)),
            )
        _more(table, len(report.ooms) - top)
        yield table
    if report.spread:
        table = new_table("files", "ranks", "lowest", "median", "highest", "outliers", text=1)
        table.title = Text("Peaks of allocated memory", "table.title")
        chosen = sorted(report.spread, key=lambda each: -each.most_bytes)[:top]
        for each in report.spread:
            if each in chosen:
                is_known = each.verdict in ("none", "outliers")
                table.add_row(
                    _text(each.slot),
                    f"{each.ranks:,}",
                    *map(size, (each.least_bytes, each.median_bytes, each.most_bytes)),
                    f"{each.outliers:,}" if is_known else f"? ({each.verdict})",
                )
        _more(table, len(report.spread) - top)
        yield table
    if report.outliers:
        table = new_table("rank", "files", "peak", "delta", "most of it at", text=-1)
        table.title = Text("Ranks that differ from the median", "table.title")
        for outlier in report.outliers[:top]:
            main = outlier.sites[0] if outlier.sites else None
            where = "-" if main is None else f"{site_text(main.site)} ({signed(main.delta_bytes)})"
            table.add_row(
                _text(outlier.process),
                f"{outlier.slots:,} of {outlier.of_slots:,}",
                size(outlier.peak_bytes),
                delta_text(outlier.median_bytes, outlier.peak_bytes),
                _text(where),
            )
        _more(table, len(report.outliers) - top)
        yield table
    if report.growth:
        table = new_table("growth", "ranks", "verdict", "held", "call site", text=-1)
        table.title = Text("Memory that grows", "table.title")
        for growth in report.growth[:top]:
            ranks = growth.processes[0] if growth.ranks == 1 else f"{growth.ranks:,}"
            table.add_row(
                f"{size(round(growth.bytes_per_step))} a {growth.unit or 'step'}",
                _text(f"{ranks} of {growth.of_ranks:,}"),
                growth.verdict,
                "-" if growth.held_bytes is None else size(growth.held_bytes),
                _text(site_text(growth.site)),
            )
        _more(table, len(report.growth) - top)
        yield table
    if any(phase.phase for phase in report.phases):
        table = new_table("phase", "median", "highest", "ratio", "ranks", "rank", text=1)
        table.title = Text("Peaks by phase, where the ranks differ most", "table.title")
        for phase in report.phases[:top]:
            table.add_row(
                _text(phase.phase or "(none)"),
                *map(size, (phase.median_bytes, phase.most_bytes)),
                f"{phase.imbalance:.3g}",
                f"{phase.ranks:,}",
                _text(phase.process or "-"),
            )
        _more(table, len(report.phases) - top)
        yield table
    told = told_settings(report.settings)
    if told:
        table = new_table("ranks", "setting", "value", text=-1)
        table.title = Text("Settings that differ", "table.title")
        for setting in told[: 2 * top]:
            ranks = (
                f"{setting.ranks:,}"
                if setting.is_usual or setting.ranks > 1
                else (setting.processes[0])
            )
            value = "(not set)" if setting.value is None else setting.value
            table.add_row(_text(ranks), _text(setting.key), _text(value))
        _more(table, len(told) - 2 * top)
        yield table


def _tables_of_page(report: FleetReport, top: int) -> Iterator[object]:
    """Yield the tables that a terminal has no room for; the answers name what is in them."""
    if report.baseline is not None and report.baseline.peaks:
        table = new_table("files", "ranks", "baseline", "new", "change of the median", text=1)
        table.title = Text("Peaks against the baseline", "table.title")
        for peak in report.baseline.peaks[:top]:
            table.add_row(
                _text(peak.slot),
                f"{peak.baseline_ranks:,} → {peak.ranks:,}",
                *map(size, (peak.baseline_median_bytes, peak.median_bytes)),
                delta_text(peak.baseline_median_bytes, peak.median_bytes),
            )
        _more(table, len(report.baseline.peaks) - top)
        yield table
    if report.baseline is not None and report.baseline.settings:
        table = new_table("setting", "baseline", "new", text=1)
        table.title = Text("Settings against the baseline", "table.title")
        for change in report.baseline.settings[:top]:
            values = (change.baseline_value, change.value)
            texts = ("(not set)" if value is None else value for value in values)
            table.add_row(_text(change.key), *map(_text, texts))
        _more(table, len(report.baseline.settings) - top)
        yield table
    if report.missing:
        table = new_table("rank", "reason", "files that most ranks have", text=-1)
        table.title = Text("Ranks without files", "table.title")
        for missing in report.missing[:top]:
            slots = "all" if missing.has_none else ", ".join(missing.slots)
            rank = f"{missing.role} {missing.rank}".strip()
            table.add_row(_text(rank), _text(missing.reason or "-"), _text(slots))
        _more(table, len(report.missing) - top)
        yield table
    if report.damaged:
        table = new_table("file", "reason", text=-1)
        table.title = Text("Files that cannot be read", "table.title")
        for damaged in report.damaged[:top]:
            reason = damaged.error.removeprefix(f"{damaged.source} ")
            table.add_row(_text(damaged.source), _text(reason))
        _more(table, len(report.damaged) - top)
        yield table


def _more(table: object, others: int) -> None:
    if others > 0:
        table.caption = f"{number(others, 'more row')}"  # type: ignore[attr-defined]


def _text(text: str) -> Text:
    return Text(printable(text), overflow="fold")
