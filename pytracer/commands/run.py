"""The command `pytracer run`: set the environment variables of a traced program, and start it."""

import os
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import click

from pytracer.commands import dry_run_options
from pytracer.commands.shared_options import device_memory_option
from pytracer.errors import ConfigError
from pytracer.rehearsal.models import MODELS
from pytracer.tracing.option_forms import parse_bool
from pytracer.tracing.options import OPTIONS, SWITCH, Options, switched_off, variable, variable_text


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
            metavar=kind,
            help=f"{option.doc} Default: {option.shown_environment_default}.",
        )(command)
    return command


@click.command(
    "run", context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS]"
)
@_with_options
@click.option(
    "-m", "is_module", is_flag=True, help="PROGRAM is the name of a module, as in `python -m`."
)
@click.option(
    "--dry-run",
    metavar="DEVICE",
    type=click.Choice([*MODELS]),
    help="Run the program on a simulated device, and say whether it fits. DEVICE is one of "
    f"{', '.join(MODELS)}. Options from --device-memory to --allow-writes are for dry runs.",
)
@device_memory_option("device")
@dry_run_options.dry_run_options
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    context: click.Context,
    /,
    is_module: bool,
    dry_run: str | None,
    program: str,
    arguments: tuple[str, ...],
    **options: Any,
) -> None:
    """How do I record a program without changing it?

    \b
    pytracer run --output snapshot.pickle train.py --epochs 3
    pytracer run --steps 10,20 -m torch.distributed.run --nproc-per-node 8 train.py
    pytracer run --dry-run h100 --world-size 64 train.py

    Runs a Python program under the tracer, as PYTRACER=1 does. An option that is not given is read
    from its environment variable, such as PYTRACER_STACK_DEPTH.

    With --dry-run, the exit code is 0 if the program fits and 4 if it does not.
    """
    others = {name: options.pop(name) for name in options.keys() - OPTIONS.keys()}
    for_dry_run = dry_run_options.given(others)
    if for_dry_run and dry_run is None:
        flag = f"--{min(for_dry_run).removesuffix('_bytes').removesuffix('_s').replace('_', '-')}"
        raise click.UsageError(f"{flag} needs --dry-run DEVICE")
    given = {name: value for name, value in options.items() if value is not None}
    texts = {name: str(int(v)) if isinstance(v, bool) else v for name, v in given.items()}
    try:
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
    command = [sys.executable, *(["-m"] if is_module else []), program, *arguments]
    if dry_run is not None:
        context.exit(_dry_run(command, device=dry_run, variables=variables, **for_dry_run))
    variables[SWITCH] = "0" if switched_off() else "1"
    if switched_off():
        click.echo(f"pytracer: {SWITCH}=0 is set: nothing is recorded", err=True)
    os.execvpe(command[0], command, {**os.environ, **variables})


def _dry_run(command: list[str], **options: Any) -> int:
    """Run a program on a simulated device, print the answer, and return the exit code."""
    from pytracer.commands.parallel import signals_interrupt
    from pytracer.commands.show_answer import echo_answer  # not needed to record
    from pytracer.rehearsal.dry_run import dry_run

    click.echo(dry_run_options.WARNING, err=True)
    output = options["variables"].get(variable("output")) or variable_text(variable("output"))
    with signals_interrupt():
        found = dry_run(command, is_quiet=False, output=output or None, **options)
    echo_answer(found.answer)
    return 0 if found.fits else dry_run_options.DOES_NOT_FIT
