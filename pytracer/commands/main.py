"""The command `pytracer`, also `python -m pytracer`."""

import importlib
import os
import shlex
import sys
from collections.abc import Mapping
from io import TextIOWrapper
from typing import Any

import click

from pytracer import __version__
from pytracer.errors import PytracerError
from pytracer.text import did_you_mean, printable

COMMANDS = {
    "run": "How do I record a program without changing it?",
    "demo": "Does pytracer work here, and what can it record?",
    "show": "What happened, who holds the memory, and what can I do?",
    "diff": "What changed between two recordings?",
    "view": "What does a recording look like?",
    "recommend": "Which allocator settings does this recording need?",
    "fit": "Will the next run fit?",
    "experiment": "Which allocator settings does this program need?",
    "fleet": "What do the recordings of many ranks show together?",
    "export": "How do I open a recording in other tools?",
    "live": "What are the recorded processes on this machine doing now?",
    "doctor": "What can be recorded on this machine?",
}
"""Every command, in the order of `pytracer --help`, and the first line of its help. It is repeated
here so that `--help` imports no command; a test compares the two."""

FLEET_COMMANDS = {
    "collect": "How do I combine many recordings into one dataset?",
    "report": "Which ranks use more memory, leak, or ran out of memory first?",
}


class LazyGroup(click.Group):
    """A group that imports the module of a command when the command is used.

    An error that pytracer raises on purpose is shown as one line, with exit code 1.
    """

    def __init__(
        self, *args: Any, questions: Mapping[str, str], prefix: str = "", **options: Any
    ) -> None:
        """Make a group of the `command`s of the modules that `prefix` and a command name."""
        super().__init__(*args, **options)
        self._questions, self._prefix = questions, prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(dict.fromkeys([*self._questions, *super().list_commands(ctx)]))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` begin with; an error suggests another one."""
        name = printable(args[0])
        if self.get_command(ctx, args[0]) is None and not name.startswith("-"):
            hint = did_you_mean(name, self.list_commands(ctx), f"{ctx.command_path} ")
            if os.path.exists(args[0]):
                wanted = ("run" if name.endswith(".py") else "show", "report")
                command = next(each for each in wanted if each in self.list_commands(ctx))
                hint = f"; did you mean {ctx.command_path} {command} {shlex.quote(name)}?"
            ctx.fail(f"{name!r} is not a command{hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None: there is no such command."""
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in self._questions:
            module = importlib.import_module(f"pytracer.commands.{self._prefix}{cmd_name}")
            command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([*self._questions.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except PytracerError as error:
            raise click.ClickException(printable(str(error))) from error


@click.group(
    cls=LazyGroup, questions=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
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


@main.group("fleet", cls=LazyGroup, questions=FLEET_COMMANDS, prefix="fleet_")
def fleet() -> None:
    """What do the recordings of many ranks show together?

    \b
    pytracer fleet report outputs/profile
    """
