"""The commands about hooks: `pytracer build-hooks` and `pytracer doctor`."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytracer import devices, hooks
from pytracer import doctor as clinic
from pytracer.cli_files import json_option, write_json
from pytracer.errors import HookError
from pytracer.hook_places import destination


@click.command("build-hooks")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to put the hooks in, for PYTRACER_HOOK_DIR.  [default: the user's cache]",
)
@click.option(
    "--backend",
    "backends",
    type=click.Choice(hooks.BACKENDS),
    multiple=True,
    help="Allocator to build the hook of; may be repeated.  [default: all that this torch has]",
)
def build_hooks(output: Path | None, backends: tuple[str, ...]) -> None:
    """Compile the allocator hooks for the installed torch.

    Traced programs then need no compiler: bake the folder into an image and set PYTRACER_HOOK_DIR.
    """
    failures = []
    try:
        for backend in backends or devices.built_in():
            directory = output if output is not None else destination().directory
            try:
                click.echo(f"{backend}: {hooks.build(backend, directory)}")
            except HookError as error:
                failures.append(str(error))
    except HookError as error:
        failures.append(str(error))
    if failures:
        raise click.ClickException("\n".join(failures))


@click.command("doctor")
@json_option
def doctor(json_path: str | None) -> None:
    """Say what can be recorded here, and what is missing where something cannot."""
    interpreter, backends = clinic.examine_interpreter(), clinic.examine()
    if json_path is None:
        _print(interpreter, backends)
        return
    write_json({"interpreter": interpreter, "backends": backends}, json_path)


def _print(interpreter: clinic.InterpreterReport, backends: list[clinic.BackendReport]) -> None:
    console = Console()
    table = Table("backend", "available", "torch", "hook")
    for each in backends:
        details = [each.message]
        if each.hook is not None:
            details.append(f"{each.hook}\n(found in {each.place})")
        table.add_row(
            each.backend,
            Text("yes", "green") if each.available else Text("no", "red"),
            each.torch or "-",
            Text("\n".join(details), overflow="fold"),
        )
    stacks = "call stacks are recorded" if interpreter.stacks else "call stacks are NOT recorded: "
    console.print(Text(f"{interpreter.python}: {stacks}{interpreter.message}"))
    console.print(table)
