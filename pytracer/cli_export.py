"""The command `pytracer export`: snapshots in the formats of other tools."""

import contextlib
import functools
import gzip
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import click

from pytracer.cli_files import files_argument, in_parallel, say_errors
from pytracer.errors import PytracerError
from pytracer.reading import export_arrow, export_perfetto, export_stacks
from pytracer.reading.export import Origin, names, origin, whole
from pytracer.reading.files import SUFFIXES, find, place_of
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Snapshot
from pytracer.reading.text import printable

Result = list[str | PytracerError]  # notes, a sentence each; what went wrong with a file


@click.command("export")
@files_argument
@click.option(
    "--to",
    type=click.Choice(["parquet", "arrow", "collapsed", "perfetto"]),
    required=True,
    help="parquet, arrow: two tables, of events and blocks, in the folders OUTPUT/events and "
    "OUTPUT/blocks. collapsed: stacks and their bytes, for flame graphs. perfetto: counters, "
    "phases and steps, for ui.perfetto.dev and chrome://tracing.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    help="A folder for tables, else a file, compressed if it is named *.gz. '-' is standard "
    "output, where collapsed stacks go by default. What is there is overwritten.",
)
@click.option(
    "--at",
    type=click.Choice(["peak", "end", "oom"]),
    help="Of collapsed: when most was allocated (the default), when the snapshot was taken, or "
    "when memory ran out, the last time.",
)
def export(
    paths: tuple[Path, ...], to: str, output: Path | None, at: export_stacks.At | None
) -> None:
    """Write snapshots in the formats of other tools."""
    if at is not None and to != "collapsed":
        raise click.UsageError(f"--at {at} is of --to collapsed: leave it out")
    if output is None and to != "collapsed":
        raise click.UsageError(f"--to {to} needs --output")
    output = output or Path("-")
    if output.name.endswith(SUFFIXES):
        raise click.UsageError(f"--output {output} is named as a snapshot: give another name")
    files = find(paths)
    if to in ("parquet", "arrow"):
        results = _tables(files, output, cast(export_arrow.Format, to))
    elif to == "collapsed":
        results = _stacks(files, output, at or "peak")
    else:
        results = _perfetto(files, output)
    for note in results:
        if isinstance(note, str):
            click.echo(printable(note), err=True)
    if say_errors(results):
        raise click.exceptions.Exit(1)


def _tables(files: Sequence[Path], output: Path, to: export_arrow.Format) -> Result:
    if str(output) == "-" or output.is_file():
        raise click.UsageError(f"--output {output}: --to {to} writes files into a folder")
    export_arrow.pyarrow()  # once, and not once a file, that it is missing
    return _each(files, functools.partial(export_arrow.write_tables, output=output, file_format=to))


def _stacks(files: Sequence[Path], output: Path, at: export_stacks.At) -> Result:
    found: Counter[str] = Counter()
    adding = threading.Lock()

    def add(snapshot: Snapshot, of: Origin) -> list[str]:
        roots = [of.name] if len(files) > 1 else []
        stacks = export_stacks.collapsed(snapshot, at, roots)
        with adding:
            found.update(stacks)
        return []

    results = _each(files, add)
    with _opened(output) as file:
        file.writelines(line.encode() for line in export_stacks.lines(found))
    return results


def _perfetto(files: Sequence[Path], output: Path) -> Result:
    with _opened(output) as file:
        writer = export_perfetto.Writer(file)
        results = _each(files, writer.add)
        writer.finish()
    return results


def _each(files: Sequence[Path], write: Callable[[Snapshot, Origin], list[str]]) -> Result:
    """Calls a function with each snapshot.

    Raises:
        PytracerError: It failed with all of them.
    """
    titles = dict(zip(files, names(files), strict=True))

    def read_and_write(path: Path) -> list[str]:
        snapshot = load(path)
        return write(snapshot, origin(snapshot, titles[path], place_of(path)))

    results = in_parallel(read_and_write, files, "Exporting")
    errors = [result for result in results if isinstance(result, PytracerError)]
    if len(errors) == len(files):
        say_errors(errors[:-1])
        raise errors[-1]
    return errors + [note for notes in results if isinstance(notes, list) for note in notes]


@contextlib.contextmanager
def _opened(output: Path) -> Iterator[BinaryIO]:
    if str(output) == "-":
        yield sys.stdout.buffer
        return
    with whole(output) as file:
        if output.suffix != ".gz":
            yield file
            return
        with gzip.GzipFile("", "wb", compresslevel=3, fileobj=file, mtime=0) as compressed:
            yield cast(BinaryIO, compressed)
