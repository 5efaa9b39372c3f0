"""The command `pytracer`, also `python -m pytracer`."""

import importlib
import sys
from collections.abc import Mapping
from io import TextIOWrapper
from typing import Any, NamedTuple

import click

from pytracer import __version__
from pytracer.errors import PytracerError
from pytracer.text import printable


class CommandPlace(NamedTuple):
    """Where a command is defined, and the first line of its help.

    Attributes:
        module: A module of `pytracer.commands`.
        attribute: The name of the command in its module.
        question: The first line of the command's help. It is repeated here so that
            `--help` imports no command; a test compares the two.
    """

    module: str
    attribute: str
    question: str


COMMANDS = {
    "run": CommandPlace("run", "run", "How do I record a program without changing it?"),
    "demo": CommandPlace("demo", "demo", "Does pytracer work here, and what does it show?"),
    "show": CommandPlace(
        "show", "show_command", "What happened, who holds the memory, and what can I do?"
    ),
    "diff": CommandPlace("diff", "diff_command", "What changed between two recordings?"),
    "view": CommandPlace("view", "view_command", "What does a recording look like?"),
    "recommend": CommandPlace(
        "recommend",
        "recommend_command",
        "Which allocator settings does this recording need?",
    ),
    "experiment": CommandPlace(
        "experiment", "experiment_command", "Which allocator settings does this program need?"
    ),
    "fleet": CommandPlace("fleet", "fleet", "What do the recordings of many ranks show together?"),
    "export": CommandPlace("export", "export", "How do I open a recording in other tools?"),
    "doctor": CommandPlace("doctor", "doctor", "What can be recorded on this machine?"),
}
"""Every command, in the order of `pytracer --help`."""


class LazyGroup(click.Group):
    """A group that imports the module of a command when the command is used.

    An error that pytracer raises on purpose is shown as one line, with exit code 1.
    """

    def __init__(self, *args: Any, places: Mapping[str, CommandPlace], **options: Any) -> None:
        """Make a group of the commands in `places`; the other arguments are those of click."""
        super().__init__(*args, **options)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(dict.fromkeys([*self._places, *super().list_commands(ctx)]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None: there is no such command."""
        place = self._places.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"pytracer.commands.{place.module}")
        command: click.Command = getattr(module, place.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.question) for name, place in self._places.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except PytracerError as error:
            raise click.ClickException(printable(str(error))) from error


@click.group(cls=LazyGroup, places=COMMANDS)
@click.version_option(__version__, prog_name="pytracer")
def main() -> None:
    """Record what takes the accelerator memory of a PyTorch program, and read the recording.

    \b
    pytracer run --output snapshot.pickle train.py
    pytracer show snapshot.pickle
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # the terminal's encoding may lack µ and ≥
