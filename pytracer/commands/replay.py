"""The command `pytracer replay`."""

from pathlib import Path

import click
from rich.console import Console

from pytracer.commands.comparison_table import output_comparison
from pytracer.commands.interruption import Interruption, signals_interrupt
from pytracer.commands.shared_options import (
    json_options,
    parse_size,
    plot_option,
    replayed_device_option,
    what_if_options,
)
from pytracer.text import printable, size


@click.command("replay")
@click.argument("path", metavar="SNAPSHOT", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "changes",
    metavar="SETTINGS",
    multiple=True,
    help="Allocator settings to try, as NAME:VALUE,NAME:VALUE, in addition to the recording's own. "
    "Repeat the option to compare several settings.",
)
@click.option(
    "--capacity",
    metavar="SIZE",
    callback=parse_size,
    help="The memory that the allocator may reserve, such as 80GiB.  [default: the limit of the "
    "recording if the file has it, or else no limit]",
)
@replayed_device_option
@what_if_options
@click.option(
    "--real",
    is_flag=True,
    help="Ask the real allocator of this machine's accelerator, in one process for each setting, "
    "and not the simulator.",
)
@json_options
@plot_option
@click.pass_context
def replay_command(
    context: click.Context,
    path: Path,
    changes: tuple[str, ...],
    capacity: int | None,
    device: int | None,
    without: tuple[str, ...],
    scale: tuple[str, ...],
    real: bool,
    as_json: bool,
    json_path: str | None,
    plot_path: Path | None,
) -> None:
    """Would other allocator settings have helped this recording?

    \b
    pytracer replay snapshot.pickle --set expandable_segments:True --capacity 80GiB

    Simulates the allocator's answers to the allocations and frees of a snapshot. Needs neither the
    model nor the data, and no accelerator. The first replay uses the recording's own settings. Its
    deviation from the recording is the error bar of all other answers. `pytracer recommend` tries
    many settings.
    """
    from pytracer.experiments.replay import replay

    console = Console(stderr=True, highlight=False)
    try:
        with signals_interrupt(), console.status("Reading the recording") as status:
            result = replay(
                path,
                changes,
                capacity_bytes=capacity,
                device=device,
                real=real,
                without=without,
                scale=scale,
                on_progress=lambda name: status.update(printable(f"Replaying: {name}")),
            )
    except Interruption as interruption:
        context.exit(interruption.exit_code)
    limit = "" if result.capacity_bytes is None else f", limit {size(result.capacity_bytes)}"
    output_comparison(
        result.comparison,
        as_json,
        json_path,
        plot_path,
        without=("step_us", "wall_s"),
        context=[
            result.fidelity(),
            f"{result.path}, {result.device}: {result.requests:,} requests{limit}",
        ],
        curves=result.curves,
    )
    if all(replayed.curve is None for replayed in result.replayed):
        context.exit(1)
