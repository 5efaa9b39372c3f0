"""The command `pytracer diff`."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytracer.cli_files import TOP, in_parallel, json_option, say_errors, write_json
from pytracer.cli_tables import new_table
from pytracer.errors import PytracerError
from pytracer.reading.diff import (
    SCHEMA_VERSION,
    DeviceDifference,
    Difference,
    DirectoryDifference,
    Summary,
    diff_directories,
    diff_summaries,
    summarise,
)
from pytracer.reading.diff_changes import Change, PhaseChange, SiteChange
from pytracer.reading.diff_options import Fact
from pytracer.reading.files import match
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Frame
from pytracer.reading.text import place, printable, size


@click.command("diff")
@click.argument("baseline", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--device", type=click.IntRange(min=0), help="Only the device of this index.")
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=TOP,
    show_default=True,
    help="How many rows of a table to show; in JSON are all.",
)
@json_option
@click.pass_context
def diff_command(
    context: click.Context,
    baseline: Path,
    new: Path,
    device: int | None,
    top: int,
    json_path: str | None,
) -> None:
    """Say what differs between two snapshots, or two directories of them.

    Each is taken at its own peak. Of directories, files of the same step, phase and rank are
    compared.
    """
    if baseline.is_dir() != new.is_dir() and baseline.exists() and new.exists():
        raise click.UsageError(f"{baseline} and {new}: give two files or two directories")
    report: Difference | DirectoryDifference
    read = partial(_read, device=device)
    failed = False
    if baseline.is_dir():
        report, failed = _of_directories(baseline, new, read)
    else:
        results = in_parallel(read, [baseline, new], "Reading snapshots")
        summaries = [result for result in results if isinstance(result, Summary)]
        if len(summaries) < len(results):
            raise next(result for result in results if isinstance(result, PytracerError))
        report = diff_summaries(*summaries)
    if json_path is not None:
        write_json({"schema_version": SCHEMA_VERSION, **vars(report)}, json_path)
    else:
        show(report, top)
    if failed:
        context.exit(1)


def _read(path: Path, device: int | None) -> Summary:
    return summarise(load(path), device)


def _of_directories(
    baseline: Path, new: Path, read: Callable[[Path], Summary]
) -> tuple[DirectoryDifference, bool]:
    """The difference, and whether a file could not be read."""
    matched = match(baseline, new)
    if not matched.pairs:
        raise PytracerError(
            f"no snapshot in {baseline} has one of the same step, phase and rank in {new}: compare "
            "two files"
        )
    paths = [path for _, *pair in matched.pairs for path in pair]
    results = in_parallel(read, paths, "Reading snapshots")
    pairs: list[tuple[str, Summary, Summary]] = []
    errors: list[str] = []
    for (of, path, _), one, other in zip(matched.pairs, results[::2], results[1::2], strict=True):
        where = str(of) or str(path)
        if isinstance(one, Summary) and isinstance(other, Summary):
            pairs.append((where, one, other))
        errors += (f"{where}: {e}" for e in (one, other) if isinstance(e, PytracerError))
    report = diff_directories(
        str(baseline),
        str(new),
        pairs,
        map(str, matched.only_first),
        map(str, matched.only_second),
        errors,
    )
    return report, say_errors(results)


def show(report: Difference | DirectoryDifference, top: int = TOP) -> None:
    """Prints a difference."""
    console = Console(highlight=False)
    title = Text(printable(f"{report.baseline} → {report.new}"), "bold")
    console.print(title, soft_wrap=True)
    if isinstance(report, Difference):
        pairs = 1
        for device in report.devices:
            console.print()
            _show_device(console, device, top)
    else:
        pairs = report.pairs
        _show_directories(console, report, top)
    for side, only in ((report.baseline, report.only_baseline), (report.new, report.only_new)):
        for name in only:
            console.print(Text(printable(f"Only in {side}: {name}")), soft_wrap=True)
    if report.metadata:
        console.print()
        console.print(_facts(report.metadata, pairs))


def _show_device(console: Console, device: DeviceDifference, top: int) -> None:
    same = device.before == device.after
    name = device.before if same else f"{device.before} → {device.after}"
    for reason in device.reasons:
        console.print(Text(printable(f"Compared at the end, not at the peaks: {reason}")))
    _show_notes(console, device.notes)
    console.print(_amounts(device, f"{printable(name)}, at {_AT[device.at]}"))
    _show_changes(console, device.sites, device.phases, top)


def _show_directories(console: Console, report: DirectoryDifference, top: int) -> None:
    for reason in report.reasons:
        console.print(Text(printable(f"Some are compared at the end, not at the peaks: {reason}")))
    _show_notes(console, report.notes)
    for error in report.errors:
        console.print(Text(printable(f"Not compared: {error}")), soft_wrap=True)
    console.print()
    by_delta = sorted(report.files, key=lambda file: -abs(file.delta_bytes))
    shown = {id(file) for file in by_delta[: max(top, 1)]}
    table = new_table("delta", "baseline", "new", "of", title="Allocated at the peaks", text=-1)
    for file in report.files:
        if id(file) not in shown:
            continue
        of = file.place if file.at == "peak" else f"{file.place} (at the end)"
        table.add_row(
            _delta(file.delta_bytes),
            size(file.before_bytes),
            size(file.after_bytes),
            Text(printable(of), overflow="fold"),
        )
    if others := len(report.files) - len(shown):
        table.add_row("", "", "", f"({others:,} others, which differ less)")
    if report.files:
        console.print(table)
    _show_changes(console, report.sites, report.phases, top)


def _show_notes(console: Console, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(f"{note}.", markup=False)


def _show_changes(
    console: Console, sites: Sequence[SiteChange], phases: Sequence[PhaseChange], top: int
) -> None:
    if {phase.phase for phase in phases} <= {"", None}:
        phases = []
    for what, changes in (("call site", sites), ("phase", phases)):
        if changes and top:
            console.print()
            console.print(_changes(what, changes, top))


def _changes(what: str, changes: Sequence[SiteChange | PhaseChange], top: int) -> Table | str:
    differing = [
        change
        for change in changes
        if change.most_bytes or change.before_count != change.after_count
    ]
    if not differing:
        return f"Every {what} holds as much as before."
    is_mean = differing[0].largest_in is not None
    title = f"By {what}, on average" if is_mean else f"By {what}"
    last = "most in" if is_mean else "blocks" if what == "call site" else "allocations"
    table = new_table("delta", "baseline", "new", last, what, title=title, text=-1)
    for change in differing[:top]:
        table.add_row(
            _delta(change.delta_bytes),
            "(new)" if change.kind == "new" else size(change.before_bytes),
            "(gone)" if change.kind == "gone" else size(change.after_bytes),
            _most_in(change) if is_mean else _counts(change),
            Text(_name(change), overflow="fold"),
        )
    if others := differing[top:]:
        total = sum(change.delta_bytes for change in others)
        table.add_row(_delta(total), "", "", "", f"({len(others):,} others)")
    return table


def _counts(change: Change) -> str:
    if change.before_count == change.after_count:
        return f"{change.after_count:,}"
    return f"{change.before_count:,} → {change.after_count:,}"


def _most_in(change: Change) -> Text:
    largest = f"{_delta(change.largest_delta_bytes or 0)}\n"
    return Text(largest + printable(change.largest_in or ""), overflow="fold")


def _name(change: SiteChange | PhaseChange) -> str:
    if isinstance(change, PhaseChange):
        if change.phase is None:
            return "(before the trace)"
        return printable(change.phase) or "(none)"
    if change.matched_by in (None, "line"):
        return _frames(change.after or change.before)
    return f"{_frames(change.after)}, was {_frames(change.before)}"


def _frames(frames: Sequence[Frame]) -> str:
    if not frames:
        return place(None)
    others = f" and {len(frames) - 1} more lines" if len(frames) > 1 else ""
    return place(frames[0]) + others


_AT = {"peak": "the peaks", "end": "the end"}
_AMOUNTS = {
    "requested_bytes": "requested",
    "allocated_bytes": "allocated",
    "allocs": "allocations",
    "frees": "frees",
}
_AMOUNTS_OF_ACCELERATORS = {
    "requested_bytes": "requested",
    "allocated_bytes": "allocated",
    "active_bytes": "active",
    "reserved_bytes": "reserved",
    "fragmentation_bytes": "reserved - allocated",
    "rounding_bytes": "active - requested",
    "inactive_split_bytes": "inactive split",
    "largest_free_bytes": "largest free block",
    "segments": "segments",
    "peak_reserved_bytes": "reserved, own peak",
    "allocs": "allocations",
    "frees": "frees",
    "device_allocs": "device allocs",
    "device_frees": "device frees",
    "ooms": "out of memory",
    "retries": "retries",
}


def _amounts(device: DeviceDifference, title: str) -> Table:
    is_cpu = device.before == device.after == "cpu"
    table = new_table("delta", "baseline", "new", "", title=title, text=-1)
    for key, name in (_AMOUNTS if is_cpu else _AMOUNTS_OF_ACCELERATORS).items():
        amount = device.amounts[key]
        if not amount.before and not amount.after:
            continue
        show = size if key.endswith("_bytes") else "{:,}".format
        table.add_row(
            "" if amount.delta is None else _signed(amount.delta, show),
            "-" if amount.before is None else show(amount.before),
            "-" if amount.after is None else show(amount.after),
            name,
        )
    return table


def _facts(facts: Iterable[Fact], pairs: int) -> Table:
    table = Table(title="How they were made", title_justify="left")
    for name in ("", "baseline", "new"):
        table.add_column(name, overflow="fold")
    for fact in facts:
        name = fact.name if fact.pairs == pairs else f"{fact.name} ({fact.pairs} of {pairs} pairs)"
        values = ("-" if each is None else each for each in (fact.before, fact.after))
        table.add_row(*(Text(printable(each)) for each in (name, *values)))
    return table


def _delta(delta_bytes: int) -> str:
    return _signed(delta_bytes, size)


def _signed(delta: int, show: Callable[[int], str]) -> str:
    return f"+{show(delta)}" if delta > 0 else show(delta)
