"""The command `pytracer run`: the environment's tracing from the command line."""

import inspect
import os
import re
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import click

from pytracer.config import OPTIONS, PATCH_TORCH, SWITCH, Options, switched_off, variable
from pytracer.config_checks import check_bool
from pytracer.errors import ConfigError


def _descriptions() -> dict[str, str]:
    """Of the options, from their documentation."""
    text = inspect.getdoc(Options) or ""
    found = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


def _check(context: click.Context, parameter: click.Parameter, value: Any) -> str | None:
    """The text for the variable; None: the option is not given."""
    if value is None or isinstance(value, bool):
        return None if value is None else str(int(value))
    assert parameter.name is not None
    if not value:
        raise click.UsageError(f"{parameter.opts[-1]} is empty: give a value, or leave it out")
    option = OPTIONS[parameter.name]
    try:
        option.check(parameter.opts[-1], option.parse(value))
    except ConfigError as error:
        raise click.UsageError(str(error), context) from None
    return str(value)


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """One option for each of a tracer's."""
    descriptions = _descriptions()
    for name, option in reversed(OPTIONS.items()):
        flag = f"--{name.replace('_', '-')}"
        if option.check is check_bool:
            names, kind = [f"{flag}/--no-{flag[2:]}"], None
        else:
            names, kind = [flag], "TEXT"
        command = click.option(
            *(["-o"] if name == "output" else []),
            *names,
            default=None,
            callback=_check,
            metavar=kind,
            help=descriptions.get(name),
        )(command)
    return command


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@_with_options
@click.option(
    "--patch-torch", is_flag=True, help="Also stand in for torch's own recorder (patch_torch)."
)
@click.option("-m", "is_module", is_flag=True, help="The program is a module's name.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    patch_torch: bool,
    is_module: bool,
    program: str,
    arguments: tuple[str, ...],
    **options: str | None,
) -> None:
    """Run a Python program traced, as PYTRACER=1 does.

    Options that are not given come from their variables, PYTRACER_ and the option's name. Snapshots
    go to outputs/profile if --output is not given.
    """
    texts = {name: text for name, text in options.items() if text is not None}
    try:  # whether they go together
        Options.checked({name: OPTIONS[name].parse(text) for name, text in texts.items()})
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    try:
        distribution("torch-pytracer")
    except PackageNotFoundError:
        raise click.ClickException(
            "pytracer is not installed for this Python, so no program starts it; install it, or "
            "use pytracer.Tracer in the program"
        ) from None
    given = {variable(name): text for name, text in texts.items()}
    given[SWITCH] = "0" if switched_off() else "1"
    if patch_torch:
        given[PATCH_TORCH] = "1"
    command = [sys.executable, *(["-m"] if is_module else []), program, *arguments]
    os.execvpe(command[0], command, {**os.environ, **given})
