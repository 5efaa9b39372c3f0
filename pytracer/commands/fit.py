"""The command `pytracer fit`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from pytracer.commands import dry_run_options
from pytracer.commands import shared_options as shared
from pytracer.commands.json_output import json_option, print_json
from pytracer.commands.parallel import signals_interrupt
from pytracer.commands.show_answer import echo_answer
from pytracer.fitting import fit
from pytracer.fitting.results import DOES_NOT_FIT, UNKNOWN
from pytracer.fitting.sizes import parsed_target
from pytracer.rehearsal.models import model_of
from pytracer.text import printable


@click.command("fit")
@click.argument(
    "paths", metavar="FILE[@NAME=SIZE,...]... | -- PROGRAM ARGUMENTS...", nargs=-1, required=True
)
@click.option(
    "--at",
    metavar="NAME=SIZE,...",
    callback=shared.parsed_by(parsed_target),
    help="The sizes to predict, such as batch=16,length=4096. batch=8..32 are all sizes from 8 to "
    "32, batch=8..32..8 in steps of 8.",
)
@shared.device_memory_option("recorded device, or of the one given by --on")
@shared.simulated_device_option
@click.option(
    "--on",
    "devices",
    metavar="DEVICE,...",
    callback=shared.parsed_by(lambda text: [model_of(name) and name for name in text.split(",")]),
    help="Run the program on these simulated devices, such as h100,a100-40. In its "
    "arguments, {batch} becomes the batch of --at or --largest. The options from --largest to "
    "--allow-writes are for these runs only.",
)
@click.option("--largest", metavar="NAME", help="Find the largest size that fits, by trying some.")
@dry_run_options.dry_run_options
@shared.plot_option("the peaks against one size")
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    paths: tuple[str, ...],
    at: dict[str, Sequence[int]] | None,
    device_memory_bytes: int | None,
    device: int | None,
    plot_path: Path | None,
    as_json: bool,
    devices: list[str] | None,
    largest: str | None,
    **options: Any,
) -> None:
    """Will the next run fit?

    \b
    pytracer fit --on a100-40 --largest batch -- train.py --batch {batch}
    PYTRACER_METADATA=batch=2 pytracer run -o 2.pickle train.py --batch 2
    PYTRACER_METADATA=batch=4 pytracer run -o 4.pickle train.py --batch 4
    pytracer fit 2.pickle 4.pickle --at batch=16 --device-memory 80GiB

    With --on, runs the program itself at these sizes on simulated devices. Needs a build of torch
    for CUDA, or torch_npu.

    Otherwise estimates the peak from recordings at two small sizes or more. Recordings that do not
    name their sizes are given as FILE@batch=2. Needs neither torch nor a device.

    The exit code is 4 if the run does not fit, and 3 if the estimate is too near to the memory of
    the device.
    """
    for_dry_run = dry_run_options.given(options)
    if devices is not None:
        from pytracer.commands.fit_on import fit_on  # not needed for recordings

        if device is not None or plot_path is not None:
            raise click.UsageError("--device and --plot are for recordings")
        if device_memory_bytes is not None:
            for_dry_run["device_memory_bytes"] = device_memory_bytes
        context.exit(fit_on(devices, paths, at or {}, largest, as_json, **for_dry_run))
    if for_dry_run or largest is not None:
        raise click.UsageError("to run the program, add --on DEVICE; otherwise give recordings")
    if at is None:
        raise click.UsageError("--at is missing: the sizes to predict, such as batch=16")
    console = Console(stderr=True, highlight=False)
    with signals_interrupt(), console.status("Reading the recordings") as status:
        found = fit(
            *paths,
            at=at,
            device_memory_bytes=device_memory_bytes,
            device=device,
            on_progress=lambda text: status.update(printable(text)),
        )
    if plot_path is not None:
        from pytracer.commands.plots import plot_range

        plot_range(found, plot_path)
    if as_json:
        print_json(vars(found))
    else:
        echo_answer(found.answer)
    context.exit(_EXIT_CODES.get(found.kind, 0))


_EXIT_CODES = {UNKNOWN: 3, DOES_NOT_FIT: dry_run_options.DOES_NOT_FIT}
