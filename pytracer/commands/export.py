"""The command `pytracer export`: snapshots in the formats of other tools."""

import contextlib
import gzip
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import click

from pytracer.analysis.device_data import why_empty
from pytracer.atomic_file import open_output
from pytracer.commands.parallel import in_parallel, print_errors
from pytracer.commands.shared_options import files_argument
from pytracer.errors import PytracerError, optional
from pytracer.export import collapsed_stacks, parquet
from pytracer.reading.files import SUFFIXES, find, without_suffix
from pytracer.reading.reader import load
from pytracer.reading.snapshot import used_devices
from pytracer.text import file_name, printable


@click.command("export")
@files_argument
@click.option(
    "--to",
    type=click.Choice(["parquet", "collapsed"]),
    required=True,
    help="parquet: tables of events and blocks. collapsed: stacks with bytes, for flame graphs.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    help="The folder for tables, or the file for collapsed stacks, compressed if its name ends in "
    ".gz. Existing files are overwritten.  [default of collapsed stacks: standard output]",
)
@click.option(
    "--at",
    type=click.Choice(["peak", "end", "oom"]),
    help="Collapsed stacks at the peak, the end, or the last out-of-memory.  [default: peak]",
)
@click.option("--by-category", is_flag=True, help="Collapsed stacks begin with the category.")
def command(
    paths: tuple[Path, ...],
    to: str,
    output: Path | None,
    at: collapsed_stacks.At | None,
    by_category: bool,
) -> None:
    """How do I open a recording in other tools?

    \b
    pytracer export outputs/profile --to parquet -o tables
    pytracer export snapshot.pickle --to collapsed | flamegraph.pl > memory.svg

    Writes snapshots as tables for pandas and SQL, or as stacks for flame graphs.
    """
    if at is not None and to != "collapsed":
        raise click.UsageError(f"--at {at} works only with --to collapsed: leave it out")
    if by_category and to != "collapsed":
        raise click.UsageError("--by-category works only with --to collapsed: leave it out")
    if output is None and to != "collapsed":
        raise click.UsageError(f"--to {to} needs --output: give a file or a folder to write")
    output = output or Path("-")
    if output.name.endswith(SUFFIXES):
        raise click.UsageError(f"--output {output} is named like a snapshot: give another name")
    if to == "parquet":
        if str(output) == "-" or os.path.isfile(output):
            raise click.UsageError(f"--output {output} must be a folder for --to parquet")
        optional("tables need", *parquet.PYARROW)  # one error, and not one for each file
    unsearched: list[PytracerError] = []
    files = find(paths, unsearched.append)
    names = dict(zip(files, unique_names(files), strict=True))
    write = partial(_write_tables, names=names, output=output)
    if to == "collapsed":
        roots = names if len(files) > 1 else {}
        write = partial(_collapse, roots=roots, at=at or "peak", by_category=by_category)
    results = in_parallel(write, files, "Exporting")
    errors = [result for result in results if isinstance(result, PytracerError)]
    if len(errors) == len(files):
        print_errors([*unsearched, *errors[:-1]])
        raise errors[-1]
    exported = [result for result in results if not isinstance(result, PytracerError)]
    if to == "collapsed":
        stacks: Counter[str] = Counter()
        for _, of_file in exported:
            stacks.update(of_file)
        with _opened(output) as file:
            file.writelines(line.encode() for line in collapsed_stacks.lines(stacks))
    for note in (note for notes, _ in exported for note in notes):
        click.echo(printable(note), err=True)
    if print_errors([*unsearched, *errors]):
        raise click.exceptions.Exit(1)


_Exported = tuple[list[str], dict[str, int]]
"""What a file lacks, and its stacks, if they are asked for."""


def _write_tables(path: Path, names: Mapping[Path, str], output: Path) -> _Exported:
    return parquet.write_tables(load(path), names[path], output), {}


def _collapse(
    path: Path, roots: Mapping[Path, str], at: collapsed_stacks.At, by_category: bool
) -> _Exported:
    snapshot = load(path)
    root = [roots[path]] if path in roots else []
    notes = [] if used_devices(snapshot) else [f"{path}: {why_empty(snapshot.metadata)}"]
    return notes, collapsed_stacks.collapse_stacks(snapshot, at, root, by_category)


def unique_names(paths: Sequence[Path]) -> list[str]:
    """Return a different name for each snapshot's output.

    The name joins the parts of the path with dots, without the folders that all paths share:
    "step3.torch_memory_rank0_pid7".
    """
    absolute = [Path(os.path.abspath(path)) for path in paths]
    common = Path(os.path.commonpath([path.parent for path in absolute]))
    found: dict[str, None] = {}
    for path in absolute:
        stem = file_name(without_suffix(".".join(path.relative_to(common).parts)))
        name, number = stem, 1
        while name in found:
            number += 1
            name = f"{stem}_{number}"
        found[name] = None
    return list(found)


@contextlib.contextmanager
def _opened(output: Path) -> Iterator[BinaryIO]:
    if str(output) == "-":
        yield sys.stdout.buffer
        return
    with open_output(output, makes_folder=True) as file:
        if output.suffix != ".gz":
            yield file
            return
        with gzip.GzipFile("", "wb", compresslevel=3, fileobj=file, mtime=0) as compressed:
            yield cast(BinaryIO, compressed)
