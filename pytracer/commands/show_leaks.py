"""`pytracer show --leaks`: what is kept from step to step."""

import shlex
from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from pytracer.analysis.alike_rows import ranges_text
from pytracer.analysis.frame_text import is_users
from pytracer.analysis.holder_names import kept_by_text
from pytracer.analysis.leaks.growth import LEAST_GROWTHS
from pytracer.analysis.leaks.results import (
    DeviceLeaks,
    Growth,
    LeakReport,
    Release,
    answer,
    leaks_of,
    remedy,
    where_text,
)
from pytracer.commands.table import Columns, Fitted, Part, call_chain, line, make_table
from pytracer.text import number, size

_CALLERS = 2  # the number of callers that a table shows below a call site

_VERDICTS = ("leak", "unknown", "none")


def parts(report: LeakReport, top: int) -> Iterator[Part]:
    """Yield the verdict on each process, the first with the same growths in full."""
    groups: dict[str, list[DeviceLeaks]] = {}
    for device in report.devices:
        groups.setdefault(_same(device), []).append(device)
    in_order = sorted(groups.values(), key=lambda same: _VERDICTS.index(same[0].verdict))
    is_only = len(report.devices) == 1
    for devices in in_order:
        largest = max(devices, key=lambda device: device.bytes_per_step)
        who = "" if is_only else f"{_names(devices, report.devices)}: "
        yield line(who + answer(largest), "bold")
    for devices in in_order:
        yield ""
        yield from of_device(devices[0], top, is_only=is_only)
    yield ""
    yield from map(line, _advice(report))


def of_device(device: DeviceLeaks, top: int, *, is_only: bool) -> Iterator[Part]:
    """Yield what was observed on one device, what grew, and what only seemed to."""
    yield line(_observed(device, is_only))
    if device.growths and top:
        yield _growths_table(device, top)
    if device.verdict != "leak" and device.releases and top:
        yield _releases_table(device, top)


def _same(device: DeviceLeaks) -> str:
    """Return a text that is the same for devices of which one answer is given."""
    leaks = leaks_of(device)
    where = where_text(leaks) if leaks else device.reason
    return f"{device.device.partition(':')[0]} {device.verdict} {where}"


def _names(devices: Sequence[DeviceLeaks], among: Sequence[DeviceLeaks]) -> str:
    """Name the processes of an answer by their ranks, or else their devices or processes."""
    ranks = {device.rank for device in among}
    if None not in ranks and len(ranks) == len(among):
        noun = "rank" if len(devices) == 1 else "ranks"
        own = ranges_text(device.rank for device in devices if device.rank is not None)
        if ranks == {*range(len(among))}:
            return f"{noun} {own} of {len(among)}"
        return f"{noun} {own} (of {len(among)} ranks with files)"
    # Roles may have equal ranks.
    is_unique = len({(_process(device), device.device) for device in among}) == len(among)
    if is_unique and len({_process(device) for device in among}) == 1:
        return f"{', '.join(device.device for device in devices)} of {len(among)} devices"
    names = [f"{_process(each) if is_unique else each.path} {each.device}" for each in devices]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} of {number(len(among), 'recording')}"


def _process(device: DeviceLeaks) -> str:
    if device.rank is not None:
        return f"rank {device.rank}"
    return "an unknown process" if device.pid is None else f"pid {device.pid}"


def _observed(device: DeviceLeaks, is_only: bool) -> str:
    who = device.device if is_only else f"{_process(device)}, {device.device}"
    path = device.path if device.files == 1 else f"the final states of {device.files} files"
    if device.begin_bytes is None or device.end_bytes is None:
        return f"{who}: {path}"
    if device.first is not None and device.last is not None:
        at = f"at the ends of steps {device.first} and {device.last}"
    elif device.files == 1:
        at = "at the end of the trace's first and last part"
    else:
        at = "in the first and the last file"
    change = f"{size(device.begin_bytes)} → {size(device.end_bytes)}"
    return f"{who}: {change} allocated {at} ({path})"


def _growths_table(device: DeviceLeaks, top: int) -> Table:
    unit = {"second": "s"}.get(device.unit, device.unit)
    is_mixed = len({growth.verdict for growth in device.growths}) > 1

    def bounds(growth: Growth) -> str:
        bounds = growth.least_bytes_per_step, growth.most_bytes_per_step
        return "\n".join(size(round(bound)) for bound in bounds)

    def since(growth: Growth) -> str:
        if growth.is_older:
            return f"{device.first:,}\nor before" if device.first else "before"
        return "-" if growth.first_step is None else f"{growth.first_step:,}"

    columns: Columns = {
        f"per {unit}": lambda growth: size(round(growth.bytes_per_step)),
        "95% between": bounds,
        "grew in": lambda growth: f"{growth.growths:,} of {device.observed:,}",
        "since": since,
        "held": lambda each: f"{size(each.held_bytes)}\n{number(each.blocks, 'block')}",
        "call site": lambda growth: _site(growth, is_mixed),
    }
    return make_table(device.growths, columns, text=-1, top=top)


def _site(growth: Growth, is_mixed: bool) -> Fitted:
    callers = [frame for frame in growth.frames[1:] if frame.name != "<module>"]
    more = [f"phase {growth.phase}"] if growth.phase else []
    if growth.kept_by:
        more.append(kept_by_text(growth.kept_by))
    if growth.kind == "replaced":
        more.append("(each block is replaced by a larger one)")
    if is_mixed and growth.verdict == "unknown":
        more.append(f"(can't tell: {growth.reason})")
    return call_chain(next(iter(growth.frames), None), callers[:_CALLERS], *more)


def _releases_table(device: DeviceLeaks, top: int) -> Table:
    def site(release: Release) -> Fitted:
        callers = [frame for frame in release.frames[1:] if is_users(frame)]
        return call_chain(next(iter(release.frames), None), callers[:1])

    columns: Columns = {
        "at most": "most_bytes",
        "why it is not a leak": lambda release: Text(release.reason),
        "call site": site,
    }
    title = "Memory that grew for some steps"
    table = make_table(device.releases[:top], columns, title=title, text=-1)
    table.columns[1].justify = "left"
    return table


def _advice(report: LeakReport) -> Iterator[str]:
    verdicts = [device for device in report.devices if device.verdict == report.verdict]
    device = verdicts[0]
    path = shlex.quote(device.path)
    if device.verdict == "leak":
        yield f"What to do: {remedy(leaks_of(device))}. All memory held at the end, by stack:"
        yield f"    pytracer export {path} --to collapsed --at end"
        return
    if device.verdict == "none":
        yield (
            f"A leak that grew in fewer than {LEAST_GROWTHS} of {device.observed:,} "
            f"{device.unit}s would be missed: record more steps to find it."
        )
        return
    is_torchs = device.pid is None  # torch's own recorder does not write it
    if device.unit != "step" or (is_torchs and device.first is None):
        switch = "PYTRACER=1" if is_torchs else "PYTRACER_STEP_FROM=optimizer"
        yield "What to do: record steps. Call tracer.step() in the code, or set:"
        yield f"    export {switch}"
        return
    yield (
        "What to do: record more steps in one file (with a larger trace_alloc_max_entries if the "
        "ring overwrote the first ones), or compare two files of the process:"
    )
    yield "    pytracer diff EARLY.pickle LATE.pickle"
