"""The command `pytracer experiment`: conclusions, a table, and notes."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from pytracer.commands.json_output import json_option, print_json
from pytracer.commands.parallel import Interruption, progress_bar, signals_interrupt
from pytracer.commands.plots import plot_comparison
from pytracer.commands.shared_options import plot_option
from pytracer.commands.table import Cell, Part, echo, line, transposed_table
from pytracer.experiments.comparison import Comparison, Outcome, Setting
from pytracer.experiments.conclusions import conclusions, is_comparable, report, share, wrapped_name
from pytracer.experiments.experiment_runs import REPORT, Experiment
from pytracer.text import duration, number, printable, size
from pytracer.tracing.options import variable

SETTINGS_PER_TABLE = 3
"""How many settings a table shows next to each other. With more settings there are several tables,
and the first setting is in each."""

NAME_WIDTH = 17  # the width of a setting's column


_METRICS: dict[str, tuple[str, Callable[[float], str]]] = {
    "peak_reserved_bytes": ("peak reserved", lambda value: size(round(value))),
    "peak_allocated_bytes": ("peak allocated", lambda value: size(round(value))),
    "peak_unallocated_bytes": ("peak unallocated", lambda value: size(round(value))),
    "oom_unallocated_bytes": ("OOM unallocated", lambda value: size(round(value))),
    "oom_requested_bytes": ("OOM requested", lambda value: size(round(value))),
    "device_allocs": ("device allocs", "{:,g}".format),
    "retries": ("retries", "{:,g}".format),
    "step_us": ("time per step", lambda value: duration(round(value))),
    "wall_s": ("wall time", lambda value: duration(round(value * 1e6))),
}


def parts(comparison: Comparison) -> Iterator[Part]:
    """Yield the conclusions, the table, and notes on what the table does not show."""
    yield from (line(sentence, "bold") for sentence in conclusions(comparison))
    first, *others = comparison.settings
    step = SETTINGS_PER_TABLE - 1
    for begin in range(0, max(len(others), 1), step):
        yield _table([first, *others[begin : begin + step]])
    yield from map(line, [*_notes(comparison), *comparison.notes])


def _table(settings: list[Setting]) -> Table:
    rows: dict[str, Callable[[Setting], Cell]] = {}
    if any(len(setting.outcomes) != 1 for setting in settings):
        rows["runs"] = _runs
    rows["out of memory"] = _out_of_memory
    has_ooms = any(setting.out_of_memory_runs[0] for setting in settings)
    for attribute, (name, shown) in _METRICS.items():
        if has_ooms or not attribute.startswith("oom_"):
            rows[name] = partial(_cell, settings[0], attribute=attribute, shown=shown)
    names = (wrapped_name(printable(setting.name), NAME_WIDTH) for setting in settings)
    return transposed_table(zip(names, settings, strict=True), rows)


def _runs(setting: Setting) -> str:
    measured, ended = len(setting.measured), len(setting.outcomes)
    return str(ended) if measured == ended else f"{measured} of {ended}"


def _out_of_memory(setting: Setting) -> Cell:
    runs, known = setting.out_of_memory_runs
    if not runs:
        return "no" if known else "-"
    if known > 1:
        return Text(f"in {runs} of {known} runs", "bold red")
    ooms = setting.typical("ooms") or 0
    return Text("yes" if ooms == 1 else f"{ooms:,g} times", "bold red")


def _cell(first: Setting, setting: Setting, attribute: str, shown: Callable[[float], str]) -> str:
    value, spread = setting.typical(attribute), setting.spread(attribute)
    if value is None or spread is None:
        return "-"
    lines = [f"≥ {shown(value)}" if setting.is_lower_bound(attribute) else shown(value)]
    if spread[0] != spread[1]:
        lines.append(_range(*map(shown, spread)))
    before = first.typical(attribute)
    if before is not None and value != before and is_comparable(first, setting, attribute):
        lines.append(_difference(value - before, before, shown))
    return "\n".join(lines)


def _range(least: str, most: str) -> str:
    """Return a range, with the unit once if both bounds have it."""
    (least_number, _, least_unit), (_, _, most_unit) = least.partition(" "), most.partition(" ")
    return f"{least_number if least_unit == most_unit else least} .. {most}"


def _difference(difference: float, before: float, shown: Callable[[float], str]) -> str:
    sign = "+" if difference > 0 else "-"
    in_percent = f", {sign}{share(difference, before)}" if before else ""
    return sign + shown(abs(difference)) + in_percent


def _notes(comparison: Comparison) -> Iterator[str]:
    for setting in comparison.settings:
        for i, outcome in enumerate(setting.outcomes, 1):
            if outcome.failure is not None:
                which = f", run {i}" if len(setting.outcomes) > 1 else ""
                yield f"{setting.name}{which} failed: {outcome.failure}"
        if setting.is_lower_bound("peak_unallocated_bytes"):
            yield (
                f"{setting.name}: unallocated memory may have peaked higher, because the "
                f"snapshots lack events. A larger {variable('trace_alloc_max_entries')} keeps more."
            )
        if early := sum(run.ended_early and bool(run.ooms) for run in setting.measured):
            yield (
                f"{setting.name}: {number(early, 'run')} ended because memory ran out. Its "
                "numbers cover only the time before, so the table does not compare them."
            )


@click.command(
    "experiment", context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS]"
)
@click.option(
    "--set",
    "changes",
    metavar="SETTINGS",
    multiple=True,
    required=True,
    help="Allocator settings to try, as NAME:VALUE,NAME:VALUE, in addition to "
    "those of the environment; `current` adds none. May be repeated.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="The number of runs of each setting. Times are compared only with 4 or more.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    help="A new or empty directory for snapshots and logs.  [default: experiment_{time}]",
)
@json_option
@plot_option("peaks, limits and failed requests")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def command(
    context: click.Context,
    changes: tuple[str, ...],
    repeat: int,
    output: Path | None,
    as_json: bool,
    plot_path: Path | None,
    command: tuple[str, ...],
) -> None:
    """Which allocator settings does this program need?

    \b
    pytracer experiment --set current --set expandable_segments:True \\
        --repeat 4 -- python train.py

    Runs the program under each of the settings, and compares peaks, out-of-memory errors and step
    times. Each run is a new process, traced as by PYTRACER=1. Ctrl-C ends the current run, and the
    earlier runs are reported. Steps are those of an optimizer, or as PYTRACER_STEP_FROM says.
    """
    experiment = Experiment(command, changes, repeat=repeat, output=output)
    interruption: Interruption | None = None
    try:
        with signals_interrupt(), progress_bar() as bar:
            _run_all(experiment, bar)
    except Interruption as error:
        interruption = error
    if any(setting.outcomes for setting in experiment.comparison.settings):
        if as_json:
            print_json(report(experiment.comparison))
        else:
            echo(parts(experiment.comparison))
        if plot_path is not None:
            plot_comparison(experiment.comparison, plot_path)
        path = printable(str(experiment.output / REPORT))
        click.echo(f"The complete report is in {path}", err=True)
    if interruption is not None:
        raise interruption
    if any(len(each.measured) < len(each.outcomes) for each in experiment.comparison.settings):
        context.exit(1)


def _run_all(experiment: Experiment, bar: Progress) -> None:
    """Run the program, with a bar in a terminal, or else a line for each ended run."""
    runs, settings = experiment.runs, experiment.comparison.settings
    task = bar.add_task("Checking the settings", total=len(runs))
    experiment.prepare()
    for count, run in enumerate(runs, 1):
        name = f"{count}/{len(runs)} {settings[run.setting].name}"
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
