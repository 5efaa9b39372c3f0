"""The group of commands `pytracer fleet`."""

import importlib
from typing import Any

import click

from pytracer.errors import PytracerError
from pytracer.text import printable

_COMMANDS = {
    "collect": ("fleet_collect", "How do I make one dataset of many recordings?"),
    "report": ("fleet_report", "Which ranks use more memory, leak, or ran out of memory first?"),
}
"""The module of each command, in which it is named as the command, and its help's first line."""


class _Group(click.Group):
    """A group that imports the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"pytracer.commands.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, question) for name, (_, question) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PytracerError as error:
            raise click.ClickException(printable(str(error))) from error


@click.group("fleet", cls=_Group)
def fleet() -> None:
    """What do the recordings of many ranks show together?

    \b
    pytracer fleet collect outputs/profile --output fleet
    """
