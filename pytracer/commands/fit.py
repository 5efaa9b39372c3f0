"""The command `pytracer fit`."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from pytracer.commands import shared_options as shared
from pytracer.commands.json_output import JsonOutput, json_options
from pytracer.commands.parallel import signals_interrupt
from pytracer.commands.show_answer import echo_answer
from pytracer.fitting import fit
from pytracer.fitting.results import DOES_NOT_FIT, UNKNOWN
from pytracer.fitting.scaling import parsed_scale
from pytracer.fitting.sizes import parsed_target
from pytracer.text import parsed_size, printable


@click.command("fit")
@click.argument("paths", metavar="FILE[@NAME=SIZE,...]...", nargs=-1, required=True)
@click.option(
    "--at",
    metavar="NAME=SIZE,...",
    required=True,
    callback=shared.parsed_by(parsed_target),
    help="The sizes to predict, such as batch=16,length=4096. batch=8..32 are all sizes from 8 to "
    "32, batch=8..32..8 every eighth; the last is the target.",
)
@click.option(
    "--device-memory",
    "device_memory_bytes",
    metavar="SIZE",
    callback=shared.parsed_by(parsed_size),
    help="The memory of the device of the next run, such as 80GiB.  [default: that of the recorded "
    "device]",
)
@shared.settings_option()
@click.option(
    "--scale",
    metavar="CATEGORY=FACTOR,...",
    multiple=True,
    callback=shared.parsed_by(parsed_scale),
    help="Estimate a changed program: optimizer_state=0.25 for 8-bit states of Adam, and "
    "parameter=1/8,gradient=1/8,optimizer_state=1/8 for shards of 8 ranks. The categories are "
    "those of `pytracer show --by category`.",
)
@shared.simulated_device_option
@shared.plot_option("the peaks over the range of one size")
@json_options
@click.pass_context
def command(
    context: click.Context,
    paths: tuple[str, ...],
    at: dict[str, Sequence[int]],
    device_memory_bytes: int | None,
    settings: tuple[str, ...],
    scale: dict[str, float],
    device: int | None,
    plot_path: Path | None,
    json_output: JsonOutput,
) -> None:
    """Will the next run fit?

    \b
    PYTRACER_METADATA=batch=2 pytracer run -o 2.pickle train.py --batch 2
    PYTRACER_METADATA=batch=4 pytracer run -o 4.pickle train.py --batch 4
    pytracer fit 2.pickle 4.pickle --at batch=16 --device-memory 80GiB

    Predicts the peaks of the program at other sizes of its data from recordings at small sizes: how
    each request grows, and how the allocator would serve all of them. Recordings that do not name
    their sizes are given as FILE@batch=2. Directories are of all ranks of a run: the answer is of
    the rank that needs most. Needs neither torch nor a device.

    The exit code is 0 if the run fits or the memory of the device is unknown, 4 if it does not fit,
    and 3 if the bounds do not decide. It is 1 if a recording cannot be read.
    """
    console = Console(stderr=True, highlight=False)
    with signals_interrupt(), console.status("Reading the recordings") as status:
        found = fit(
            *paths,
            at=at,
            device_memory_bytes=device_memory_bytes,
            settings=settings,
            scale=scale,
            device=device,
            on_progress=lambda text: status.update(printable(text)),
        )
    if plot_path is not None:
        from pytracer.commands.plots import plot_range

        plot_range(found, plot_path)
    if not json_output.is_only:
        echo_answer(found.answer)
    json_output.write(vars(found))
    context.exit(_EXIT_CODES.get(found.kind, 0))


_EXIT_CODES = {UNKNOWN: 3, DOES_NOT_FIT: 4}
