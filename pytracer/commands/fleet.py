"""The group of commands `pytracer fleet`."""

import click

from pytracer.commands.main import CommandPlace, LazyGroup

_COMMANDS = {
    "collect": CommandPlace(
        "fleet_collect", "collect", "How do I make one dataset of many recordings?"
    ),
    "report": CommandPlace(
        "fleet_report", "report", "Which ranks use more memory, leak, or ran out of memory first?"
    ),
}


@click.group("fleet", cls=LazyGroup, places=_COMMANDS)
def fleet() -> None:
    """What do the recordings of many ranks show together?

    \b
    pytracer fleet report outputs/profile
    """
