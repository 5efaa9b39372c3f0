"""The command `pytracer live`."""

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.live import Live
from rich.table import Table

from pytracer.boxes.live_boxes import LiveDevice, live_devices
from pytracer.boxes.restoring import snapshot_of_live
from pytracer.commands.json_output import JsonOutput, json_options
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


@dataclass(frozen=True)
class _Row(LiveDevice):
    growth_bytes: int | None
    events_per_s: int | None


class _Watched:
    """What was seen of each device since the command began."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, str], LiveDevice] = {}
        self._peaks: dict[tuple[int, str], int] = {}
        self._before: dict[tuple[int, str], tuple[float, int]] = {}

    def rows(self, devices: list[LiveDevice]) -> list[_Row]:
        return [self._row(device) for device in devices]

    def _row(self, device: LiveDevice) -> _Row:
        key, now = (device.pid, device.device), time.monotonic()
        first = self._first.setdefault(key, device)
        peak = self._peaks[key] = max(self._peaks.get(key, 0), device.peak_bytes)
        steps = device.step - first.step
        growth = (device.allocated_bytes - first.allocated_bytes) // steps if steps > 0 else None
        rate = None
        if key in self._before:
            at, recorded = self._before[key]
            rate = round((device.recorded - recorded) / max(now - at, 1e-3))
        self._before[key] = now, device.recorded
        known = {**asdict(device), "peak_bytes": peak}
        return _Row(**known, growth_bytes=growth, events_per_s=rate)


def _parsed(text: str) -> int | Path:
    if text.isdecimal():
        return int(text)
    if not os.path.isdir(text):
        raise click.BadParameter(f"{text} is neither a process nor a directory")
    return Path(text)


@click.command("live")
@click.argument("wanted", metavar="[PID|DIRECTORY]...", type=_parsed, nargs=-1)
@click.option("--once", is_flag=True, help="Print what is so now, and end.")
@click.option("--dump", is_flag=True, help="Write a snapshot of each process, from outside.")
@json_options
def command(
    wanted: tuple[int | Path, ...], once: bool, dump: bool, json_output: JsonOutput
) -> None:
    """What do recorded processes on this machine do now?

    \b
    pytracer live
    pytracer live outputs/profile
    pytracer live --dump 4711

    Shows this user's processes that a tracer with an output records, or those of them that have it
    in a DIRECTORY: their memory, its peak as far back as they have events, how much it has grown
    for each step since the command began, and their events. The processes do nothing for it, so one
    that hangs is shown, too. Control-C ends the command.
    """
    devices = live_devices(wanted)
    if not devices:
        raise PytracerError(
            "no process is recorded: only those that record into an output, and that have used a "
            "device, are found"
        )
    if dump:
        folders = [each for each in wanted if isinstance(each, Path)]
        for box in dict.fromkeys(device.box for device in devices):
            path = snapshot_of_live(Path(box), folders)
            if path is not None:
                click.echo(f"wrote {printable(str(path))}")
        return
    watched = _Watched()
    if json_output.is_asked:
        json_output.write({"devices": devices})
    if once or json_output.is_only:
        if not json_output.is_only:
            echo([make_table(watched.rows(devices), _COLUMNS)])
        return
    with Live(_table(watched.rows(devices)), auto_refresh=False) as shown:
        while devices:
            time.sleep(_PERIOD_S)
            devices = live_devices(wanted)
            shown.update(_table(watched.rows(devices)), refresh=True)


def _table(rows: list[_Row]) -> Table:
    return make_table(rows, {**_COLUMNS, **_SINCE})
