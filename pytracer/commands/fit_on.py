"""`pytracer fit --on DEVICE`: run the program on simulated devices, at several sizes."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from pytracer.commands import dry_run_options
from pytracer.commands.json_output import print_json
from pytracer.commands.parallel import progress_bar, signals_interrupt
from pytracer.commands.show_answer import echo_answer
from pytracer.commands.table import add_row, echo, new_table
from pytracer.fitting.largest import Largest, filled_in, largest
from pytracer.fitting.sizes import sizes_text, targets_of
from pytracer.rehearsal.dry_run import dry_run
from pytracer.rehearsal.results import DryRun
from pytracer.text import printable, size


def fit_on(
    devices: Sequence[str],
    command: Sequence[str],
    at: Mapping[str, Sequence[int]],
    variable: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Run a program on simulated devices, print what fits, and return the exit code."""
    if not (at or variable):
        raise click.UsageError("--on needs the sizes: --largest batch, or --at batch=16")
    if variable is not None and variable in at:
        raise click.UsageError(f"--largest {variable} and --at {variable}= contradict each other")
    targets = targets_of(at) if at else [{}]
    if variable is not None and len(targets) > 1:
        raise click.UsageError("with --largest, --at takes single sizes, no ranges")
    filled_in(command, {**targets[0], **({variable: 1} if variable else {})})
    click.echo(dry_run_options.WARNING, err=True)
    with signals_interrupt(), progress_bar() as bar:
        task = bar.add_task("Dry run", total=None)

        def note(device: str, sizes: Mapping[str, int], run: DryRun) -> None:
            text = printable(f"{device} {sizes_text(dict(sizes))}: {run.answer.verdict}")
            bar.update(task, advance=1, description=text)
            if not bar.console.is_terminal:
                bar.console.print(Text(f"{text}, {run.seconds:.0f} s"), soft_wrap=True)

        def found_by(device: str, sizes: Mapping[str, int]) -> DryRun | Largest:
            on_run, given = partial(note, device), {**options, "device": device}
            if variable is not None:
                return largest(command, variable, sizes=sizes, on_run=on_run, **given)
            run = dry_run(filled_in(command, sizes), **given)
            on_run(sizes, run)
            return run

        found = {(name, sizes_text(s)): found_by(name, s) for name in devices for s in targets}
    last = [*found.values()][-1]
    if as_json:
        print_json({"results": [vars(each) for each in found.values()]})
    else:
        if len(found) > 1:
            echo([_table(found)])
        echo_answer(last.answer)
    return 0 if all(each.fits for each in found.values()) else dry_run_options.DOES_NOT_FIT


def _table(found: Mapping[tuple[str, str], DryRun | Largest]) -> Table:
    table = new_table(["device", "size", "allocated", "reserved", "of"], text=1)
    for (device, text), each in found.items():
        run = each.run if isinstance(each, Largest) else each
        if isinstance(each, Largest):
            text = f"at most {each.variable}={each.value:,}" if each.fits else "none"
        peaks = [size(run.peak_allocated_bytes), size(run.peak_reserved_bytes)]
        peaks = peaks if run.fits else ["does not fit", "-"]
        add_row(table, device, text, *peaks, size(run.device_bytes))
    return table
