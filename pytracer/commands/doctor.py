"""The command `pytracer doctor`: what can be recorded here, and hooks for other machines."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytracer.backends.doctor import Examination, examine
from pytracer.backends.hook_attach import HOOKS, Hooks
from pytracer.backends.hook_build import HookBuilder
from pytracer.backends.names import AUTOGRAD, HOST, LIBRARIES, package_of
from pytracer.backends.running_torch import built_backends
from pytracer.commands.json_output import json_option, print_json
from pytracer.errors import ConfigError, HookError
from pytracer.tracing.options import (
    ENVIRONMENT_DEFAULTS,
    PATCH_TORCH,
    SWITCH,
    Options,
    switch,
    switched_off,
)


@click.command("doctor")
@click.option(
    "--device",
    "devices",
    type=click.Choice(LIBRARIES),
    multiple=True,
    help="Require that this can be recorded: a device, autograd (forward stacks) or host (pinned "
    "memory). May be repeated.  [default: the accelerator that torch finds, else cpu; with "
    "--build, all that torch supports]",
)
@click.option(
    "--build", is_flag=True, help="Build the hooks for the installed torch, and print their paths."
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where --build puts the hooks. To use them, set PYTRACER_HOOK_DIR to this folder.  "
    "[default: the user's cache]",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    devices: tuple[str, ...],
    build: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """What can be recorded on this machine?

    \b
    pytracer doctor
    pytracer doctor --device cuda && python train.py
    pytracer doctor --build --output /opt/pytracer-hooks

    Checks each backend (CPU, CUDA, NPU), reports what is missing, and lists the versions of torch
    that need no compiler here. The exit code is 1 if a device or its call stacks cannot be
    recorded, or if an environment variable is wrong or prevents recording; else 0.

    With --build, builds the hooks for machines that have the same torch and no compiler. Programs
    use them with PYTRACER_HOOK_DIR=/opt/pytracer-hooks.
    """
    hooks = context.obj if isinstance(context.obj, Hooks) else HOOKS  # a test gives its own
    if build:
        if as_json:
            raise click.UsageError("--build prints no report: leave out --json")
        _build(hooks.builder, devices, output)
        return
    if output is not None:
        raise click.UsageError("--output is for the hooks that --build makes: add --build")
    examination = examine(devices, hooks)
    build_problem = hooks.builder.compiler.mode_problem()
    # The environment's tracer reads all variables, a tracer in the code at most as many.
    options = Options.checked({}, **ENVIRONMENT_DEFAULTS)
    problems = _variable_problems(options, build_problem) + examination.problems
    if as_json:
        first = {"requested": examination.requested, "problems": problems}
        print_json({**first, **vars(examination)})
    else:
        _print(examination, problems)
    if problems:
        context.exit(1)


_LACKING = {AUTOGRAD: "so no forward stacks", HOST: "so pinned memory is not recorded"}


def _build(builder: HookBuilder, libraries: Sequence[str], output: Path | None) -> None:
    """Build hooks and print their paths.

    Raises:
        click.ClickException: A hook that was requested, or that recording needs, was not built.
    """
    failures = []
    try:
        backends = built_backends()
        pinned = [HOST] if "cuda" in backends else []
        for library in libraries or [*backends, AUTOGRAD, *pinned]:
            try:
                if output is None:
                    path = builder.build_in_chosen(library).path
                else:
                    path = builder.build(library, output)
                click.echo(f"{library}: {path}")
            except HookError as error:
                if library in _LACKING and not libraries:  # recording works without it
                    click.echo(f"{library}: not built, {_LACKING[library]}: {error}", err=True)
                else:
                    failures.append(str(error))
    except HookError as error:
        failures.append(str(error))
    if failures:
        raise click.ClickException("\n".join(dict.fromkeys(failures)))


def _variable_problems(options: Options, build_problem: str | None) -> list[str]:
    """Return what is wrong with the environment variables, after "pytracer cannot record"."""
    problems = []
    try:
        for name in (SWITCH, PATCH_TORCH):
            switch(name)
    except ConfigError as error:
        problems.append(f"anything: {error}")
    if switched_off():
        problems.append(f"anything: {SWITCH}=0 switches off tracing; unset {SWITCH}")
    wrong = filter(None, (options.problem, build_problem))
    return problems + [f"with the given options: {problem}" for problem in wrong]


def _print(examination: Examination, problems: Sequence[str]) -> None:
    for problem in problems:
        click.echo(f"pytracer cannot record {problem}")
    if not problems:
        names = ", ".join(examination.requested)
        click.echo(f"pytracer can record {names}, with call stacks")
    reports = (*examination.backends, examination.autograd, examination.host)
    if all(report.torch is None for report in reports):
        click.echo("recordings from other machines can be read here without torch")
    elif not examination.autograd.available:
        click.echo("no forward stacks for backward (see row autograd); all else is recorded")
    interpreter = examination.interpreter
    click.echo(f"{interpreter.python}: {interpreter.executable}")
    table = Table("backend", "available", "torch", "hook")
    for report in reports:
        details = [report.message]
        if report.hook is not None:
            details.append(f"{report.hook}\n(found in {report.folder})")
        table.add_row(
            report.backend,
            Text("yes", "green") if report.available else Text("no", "red"),
            report.torch or "-",
            Text("\n".join(details), overflow="fold"),
        )
    Console().print(table)
    if not any(examination.ready_hooks.values()):
        click.echo("no prebuilt hooks here: each version of torch needs a C++ compiler once")
        return
    table = Table("backend", "package", "prebuilt hooks, which need no compiler")
    for library, versions in examination.ready_hooks.items():
        table.add_row(library, package_of(library), ", ".join(versions) or "none")
    Console().print(table)
