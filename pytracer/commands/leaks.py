"""The command `pytracer leaks`."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from pytracer.analysis.leaks import FileLeaks, LeakReport, combine, examine
from pytracer.analysis.leaks.results import DeviceLeaks, Growth
from pytracer.commands.leaks_texts import advice, answers, growths_table, observed, releases_table
from pytracer.commands.parallel import find_files, in_parallel, print_errors
from pytracer.commands.shared_options import (
    device_option,
    files_argument,
    json_options,
    memory_option,
    top_option,
)
from pytracer.reading.reader import load
from pytracer.text import printable


@click.command("leaks")
@files_argument
@device_option
@top_option("call sites of each process")
@json_options
@memory_option
@click.pass_context
def leaks_command(
    context: click.Context,
    paths: tuple[Path, ...],
    device: int | None,
    top: int,
    as_json: bool,
    json_path: str | None,
    memory_bytes: int | None,
) -> None:
    """Does memory leak, and from which line?

    \b
    pytracer leaks snapshot.pickle
    pytracer leaks outputs/profile

    Searches the steps of a recording for memory that is kept from step to step and never released.
    Give one file with many steps, several files of one process, or a directory with the files of
    all ranks.
    """
    found, errors = find_files(paths)
    read = partial(_read, device=device, is_only=len(found) == 1)
    results = errors + in_parallel(read, found, "Reading snapshots", memory_bytes)
    report = combine(result for result in results if isinstance(result, FileLeaks))
    if as_json or json_path is not None:
        from pytracer.commands.json_output import write_results

        write_results(vars(report), results, to_stdout=as_json, path=json_path)
    if not as_json and report.devices:
        _show(report, top)
    if print_errors(results):
        context.exit(1)


def _read(path: Path, device: int | None, is_only: bool) -> FileLeaks:
    return examine(load(path), device, is_only=is_only)


def _show(report: LeakReport, top: int) -> None:
    console = Console(highlight=False)
    for answer in answers(report):
        console.print(Text(printable(answer), "bold"), soft_wrap=True)
    for device in _shown(report):
        console.print()
        for line in observed(device, is_only=len(report.devices) == 1):
            console.print(Text(printable(line)), soft_wrap=True)
        if device.growths and top:
            console.print(growths_table(device, top))
        if device.verdict != "leak" and device.releases and top:
            console.print(releases_table(device, top))
    console.print()
    for line in advice(report):
        console.print(Text(printable(line)), soft_wrap=True)


def _shown(report: LeakReport) -> Iterator[DeviceLeaks]:
    """Yield the devices to show: of those with the same growths, the first."""
    shown: set[object] = set()
    for device in report.devices:
        key = (device.device, device.verdict, tuple(map(_site, device.growths)))
        if key not in shown:
            shown.add(key)
            yield device


def _site(growth: Growth) -> object:
    return growth.verdict, growth.frames
