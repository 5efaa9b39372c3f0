"""The command `pytracer diff`."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click
from rich.table import Table

from pytracer.analysis.diff.changes import Change
from pytracer.analysis.diff.compare import SummaryPair, compare
from pytracer.analysis.diff.differences import DeviceDifference, Difference, OptionChange
from pytracer.analysis.diff.limit import Limit, check_limit, parse_limit
from pytracer.analysis.diff.summaries import SnapshotSummary, summarise
from pytracer.analysis.diff.texts import AT, answers, falsified, site_text
from pytracer.analysis.usage import AMOUNTS
from pytracer.commands import shared_options as shared
from pytracer.commands.json_output import json_option, print_json
from pytracer.commands.parallel import in_parallel, print_errors
from pytracer.commands.show_tables import AMOUNTS_OF_CPU
from pytracer.commands.table import (
    Columns,
    Fitted,
    Part,
    add_row,
    bold,
    echo,
    line,
    make_table,
    markdown,
    new_table,
)
from pytracer.errors import PytracerError
from pytracer.reading.files import MatchedFiles, Place, match
from pytracer.reading.reader import load
from pytracer.text import printable, signed_size, size

_AMOUNTS = AMOUNTS | {
    "peak_reserved_bytes": "reserved, own peak",
    "allocs": "allocations",
    "frees": "frees",
    "device_allocs": "device allocs",
    "device_frees": "device frees",
    "ooms": "out of memory",
    "retries": "retries",
}
_OF_CPU = (*AMOUNTS_OF_CPU, "allocs", "frees")


@click.command("diff")
@click.argument("baseline", metavar="BASELINE", type=shared.source_path)
@click.argument("new", metavar="NEW", type=shared.source_path)
@shared.device_option
@shared.top_option
@click.option(
    "--fail-over",
    "limit",
    metavar="LIMIT",
    callback=shared.parsed_by(parse_limit),
    help="Only check that peak allocated, peak reserved and end memory grew by at most LIMIT, "
    "such as 5% or 200MiB. Exits with 1 if one grew more, with 3 if it is unknown.",
)
@click.option(
    "--markdown",
    "as_markdown",
    is_flag=True,
    help="Print the report as Markdown, for a pull request.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    baseline: Path,
    new: Path,
    device: int | None,
    top: int,
    limit: Limit | None,
    as_markdown: bool,
    as_json: bool,
) -> None:
    """What changed between two recordings?

    \b
    pytracer diff before.pickle after.pickle
    pytracer diff outputs/monday outputs/tuesday
    pytracer diff before.pickle after.pickle --fail-over 5%
    pytracer diff before.pickle after.pickle --markdown

    Compares two snapshots, each at its own peak, or both at the end if the peak of one is unknown.
    In two directories, compares the files of the same step, phase, rank and role.
    """
    are_directories = [os.path.isdir(path) for path in (baseline, new)]
    if len(set(are_directories)) > 1 and os.path.exists(baseline) and os.path.exists(new):
        raise click.UsageError(
            f"{baseline} and {new} are a file and a directory: give two files or two directories"
        )
    read = partial(_read, device=device)
    try:
        report, pairs, failed = _compared(baseline, new, read)
    except PytracerError as error:
        if limit is None:
            raise
        click.echo(f"Error: {printable(str(error))}", err=True)
        context.exit(_EXIT_CODES["unknown"])
    check = None if limit is None else check_limit(pairs, limit, _missing(report))
    if as_json:
        print_json(vars(report) | ({} if check is None else {"limit": check}))
    elif check is not None:
        click.echo(printable(check.reason))
    elif as_markdown:
        click.echo("\n\n".join(filter(None, map(markdown, _parts(report, top)))))
    else:
        echo(_parts(report, top))
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
    baseline: Path, new: Path, read: Callable[[Path], SnapshotSummary]
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
    results = in_parallel(read, paths, "Reading snapshots")
    by_place: dict[str, list[tuple[SnapshotSummary, SnapshotSummary]]] = {}
    errors = [str(error) for error in unsearched]
    for (place, path, _), before, after in zip(
        matched.pairs, results[::2], results[1::2], strict=True
    ):
        where = (str(place) or str(path)) if is_directory else ""
        if isinstance(before, SnapshotSummary) and isinstance(after, SnapshotSummary):
            by_place.setdefault(where, []).append((before, after))
            continue
        found = [error for error in (before, after) if isinstance(error, PytracerError)]
        if not is_directory:
            raise found[0]
        errors += (f"{where}: {error}" for error in found)
    pairs = [pair for where, same in by_place.items() for pair in _by_role(where, same)]
    only_baseline, only_new = map(str, matched.only_first), map(str, matched.only_second)
    report = compare(str(baseline), str(new), pairs, only_baseline, only_new, errors)
    return report, pairs, print_errors([*unsearched, *results])


def _by_role(
    where: str, pairs: Sequence[tuple[SnapshotSummary, SnapshotSummary]]
) -> Iterator[SummaryPair]:
    """Pair the files of one place by their roles, which names of files with ranks do not have."""
    if len(pairs) == 1:
        yield where, *pairs[0]
        return
    sides = [*zip(*pairs, strict=True)]
    known = {file.metadata.role for file in sides[0]} & {file.metadata.role for file in sides[1]}

    def role(file: SnapshotSummary) -> str:
        return file.metadata.role or "" if file.metadata.role in known else ""

    befores, afters = (sorted(side, key=role) for side in sides)
    is_named = len({file.metadata.role or "" for file in befores} - {""}) == len(befores)
    for before, after in zip(befores, afters, strict=True):
        yield f"{where}, {before.metadata.role if is_named else before.path}", before, after


def _parts(report: Difference, top: int) -> Iterator[Part]:
    """Yield the lines and tables of a difference. Lines with paths do not wrap."""
    yield from falsified(report)
    yield from map(bold, answers(report))
    yield line(f"{report.baseline} → {report.new}")
    yield from (line(f"Not compared: {error}") for error in report.errors)
    for side, only in ((report.baseline, report.only_baseline), (report.new, report.only_new)):
        yield from (line(f"Only in {side}: {name}") for name in only)
    if report.metadata:
        yield from ("", _facts(report.metadata, report.pairs))
    if report.files and top:
        yield from ("", _changes("file", report.files, top))
    for device in report.devices:
        yield ""
        yield from _device_parts(device, top)


def _device_parts(device: DeviceDifference, top: int) -> Iterator[Part]:
    same = device.before == device.after
    name = device.before if same else f"{device.before} → {device.after}"
    is_mean = device.pairs > 1
    some = "Some are compared" if is_mean and device.at == "peak" else "Compared"
    yield from (f"{some} at the end, not at the peaks: {reason}" for reason in device.reasons)
    yield from (f"{note}." for note in device.notes)
    title = f"{name}, at {AT[device.at]}"
    yield _amounts_table(device, f"{title}, on average" if is_mean else title)
    for by, what in {"category": "", "module": "", "line": "call site", "phase": ""}.items():
        changes = device.changes[by]
        is_known = by != "phase" or not {change.name for change in changes} <= {"", None}
        if changes and is_known and top:
            yield from ("", _changes(what or by, changes, top))


def _amounts_table(device: DeviceDifference, title: str) -> Table:
    is_cpu = device.before == device.after == "cpu"
    table = new_table(("delta", "baseline", "new", ""), title=title, text=-1)
    for key, name in _AMOUNTS.items():
        amount = device.amounts.get(key)
        if amount is None or (is_cpu and key not in _OF_CPU):
            continue
        if not amount.before and not amount.after:
            continue
        is_size, delta = key.endswith("_bytes"), amount.delta or 0
        show = size if is_size else "{:,}".format
        change = signed_size(delta) if is_size else f"{delta:+,}" if delta else "0"
        values = ("-" if each is None else show(each) for each in (amount.before, amount.after))
        add_row(table, "" if amount.delta is None else change, *values, name)
    return table


def _changes(what: str, changes: Sequence[Change], top: int) -> Table | str:
    differing = [change for change in changes if change.is_change]
    if not differing:
        return f"Every {what} holds as much as before."
    is_mean = differing[0].largest_in is not None
    blocks = "allocations" if what in ("phase", "file") else "blocks"
    columns: Columns = {
        "delta": "delta_bytes",
        "baseline": lambda each: "(new)" if each.kind == "new" else size(each.before_bytes),
        "new": lambda each: "(gone)" if each.kind == "gone" else size(each.after_bytes),
        "most in" if is_mean else blocks: _counts,
        what: partial(_name, what),
    }
    title = f"By {what}, on average" if is_mean else f"By {what}"
    return make_table(differing, columns, title=title, text=-1, top=top)


def _counts(change: Change) -> str:
    if change.largest_in is not None:
        return f"{signed_size(change.largest_delta_bytes or 0)}\n{change.largest_in}"
    if change.before_count == change.after_count:
        return f"{change.after_count:,}"
    return f"{change.before_count:,} → {change.after_count:,}"


def _name(what: str, change: Change) -> str | Fitted:
    name = change.name
    if what == "call site":
        return Fitted(partial(_site, change))
    if name is None:
        return "(before the trace)" if what == "phase" else "(none)"
    text = site_text(name) or "(none)"
    return text.replace("_", " ") if what == "category" else text


def _site(change: Change, width: int | None) -> str:
    if change.matched_by in (None, "line"):
        return site_text(change.name, width)
    was = None if width is None else width - len("was ")
    return f"{site_text(change.after, width)}\nwas {site_text(change.before, was)}"


def _facts(facts: Iterable[OptionChange], pairs: int) -> Table:
    columns: Columns = {
        "": lambda fact: (
            fact.name if fact.pairs == pairs else f"{fact.name} ({fact.pairs} of {pairs} pairs)"
        ),
        "baseline": "before",
        "new": "after",
    }
    table = make_table(facts, columns, title="Options and environment")
    for column in table.columns:
        column.justify, column.overflow = "left", "fold"
    return table
