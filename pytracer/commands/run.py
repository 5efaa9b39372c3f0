"""The command `pytracer run`: set the environment variables of a traced program, and start it."""

import os
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import click

from pytracer.errors import ConfigError
from pytracer.tracing.option_forms import parse_bool
from pytracer.tracing.option_values import Options
from pytracer.tracing.options import OPTIONS, PATCH_TORCH, SWITCH, switched_off, variable


def _check(context: click.Context, parameter: click.Parameter, value: Any) -> str | None:
    """Check an option; return the text for its variable, or None if it is not given."""
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
    for name, option in reversed(OPTIONS.items()):
        flag = f"--{name.replace('_', '-')}"
        if option.parse is parse_bool:
            names, kind = [f"{flag}/--no-{flag[2:]}"], None
        else:
            names, kind = [flag], option.metavar
        command = click.option(
            *(["-o"] if name == "output" else []),
            *names,
            default=None,
            callback=_check,
            metavar=kind,
            help=f"{option.doc} Default: {option.shown_environment_default}.",
        )(command)
    return command


@click.command(
    "run", context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS]"
)
@_with_options
@click.option(
    "--patch-torch",
    is_flag=True,
    help="Also replace torch's own recorder by pytracer, as pytracer.patch_torch() does.",
)
@click.option(
    "-m", "is_module", is_flag=True, help="PROGRAM is the name of a module, as in `python -m`."
)
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    patch_torch: bool,
    is_module: bool,
    program: str,
    arguments: tuple[str, ...],
    **options: str | None,
) -> None:
    """How do I record a program without changing it?

    \b
    pytracer run --output snapshot.pickle train.py --epochs 3
    pytracer run --steps 10,20 -m torch.distributed.run --nproc-per-node 8 train.py

    Runs a Python program under the tracer, as PYTRACER=1 does. An option that is not given is read
    from its environment variable, which is PYTRACER_ and the option's name in capitals, such as
    PYTRACER_STACK_DEPTH.
    """
    texts = {name: text for name, text in options.items() if text is not None}
    try:  # each option is valid, but two may contradict each other
        Options.checked({name: OPTIONS[name].parse(text) for name, text in texts.items()})
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    try:
        distribution("torch-pytracer")
    except PackageNotFoundError:
        raise click.ClickException(
            f"pytracer is not installed for {sys.executable}, so a program that this Python runs "
            "would not be traced: install torch-pytracer, or use pytracer.Tracer in the program"
        ) from None
    variables = {variable(name): text for name, text in texts.items()}
    variables[SWITCH] = "0" if switched_off() else "1"
    if switched_off():
        click.echo(f"pytracer: {SWITCH}=0 is set: nothing is recorded", err=True)
    if patch_torch:
        variables[PATCH_TORCH] = "1"
    command = [sys.executable, *(["-m"] if is_module else []), program, *arguments]
    os.execvpe(command[0], command, {**os.environ, **variables})
