"""The command `pytracer diff`."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytracer.analysis.diff import (
    DeviceDifference,
    Difference,
    SnapshotSummary,
    SummaryPair,
    compare,
    summarise,
)
from pytracer.analysis.diff.changes import Change
from pytracer.analysis.diff.limit import Limit, check_limit, parse_limit
from pytracer.analysis.diff.options import OptionChange
from pytracer.analysis.diff.texts import AT, answers, delta, falsified, site_text
from pytracer.commands.diff_amounts import amounts_table
from pytracer.commands.json_output import write_json
from pytracer.commands.parallel import in_parallel, print_errors
from pytracer.commands.shared_options import (
    TOP,
    device_option,
    json_options,
    memory_option,
    top_option,
)
from pytracer.commands.table import Fitted, new_table
from pytracer.errors import PytracerError
from pytracer.reading.files import MatchedFiles, Place, match
from pytracer.reading.reader import load
from pytracer.reading.to_json import SCHEMA_VERSION
from pytracer.text import printable, size


def _parse_limit(_: click.Context, __: click.Parameter, text: str | None) -> Limit | None:
    try:
        return None if text is None else parse_limit(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("diff")
@click.argument("baseline", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@device_option
@top_option("rows of each table")
@click.option(
    "--fail-over",
    "limit",
    metavar="LIMIT",
    callback=_parse_limit,
    help="Only check that no peak of allocated or reserved memory, and no end, grew by more than "
    "LIMIT, such as 5% or 200MiB. Prints one line. Exits with 0 if all are within the limit, with "
    "1 if one is over the limit, and with 3 if this is unknown.",
)
@json_options
@memory_option
@click.pass_context
def diff_command(
    context: click.Context,
    baseline: Path,
    new: Path,
    device: int | None,
    top: int,
    limit: Limit | None,
    as_json: bool,
    json_path: str | None,
    memory_bytes: int | None,
) -> None:
    """What changed between two recordings?

    \b
    pytracer diff before.pickle after.pickle
    pytracer diff outputs/monday outputs/tuesday
    pytracer diff before.pickle after.pickle --fail-over 5%

    Compares sizes, categories, modules, call sites, phases and options of two snapshots, each at
    its own peak, or both at the end if the peak of one is unknown. In two directories, compares the
    files of the same step, phase and rank.
    """
    are_directories = [os.path.isdir(path) for path in (baseline, new)]
    if len(set(are_directories)) > 1 and os.path.exists(baseline) and os.path.exists(new):
        raise click.UsageError(
            f"{baseline} and {new} are a file and a directory: give two files or two directories"
        )
    read = partial(_read, device=device)
    try:
        report, pairs, failed = _compared(baseline, new, read, memory_bytes)
    except PytracerError as error:
        if limit is None:
            raise
        click.echo(f"Error: {printable(str(error))}", err=True)
        context.exit(_EXIT_CODES["unknown"])
    document = {"schema_version": SCHEMA_VERSION, **vars(report)}
    check = None if limit is None else check_limit(pairs, limit, _missing(report))
    if check is not None:
        document["limit"] = check
    write_json(document, to_stdout=as_json, path=json_path)
    if not as_json and check is not None:
        click.echo(printable(check.reason))
    elif not as_json:
        show(report, top)
    if check is not None:
        context.exit(_EXIT_CODES[check.verdict])
    if failed:
        context.exit(1)


_EXIT_CODES = {"within": 0, "over": 1, "unknown": 3}


def _missing(report: Difference) -> Iterator[str]:
    """Yield which files could not be compared; `check_limit` finds missing devices itself."""
    yield from report.errors
    if os.path.isdir(report.baseline):
        yield from (f"{path} has no counterpart" for path in report.only_baseline)
        yield from (f"{path} has no counterpart" for path in report.only_new)


def _read(path: Path, device: int | None) -> SnapshotSummary:
    return summarise(load(path), device)


def _compared(
    baseline: Path, new: Path, read: Callable[[Path], SnapshotSummary], memory_bytes: int | None
) -> tuple[Difference, list[SummaryPair], bool]:
    """Return the difference, the pairs of files, and whether a file was unreadable.

    Raises:
        PytracerError: Nothing can be compared.
    """
    unsearched: list[PytracerError] = []
    is_directory = os.path.isdir(baseline)
    matched = MatchedFiles([(Place(), baseline, new)], [], [])
    if is_directory:
        matched = match(baseline, new, unsearched.append)
    if not matched.pairs:
        raise PytracerError(
            f"no snapshot in {baseline} has a counterpart with the same step, phase and rank in "
            f"{new}: give two files instead"
        )
    paths = [path for _, *pair in matched.pairs for path in pair]
    results = in_parallel(read, paths, "Reading snapshots", memory_bytes, in_processes=True)
    pairs: list[SummaryPair] = []
    errors = [str(error) for error in unsearched]
    for (place, path, _), before, after in zip(
        matched.pairs, results[::2], results[1::2], strict=True
    ):
        where = (str(place) or str(path)) if is_directory else ""
        if isinstance(before, SnapshotSummary) and isinstance(after, SnapshotSummary):
            pairs.append((where, before, after))
            continue
        found = [error for error in (before, after) if isinstance(error, PytracerError)]
        if not is_directory:
            raise found[0]
        errors += (f"{where}: {error}" for error in found)
    only_baseline, only_new = map(str, matched.only_first), map(str, matched.only_second)
    report = compare(str(baseline), str(new), pairs, only_baseline, only_new, errors)
    return report, pairs, print_errors([*unsearched, *results])


def show(report: Difference, top: int = TOP) -> None:
    """Print a difference."""
    console = Console(highlight=False)
    for sentence in falsified(report):
        console.print(Text(printable(sentence)))
    for answer in answers(report):
        console.print(Text(printable(answer), "bold"))
    title = Text(printable(f"{report.baseline} → {report.new}"))
    console.print(title, soft_wrap=True)
    for error in report.errors:
        console.print(Text(printable(f"Not compared: {error}")), soft_wrap=True)
    for side, only in ((report.baseline, report.only_baseline), (report.new, report.only_new)):
        for name in only:
            console.print(Text(printable(f"Only in {side}: {name}")), soft_wrap=True)
    if report.metadata:
        console.print()
        console.print(_facts(report.metadata, report.pairs))
    if report.files and top:
        console.print()
        console.print(_changes("file", report.files, top))
    for device in report.devices:
        console.print()
        _show_device(console, device, top)


def _show_device(console: Console, device: DeviceDifference, top: int) -> None:
    same = device.before == device.after
    name = device.before if same else f"{device.before} → {device.after}"
    is_mean = device.pairs > 1
    some = "Some are compared" if is_mean and device.at == "peak" else "Compared"
    for reason in device.reasons:
        console.print(Text(printable(f"{some} at the end, not at the peaks: {reason}")))
    _show_notes(console, device.notes)
    title = f"{printable(name)}, at {AT[device.at]}"
    console.print(amounts_table(device, f"{title}, on average" if is_mean else title))
    has_phases = not {phase.name for phase in device.phases} <= {"", None}
    tables: dict[str, Sequence[Change]] = {
        "category": device.categories,
        "module": device.modules,
        "call site": device.sites,
        "phase": device.phases if has_phases else [],
    }
    for what, changes in tables.items():
        if changes and top:
            console.print()
            console.print(_changes(what, changes, top))


def _show_notes(console: Console, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(f"{note}.", markup=False)


def _changes(what: str, changes: Sequence[Change], top: int) -> Table | str:
    differing = [change for change in changes if change.is_change]
    if not differing:
        return f"Every {what} holds as much as before."
    is_mean = differing[0].largest_in is not None
    title = f"By {what}, on average" if is_mean else f"By {what}"
    last = "most in" if is_mean else "blocks" if what not in ("phase", "file") else "allocations"
    table = new_table("delta", "baseline", "new", last, what, title=title, text=-1)
    for change in differing[:top]:
        table.add_row(
            delta(change.delta_bytes),
            "(new)" if change.kind == "new" else size(change.before_bytes),
            "(gone)" if change.kind == "gone" else size(change.after_bytes),
            _most_in(change) if is_mean else _counts(change),
            _name(what, change),
        )
    if others := differing[top:]:
        total = sum(change.delta_bytes for change in others)
        table.add_row(delta(total), "", "", "", f"({len(others):,} others)")
    return table


def _counts(change: Change) -> str:
    if change.before_count == change.after_count:
        return f"{change.after_count:,}"
    return f"{change.before_count:,} → {change.after_count:,}"


def _most_in(change: Change) -> Text:
    largest = f"{delta(change.largest_delta_bytes or 0)}\n"
    return Text(largest + printable(change.largest_in or ""), overflow="fold")


def _name(what: str, change: Change) -> Text | Fitted:
    name = change.name
    if what == "call site":
        return Fitted(partial(_site, change), _site(change, None))
    if name is None:
        return Text("(before the trace)" if what == "phase" else "(none)")
    text = site_text(name) or "(none)"
    return Text(printable(text.replace("_", " ") if what == "category" else text), overflow="fold")


def _site(change: Change, width: int | None) -> str:
    if change.matched_by in (None, "line"):
        return site_text(change.name, width)
    was = None if width is None else width - len("was ")
    return f"{site_text(change.after, width)}\nwas {site_text(change.before, was)}"


def _facts(facts: Iterable[OptionChange], pairs: int) -> Table:
    table = Table(title="Options and environment", title_justify="left")
    for name in ("", "baseline", "new"):
        table.add_column(name, overflow="fold")
    for fact in facts:
        name = fact.name if fact.pairs == pairs else f"{fact.name} ({fact.pairs} of {pairs} pairs)"
        values = ("-" if value is None else value for value in (fact.before, fact.after))
        table.add_row(*(Text(printable(text)) for text in (name, *values)))
    return table
