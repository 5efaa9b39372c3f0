"""The command `pytracer experiment`."""

from pathlib import Path

import click
from rich.progress import Progress
from rich.text import Text

from pytracer.commands.comparison_table import output_comparison
from pytracer.commands.interruption import Interruption, signals_interrupt
from pytracer.commands.json_output import JsonOutput, json_options
from pytracer.commands.parallel import progress_bar
from pytracer.commands.shared_options import plot_option
from pytracer.experiments.comparison import Outcome
from pytracer.experiments.experiment_runs import REPORT, Experiment
from pytracer.text import duration, printable, size


@click.command(
    "experiment", context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS]"
)
@click.option(
    "--set",
    "changes",
    metavar="SETTINGS",
    multiple=True,
    required=True,
    help="Allocator settings to try, as NAME:VALUE,NAME:VALUE, in addition to the environment's "
    "own; `current`: the environment's settings alone. Repeat the option to compare further "
    "settings with the first.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="The number of runs of each setting. Every second repeat takes the settings in reverse "
    "order. Times are compared only with 4 repeats or more.",
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
    help="What ends a step: optimizer, optimizer:Class or framework.  "
    "[default: PYTRACER_STEP_FROM, else optimizer]",
)
@json_options
@plot_option("peaks, limits and failed requests")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def command(
    context: click.Context,
    changes: tuple[str, ...],
    repeat: int,
    output: Path | None,
    step_from: str | None,
    json_output: JsonOutput,
    plot_path: Path | None,
    command: tuple[str, ...],
) -> None:
    """Which allocator settings does this program need?

    \b
    pytracer experiment --set current --set expandable_segments:True \\
        --repeat 4 -- python train.py

    Runs the program under each of the settings, and compares peaks, out-of-memory errors and step
    times. Each run is a new process, traced as by PYTRACER=1. An out-of-memory error is a result,
    not a failure. The program's output is written to log files. Ctrl-C ends the current run, and
    the earlier runs are reported.
    """
    experiment = Experiment(command, changes, repeat=repeat, output=output, step_from=step_from)
    interruption: Interruption | None = None
    try:
        with signals_interrupt(), progress_bar() as bar:
            _run_all(experiment, bar)
    except Interruption as error:
        interruption = error
    if any(setting.outcomes for setting in experiment.comparison.settings):
        output_comparison(experiment.comparison, json_output, plot_path)
        report = printable(str(experiment.output / REPORT))
        click.echo(f"The complete report is in {report}", err=True)
    if interruption is not None:
        raise interruption
    if any(len(each.measured) < len(each.outcomes) for each in experiment.comparison.settings):
        context.exit(1)


def _run_all(experiment: Experiment, bar: Progress) -> None:
    """Run the program, with a bar in a terminal, or else a line for each ended run."""
    runs, settings = experiment.runs, experiment.comparison.settings
    task = bar.add_task("Checking the settings", total=len(runs))
    experiment.prepare()
    for number, run in enumerate(runs, 1):
        name = f"{number}/{len(runs)} {settings[run.setting].name}"
        bar.update(task, description=printable(name))
        outcome = experiment.run(run)
        bar.advance(task)
        if outcome.failure is not None or not bar.console.is_terminal:
            line = printable(f"{name}: {_outcome_text(outcome)}")
            bar.console.print(Text(line), soft_wrap=True)


def _outcome_text(outcome: Outcome) -> str:
    if outcome.failure is not None:
        return f"failed: {outcome.failure}"
    parts = [f"in {duration(round((outcome.wall_s or 0) * 1e6))}"]
    if outcome.peak_reserved_bytes is not None:
        parts.insert(0, f"peak reserved {size(outcome.peak_reserved_bytes)}")
    if outcome.ooms:
        parts.insert(0, "out of memory")
    return ", ".join(parts)
