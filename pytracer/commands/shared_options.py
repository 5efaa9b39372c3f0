"""Options and arguments that several commands have."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from pytracer.errors import ConfigError, PytracerError
from pytracer.text import parsed_size

Command = TypeVar("Command", bound=Callable[..., Any])

TOP = 10  # how many rows of a table are shown by default


class _Source(click.Path):
    """An argument that names recordings: a file, a directory or a URL.

    What killed processes have left in a directory becomes snapshots first, which a line says.
    """

    def convert(self, value: Any, parameter: Any, context: click.Context | None) -> Any:
        is_completion = context is not None and context.resilient_parsing
        if not is_completion and os.path.isdir(value):
            from pytracer.boxes.restoring import restore  # a single file needs no process

            for line in restore(Path(value)):
                click.echo(f"pytracer: {line}", err=True)
        return super().convert(value, parameter, context)


source, source_path = _Source(path_type=str), _Source(path_type=Path)

files_argument = click.argument(
    "paths", metavar="FILE_OR_DIRECTORY...", nargs=-1, required=True, type=source_path
)


TOP_HELP = "How many rows of each table to print. JSON has all rows."

top_option = click.option(
    "--top", type=click.IntRange(min=0), default=TOP, show_default=True, help=TOP_HELP
)

device_option = click.option(
    "--device", type=click.IntRange(min=0), help="Report only the device with this index."
)


simulated_device_option = click.option(
    "--device",
    type=click.IntRange(min=0),
    help="The device's index in the recording.  [default: the accelerator with the most events]",
)


def _checked_plot(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    from pytracer.commands.plots import check_plot

    try:
        if path is not None:
            check_plot(path)
    except PytracerError as error:
        raise click.UsageError(str(error)) from None
    return path


def plot_option(what: str) -> Callable[[Command], Command]:
    """Give a command `--plot`, which draws `what`."""
    return click.option(
        "--plot",
        "plot_path",
        metavar="PATH",
        type=click.Path(dir_okay=False, path_type=Path),
        callback=_checked_plot,
        help=f"Draw {what} to PATH, a .png, .svg or .pdf file. Needs matplotlib.",
    )


moment_option = click.option(
    "--at",
    "moment",
    metavar="MOMENT",
    help="The moment: oom, peak, end, the index of an event, or +SECONDS after the first event.  "
    "[default: the last out-of-memory error, else the peak]",
)


def parsed_by(parse: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the callback of an option: what `parse` makes of its text, or texts; None stays."""

    def parsed(_: click.Context, __: click.Parameter, text: Any) -> Any:
        try:
            return None if text is None else parse(text)
        except (ValueError, ConfigError) as error:
            raise click.BadParameter(str(error)) from None

    return parsed


def device_memory_option(default: str) -> Callable[[Command], Command]:
    """Give a command `--device-memory`; `default` says whose memory is the default."""
    return click.option(
        "--device-memory",
        "device_memory_bytes",
        metavar="SIZE",
        callback=parsed_by(parsed_size),
        help=f"Device memory of the next run, such as 80GiB.  [default: that of the {default}]",
    )
