"""The command `pytracer replay`."""

from pathlib import Path

import click
from rich.console import Console

from pytracer.cli_comparison import Interruption, plot_option, signals_interrupt, tell
from pytracer.cli_files import json_option
from pytracer.reading.text import parsed_size, printable, size


def _capacity(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else parsed_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("replay")
@click.argument("path", metavar="SNAPSHOT", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "changes",
    metavar="SETTINGS",
    multiple=True,
    help="Settings of the allocator, as NAME:VALUE,NAME:VALUE, in addition to the recording's own. "
    "Give it once for each to be compared.",
)
@click.option(
    "--capacity",
    metavar="SIZE",
    callback=_capacity,
    help="How much the allocator may reserve, as in 80GiB.  [default: as much as it could in the "
    "recording, if the file tells, else all of the device here]",
)
@click.option(
    "--device",
    type=click.IntRange(min=0),
    help="The device's index in the file.  [default: the one with most events]",
)
@json_option
@plot_option
@click.pass_context
def replay_command(
    context: click.Context,
    path: Path,
    changes: tuple[str, ...],
    capacity: int | None,
    device: int | None,
    json_path: str | None,
    plot_path: Path | None,
) -> None:
    """Ask this machine's allocator what a recording's program asked, under other settings.

    \b
    pytracer replay snapshot.pickle --set expandable_segments:True --capacity 80GiB

    The recording's own settings come first; how far that replay is from the recording is how much
    the answers may be wrong. No model and no data: allocations and frees alone, in a process for
    each setting.
    """
    from pytracer.replay import replay

    console = Console(stderr=True, highlight=False)
    try:
        with signals_interrupt(), console.status("Reading the recording") as status:
            done = replay(
                path,
                changes,
                capacity_bytes=capacity,
                device=device,
                on_progress=lambda name: status.update(printable(f"Replaying: {name}")),
            )
    except Interruption as interruption:
        context.exit(128 + interruption.number)
    if json_path != "-":
        limit = "" if done.capacity_bytes is None else f", in {size(done.capacity_bytes)}"
        click.echo(printable(f"{done.path}, {done.device}: {done.requests:,} requests{limit}"))
    tell(
        done.comparison,
        json_path,
        plot_path,
        without=("step_us", "wall_s"),
        curves=done.curves,
    )
    if json_path != "-":
        click.echo(done.fidelity())
    if all(each.curve is None for each in done.replayed):
        context.exit(1)
