"""What `pytracer experiment` and `pytracer replay` share: options, and how they tell the result."""

import contextlib
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytracer.cli_files import write_json
from pytracer.cli_tables import new_table
from pytracer.comparison import Comparison, Setting
from pytracer.comparison_plot import Curve, check_plot, plot
from pytracer.comparison_report import (
    conclusions,
    ended_early,
    folded_name,
    out_of_memory_runs,
    report,
    share,
)
from pytracer.errors import PytracerError
from pytracer.reading.text import duration, number, printable, size

SETTINGS_OF_A_TABLE = 3
"""How many settings are beside each other; of more there are several tables, the first in each."""

NAME_WIDTH = 17
"""Of a setting's column."""


def _size(value_bytes: float) -> str:
    return size(round(value_bytes))


def _seconds(value_s: float) -> str:
    return duration(round(value_s * 1e6))


def _microseconds(value_us: float) -> str:
    return duration(round(value_us))


_METRICS: dict[str, tuple[str, Callable[[float], str]]] = {
    "peak_reserved_bytes": ("peak reserved", _size),
    "peak_allocated_bytes": ("peak allocated", _size),
    "fragmentation_bytes": ("fragmentation", _size),
    "device_allocs": ("device allocs", "{:,g}".format),
    "retries": ("retries", "{:,g}".format),
    "step_us": ("time per step", _microseconds),
    "wall_s": ("wall time", _seconds),
}


def _plot_path(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        try:
            check_plot(path)
        except PytracerError as error:
            raise click.UsageError(str(error)) from None
    return path


plot_option = click.option(
    "--plot",
    "plot_path",
    metavar="PATH",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_plot_path,
    help="Draw the peaks into PATH, a .png, .svg or .pdf; needs matplotlib.",
)


class Interruption(BaseException):
    """A signal that asks for the end."""

    def __init__(self, number: int) -> None:
        """`number`: the signal's."""
        self.number = number


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """Has the signals that end a command raise `Interruption`: its processes have to end too."""

    def interrupt(number: int, _: FrameType | None) -> NoReturn:
        raise Interruption(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tell(
    comparison: Comparison,
    json_path: str | None = None,
    plot_path: Path | None = None,
    *,
    without: Collection[str] = (),
    curves: Mapping[str, Curve] | None = None,
) -> None:
    """Prints a comparison, and writes what was asked for.

    Args:
        comparison: What to tell.
        json_path: Where its JSON goes; "-": standard output, and nothing is printed beside.
        plot_path: Where its plot goes.
        without: Attributes of outcomes that have no row.
        curves: For the plot.
    """
    if json_path != "-":
        show(comparison, without)
    if json_path is not None:
        write_json(report(comparison), json_path)
    if plot_path is not None:
        plot(comparison, plot_path, curves)


def show(comparison: Comparison, without: Collection[str] = ()) -> None:
    """Prints the table, what it does not tell, and the conclusions."""
    console = Console(highlight=False)
    first, *others = comparison.settings
    beside = SETTINGS_OF_A_TABLE - 1
    for begin in range(0, max(len(others), 1), beside):
        console.print(_table([first, *others[begin : begin + beside]], without))
    for note in [*_notes(comparison), *comparison.notes]:
        console.print(Text(printable(note)), soft_wrap=True)
    for sentence in conclusions(comparison):
        console.print(Text(printable(sentence), "bold"), soft_wrap=True)


def _table(settings: list[Setting], without: Collection[str]) -> Table:
    names = (folded_name(printable(setting.name), NAME_WIDTH) for setting in settings)
    table = new_table("", *names, text=1)
    if any(len(setting.outcomes) != 1 for setting in settings):
        table.add_row("runs", *(_runs(setting) for setting in settings))
    table.add_row("out of memory", *(_out_of_memory(setting) for setting in settings))
    for attribute, (name, shown) in _METRICS.items():
        if attribute not in without:
            cells = (_cell(settings[0], setting, attribute, shown) for setting in settings)
            table.add_row(name, *(Text(cell) for cell in cells))
    return table


def _runs(setting: Setting) -> str:
    measured, over = len(setting.measured), len(setting.outcomes)
    return str(over) if measured == over else f"{measured} of {over}"


def _out_of_memory(setting: Setting) -> Text:
    runs, of = out_of_memory_runs(setting)
    if not of:
        return Text("-")
    times = setting.typical("ooms") or 0
    if not runs:
        return Text("no")
    if of > 1:
        return Text(f"in {runs} of {of} runs", "bold red")
    return Text("yes" if times == 1 else f"{times:,g} times", "bold red")


def _cell(first: Setting, setting: Setting, attribute: str, shown: Callable[[float], str]) -> str:
    """The median, the range of several runs, and the difference to the first setting."""
    value, spread = setting.typical(attribute), setting.spread(attribute)
    if value is None or spread is None:
        return "-"
    lines = [shown(value)]
    if spread[0] != spread[1]:
        lines.append(_range(*map(shown, spread)))
    before = first.typical(attribute)
    if before is not None and value != before and not _has_part(first, setting):
        lines.append(_difference(value - before, before, shown))
    return "\n".join(lines)


def _range(least: str, most: str) -> str:
    """The unit once, if both have it."""
    (least_number, _, least_unit), (_, _, most_unit) = least.partition(" "), most.partition(" ")
    return f"{least_number if least_unit == most_unit else least} .. {most}"


def _has_part(*settings: Setting) -> bool:
    """Whether one of them has numbers of a part of the program, which compare with no other's."""
    return any(map(ended_early, settings))


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
        if early := sum(each.ended_early and bool(each.ooms) for each in setting.measured):
            yield (
                f"{setting.name}: {number(early, 'run')} ended when memory ran out; the numbers "
                "are of the time before, and differences to them are left out."
            )
