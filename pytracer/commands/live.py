"""The command `pytracer live`."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
from rich.live import Live

from pytracer.boxes.live_boxes import LiveDevice, live_devices
from pytracer.boxes.restoring import snapshot_of_live
from pytracer.commands.json_output import json_option, print_json
from pytracer.commands.table import Columns, echo, make_table
from pytracer.errors import PytracerError
from pytracer.text import printable

_PERIOD_S = 1.0

_COLUMNS: Columns = {
    "rank": "rank",
    "pid": lambda row: str(row.pid),
    "device": "device",
    "step": "step",
    "allocated": "allocated_bytes",
    "peak": "peak_bytes",
    "reserved": "reserved_bytes",
}
_SINCE: Columns = {"a step": "growth_bytes", "events/s": "events_per_s"}


_Seen = dict[tuple[int, str], tuple[LiveDevice, LiveDevice, float, int]]
"""What was seen of each device since the command began: as it was first, as it was last and when,
and the highest peak."""


def _rows(devices: list[LiveDevice], seen: _Seen) -> Iterator[SimpleNamespace]:
    for device in devices:
        key, now = (device.pid, device.device), time.monotonic()
        first, before, at, peak = seen.get(key, (device, device, now, 0))
        seen[key] = first, device, now, max(peak, device.peak_bytes)
        steps, grown = device.step - first.step, device.allocated_bytes - first.allocated_bytes
        rate = (device.recorded - before.recorded) / max(now - at, 1e-3)
        watched = {
            "peak_bytes": seen[key][-1],
            "growth_bytes": grown // steps if steps > 0 else None,
            "events_per_s": None if before is device else round(rate),
        }
        yield SimpleNamespace(**{**vars(device), **watched})


def _parsed(text: str) -> int | Path:
    if text.isdecimal():
        return int(text)
    if not os.path.isdir(text):
        raise click.BadParameter(f"{text} is neither a process nor a directory")
    return Path(text)


@click.command("live")
@click.argument("wanted", metavar="[PID|DIRECTORY]...", type=_parsed, nargs=-1)
@click.option("--once", is_flag=True, help="Print the current state, and exit.")
@click.option("--dump", is_flag=True, help="Write a snapshot of each process, from outside.")
@json_option
def command(wanted: tuple[int | Path, ...], once: bool, dump: bool, as_json: bool) -> None:
    """What are the recorded processes on this machine doing now?

    \b
    pytracer live
    pytracer live outputs/profile
    pytracer live --dump 4711

    Shows this user's recorded processes, or those with an output in DIRECTORY: their memory, its
    peak in the ring, and its growth for each step since the command began. The tracer needs an
    output. A process that hangs is shown, too.
    """
    devices = live_devices(wanted)
    if not devices:
        raise PytracerError(
            "no recorded process found: a process must have an output set, and have used a device"
        )
    if dump:
        folders = [each for each in wanted if isinstance(each, Path)]
        for box in dict.fromkeys(device.box for device in devices):
            path = snapshot_of_live(Path(box), folders)
            if path is not None:
                click.echo(f"wrote {printable(str(path))}")
        return
    seen: _Seen = {}
    if as_json:
        print_json({"devices": devices})
        return
    if once:
        echo([make_table(_rows(devices, seen), _COLUMNS)])
        return
    columns = {**_COLUMNS, **_SINCE}
    with Live(make_table(_rows(devices, seen), columns), auto_refresh=False) as shown:
        while devices:
            time.sleep(_PERIOD_S)
            devices = live_devices(wanted)
            shown.update(make_table(_rows(devices, seen), columns), refresh=True)
