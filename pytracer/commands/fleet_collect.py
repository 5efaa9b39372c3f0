"""The command `pytracer fleet collect`."""

from collections.abc import Sequence
from pathlib import Path

import click

from pytracer.commands.json_output import json_option, print_json
from pytracer.commands.parallel import progress_bar, signals_interrupt
from pytracer.commands.shared_options import source
from pytracer.fleet.collection import Collected, Engine, LocalEngine
from pytracer.fleet.collection import collect as collect_files
from pytracer.text import number, printable

_SHOWN = 5  # how many unreadable files are named


@click.command("collect")
@click.argument(
    "paths", metavar="FILE_OR_DIRECTORY_OR_URL...", nargs=-1, required=True, type=source
)
@click.option(
    "--output",
    required=True,
    metavar="TABLE",
    type=click.Path(path_type=Path),
    help="A new or empty folder for the dataset.",
)
@click.option("--run", metavar="NAME", help="The name of the run.  [default: the files' folder]")
@click.option(
    "--engine",
    "engine_name",
    default="local",
    show_default=True,
    metavar="local|ray[:ADDRESS]",
    help="Where to read the files: in processes on this machine, or in tasks on a Ray cluster.",
)
@click.option(
    "--workers", type=click.IntRange(min=1), help="Processes at most.  [default: one per core]"
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    paths: tuple[str, ...],
    output: Path,
    run: str | None,
    engine_name: str,
    workers: int | None,
    as_json: bool,
) -> None:
    """How do I combine many recordings into one dataset?

    \b
    pytracer fleet collect outputs/profile --output fleet
    pytracer fleet collect 's3://bucket/run7/step*/' --output fleet
    pytracer fleet collect /shared/run7 --output fleet --engine ray

    Reads snapshots, and writes their peaks, call sites, steps, phases, out-of-memory errors, leaks
    and settings as tables in Parquet.
    """
    engine = _engine(engine_name, workers)
    collected = collect_with_progress(paths, output, engine, run)
    if as_json:
        print_json(vars(collected))
    else:
        _show(collected)
    for error in collected.errors:
        click.echo(f"Error: {printable(error)}", err=True)
    if collected.errors:
        context.exit(1)


def collect_with_progress(
    paths: Sequence[str], output: Path, engine: Engine, run: str | None = None
) -> Collected:
    """Collect files as `pytracer.fleet.collection.collect` does, and show how many are done.

    Raises:
        Interruption: A signal asked for the end.
        PytracerError: No path names a file, or the dataset cannot be written.
    """
    with progress_bar() as progress, signals_interrupt():
        task = progress.add_task("Reading snapshots", total=None)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        return collect_files(paths, output, engine, run, show)


def _engine(name: str, workers: int | None) -> Engine:
    kind, _, address = name.partition(":")
    if name == "local":
        return LocalEngine(workers)
    if kind == "ray":
        from pytracer.fleet.ray_engine import RayEngine

        return RayEngine(address or None, workers)
    raise click.UsageError(f"--engine {name} is unknown: give local, ray, or ray:ADDRESS")


def _show(collected: Collected) -> None:
    unreadable = collected.unreadable
    parts = [f"{number(collected.files, 'file')} read in {collected.seconds:.1f} s"]
    if unreadable:
        parts.append(f"{len(unreadable):,} of them cannot be read")
    click.echo(f"{printable(collected.table)}: {', '.join(parts)}.")
    for error in unreadable[:_SHOWN]:
        click.echo(f"  {printable(error)}")
    if unreadable[_SHOWN:]:
        click.echo(f"  {len(unreadable) - _SHOWN:,} more: see column `error` of the table files")
