"""The command `pytracer experiment`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from pytracer.cli_comparison import Interruption, plot_option, signals_interrupt, tell
from pytracer.cli_files import json_option
from pytracer.comparison import Outcome
from pytracer.experiments import REPORT, Experiment, Run
from pytracer.reading.text import duration, printable, size


@click.command(
    "experiment",
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option(
    "--set",
    "changes",
    metavar="SETTINGS",
    multiple=True,
    required=True,
    help="Settings of the allocator, as NAME:VALUE,NAME:VALUE, in addition to those that the "
    "environment has; `current`: these alone. Give it once for each to be compared; the first is "
    "what the others are compared with.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How often each is run. Every other time the order is turned around.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    help="A new or empty directory for snapshots and logs.  [default: experiment_{time}]",
)
@click.option(
    "--step-from",
    metavar="SOURCE",
    help="Who tells that a step is over: optimizer, optimizer:Class or framework.  "
    "[default: PYTRACER_STEP_FROM, else optimizer]",
)
@json_option
@plot_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def experiment_command(
    context: click.Context,
    changes: tuple[str, ...],
    repeat: int,
    output: Path | None,
    step_from: str | None,
    json_path: str | None,
    plot_path: Path | None,
    command: tuple[str, ...],
) -> None:
    """Run a program under several settings of the allocator, and compare its memory.

    \b
    pytracer experiment --set expandable_segments:False --set expandable_segments:True \\
        --repeat 3 -- python train.py

    Each run is a new process, traced as by PYTRACER=1. That memory runs out is a result. What the
    program prints goes into files; Ctrl-C ends the run that goes on, and tells of the others.
    """
    experiment = Experiment(command, changes, repeat=repeat, output=output, step_from=step_from)
    interruption: Interruption | None = None
    try:
        with signals_interrupt(), _progress(experiment) as progress:
            experiment.prepare()
            for run in experiment.runs:
                progress.begin(run)
                progress.end(run, experiment.run(run))
    except Interruption as error:
        interruption = error
    if any(setting.outcomes for setting in experiment.comparison.settings):
        tell(experiment.comparison, json_path, plot_path)
        click.echo(f"All of it is in {printable(str(experiment.output / REPORT))}", err=True)
    if interruption is not None:
        context.exit(128 + interruption.number)
    outcomes = (o for setting in experiment.comparison.settings for o in setting.outcomes)
    if any(outcome.failure is not None for outcome in outcomes):
        context.exit(1)


class _Progress:
    """On standard error: a bar in a terminal, and else a line for each run that is over."""

    def __init__(self, experiment: Experiment, bar: Progress) -> None:
        self._experiment = experiment
        self._bar = bar
        self._task = bar.add_task("Trying the settings", total=len(experiment.runs))

    def begin(self, run: Run) -> None:
        self._bar.update(self._task, description=printable(self._name(run)))

    def end(self, run: Run, outcome: Outcome) -> None:
        self._bar.advance(self._task)
        line = f"{self._name(run)}: {_told(outcome)}"
        if outcome.failure is not None or not self._bar.console.is_terminal:
            self._bar.console.print(Text(printable(line)), soft_wrap=True)

    def _name(self, run: Run) -> str:
        setting = self._experiment.comparison.settings[run.setting].name
        return f"{self._experiment.runs.index(run) + 1}/{len(self._experiment.runs)} {setting}"


@contextlib.contextmanager
def _progress(experiment: Experiment) -> Iterator[_Progress]:
    console = Console(stderr=True, highlight=False)
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn()
    with Progress(
        *columns,
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        yield _Progress(experiment, bar)


def _told(outcome: Outcome) -> str:
    if outcome.failure is not None:
        return f"failed: {outcome.failure}"
    parts = [f"in {duration(round((outcome.wall_s or 0) * 1e6))}"]
    if outcome.peak_reserved_bytes is not None:
        parts.insert(0, f"peak reserved {size(outcome.peak_reserved_bytes)}")
    if outcome.ooms:
        parts.insert(0, "out of memory")
    return ", ".join(parts)
