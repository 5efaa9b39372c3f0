"""The commands about hooks: `pytracer hooks`, `pytracer build-hooks` and `pytracer doctor`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytracer.backends.doctor import Examination, examine
from pytracer.backends.hook_attach import HOOKS, Hooks
from pytracer.backends.names import ACCELERATORS, AUTOGRAD, BACKENDS, HOST, LIBRARIES, package_of
from pytracer.backends.running_torch import built_backends, torch_module
from pytracer.commands.json_output import write_json
from pytracer.commands.shared_options import json_options
from pytracer.errors import ConfigError, HookError
from pytracer.reading.to_json import SCHEMA_VERSION
from pytracer.tracing.option_values import Options
from pytracer.tracing.options import (
    ENVIRONMENT_DEFAULTS,
    PATCH_TORCH,
    SWITCH,
    switch,
    switched_off,
)


@click.command("build-hooks")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write to, for PYTRACER_HOOK_DIR.  [default: the user's cache, or a private "
    "temporary folder if the cache cannot be written]",
)
@click.option(
    "--backend",
    "backends",
    type=click.Choice(LIBRARIES),
    multiple=True,
    help="The allocator to build the hook for, host for pinned host memory, or autograd for the "
    "library for forward stacks; may be repeated.  [default: autograd, and all allocators that "
    "torch supports]",
)
@click.pass_context
def build_hooks(context: click.Context, output: Path | None, backends: tuple[str, ...]) -> None:
    """How do I record on a machine that has no compiler?

    \b
    pytracer build-hooks --output /opt/pytracer-hooks
    export PYTRACER_HOOK_DIR=/opt/pytracer-hooks

    Compiles the allocator hooks for the installed torch ahead of time, for example when a
    container image is built. Programs that find them through PYTRACER_HOOK_DIR need no compiler.
    """
    builder = _hooks(context).builder
    failures = []
    try:
        for backend in backends or _all_libraries():
            try:
                if output is None:
                    path = builder.build_in_chosen(backend).path
                else:
                    path = builder.build(backend, output)
                click.echo(f"{backend}: {path}")
            except HookError as error:
                if backend in _LACKING and not backends:  # recording works without it
                    click.echo(f"{backend}: not built, {_LACKING[backend]}: {error}", err=True)
                else:
                    failures.append(str(error))
    except HookError as error:
        failures.append(str(error))
    if failures:
        raise click.ClickException("\n".join(dict.fromkeys(failures)))


_LACKING = {AUTOGRAD: "so no forward stacks", HOST: "so pinned memory is not recorded"}


def _all_libraries() -> list[str]:
    backends = built_backends()
    return [*backends, AUTOGRAD, *([HOST] if "cuda" in backends else [])]


@click.command("hooks")
@click.pass_context
def list_hooks(context: click.Context) -> None:
    """Which versions of torch need no compiler here?

    \b
    pytracer hooks

    Lists the ready hooks of this installation, and where the hooks for the installed torch are. A
    torch without a ready hook needs a C++ compiler once, or a folder that `pytracer build-hooks`
    filled.
    """
    builder = _hooks(context).builder
    for backend in LIBRARIES:
        try:
            if backend in ACCELERATORS:
                torch_module(backend)  # or there is no torch for it
            found = builder.find(backend)
            place = f"{found.path} ({found.folder})" if found else "not built yet"
        except HookError as error:
            place = str(error)
        click.echo(f"{backend}: {place}")
    _print_ready(builder.ready.releases_by_library())


@click.command("doctor")
@click.option(
    "--device",
    "devices",
    type=click.Choice(BACKENDS),
    multiple=True,
    help="A device that must be recordable; may be repeated.  [default: the accelerator that torch "
    "finds, or else cpu]",
)
@json_options
@click.pass_context
def doctor(
    context: click.Context, devices: tuple[str, ...], as_json: bool, json_path: str | None
) -> None:
    """What can be recorded on this machine?

    \b
    pytracer doctor
    pytracer doctor --device cuda && python train.py

    Checks each backend (CPU, CUDA, NPU), and reports what is missing where recording is impossible.
    The exit code is 0 if the devices and their call stacks can be recorded. It is 1 if not, and 1
    if an environment variable is wrong or prevents recording. So a job script can check before it
    starts the job.
    """
    hooks = _hooks(context)
    examination = examine(devices, hooks)
    build_problem = hooks.builder.compiler.mode_problem()
    problems = _variable_problems(build_problem) + examination.problems
    report = {
        "schema_version": SCHEMA_VERSION,
        "requested": examination.requested,
        "problems": problems,
        "interpreter": examination.interpreter,
        "backends": examination.backends,
        "autograd": examination.autograd,
        "host": examination.host,
        "ready_hooks": examination.ready_hooks,
    }
    write_json(report, to_stdout=as_json, path=json_path)
    if not as_json:
        _print(examination, problems)
    if problems:
        context.exit(1)


def _hooks(context: click.Context) -> Hooks:
    """Return the hooks that a test gave the command, or those of this process."""
    return context.obj if isinstance(context.obj, Hooks) else HOOKS


def _variable_problems(build_problem: str | None) -> list[str]:
    """Return what is wrong with the environment variables, after "pytracer cannot record"."""
    problems = []
    try:
        for name in (SWITCH, PATCH_TORCH):
            switch(name)
    except ConfigError as error:
        problems.append(f"anything: {error}")
    if switched_off():
        problems.append(f"anything: {SWITCH}=0 switches off tracing; unset {SWITCH}")
    # The environment's tracer reads all variables, a tracer in the code at most as many.
    options = Options.checked({}, **ENVIRONMENT_DEFAULTS)
    wrong = filter(None, (options.problem, build_problem))
    return problems + [f"with the given options: {problem}" for problem in wrong]


def _print(examination: Examination, problems: Sequence[str]) -> None:
    for problem in problems:
        click.echo(f"pytracer cannot record {problem}")
    if not problems:
        names = ", ".join(examination.requested)
        click.echo(f"pytracer can record {names}, with call stacks")
    if not examination.autograd.available:
        click.echo("forward stacks in backward: no, see the row autograd; all else is recorded")
    interpreter = examination.interpreter
    click.echo(f"{interpreter.python}: {interpreter.executable}")
    table = Table("backend", "available", "torch", "hook")
    for report in (*examination.backends, examination.autograd, examination.host):
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
    _print_ready(examination.ready_hooks)


def _print_ready(releases: Mapping[str, Sequence[str]]) -> None:
    """Print the versions of torch and torch_npu that need no compiler, by library."""
    if not any(releases.values()):
        click.echo("ready hooks: none in this installation; each torch needs a C++ compiler once")
        return
    table = Table("backend", "package", "ready hooks, which need no compiler")
    for library, versions in releases.items():
        table.add_row(library, package_of(library), ", ".join(versions) or "none")
    Console().print(table)
