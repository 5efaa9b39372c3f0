"""`pytracer show --by` and `--at`: who holds memory at one moment."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from pytracer.analysis.alike import alike_names, alike_runs
from pytracer.analysis.groups import Group, Held, who_holds
from pytracer.commands.show_tables import HeldRow, held_table
from pytracer.commands.table import Fitted, call_chain
from pytracer.export.texts import check_stack_texts
from pytracer.reading.snapshot import Snapshot
from pytracer.text import printable, size, size_range


def held(snapshot: Snapshot, **question: Any) -> list[Held]:
    """Return who holds memory at a moment, as `who_holds` is asked.

    Raises:
        PytracerError: The file has no such device or moment, or too long stacks.
    """
    check_stack_texts(snapshot)
    return who_holds(snapshot, **question)


def show(files: Sequence[Sequence[Held]], top: int) -> None:
    """Print the groups of each device of each file, at most `top` of each."""
    console = Console(highlight=False)
    for devices in filter(None, files):
        console.print(Text(printable(devices[0].path)), soft_wrap=True)
        for device in devices:
            bound = "" if device.is_exact else "at least "
            line = f"{device.name} {device.moment}: {bound}{size(device.active_bytes)} in use"
            if device.moment.event is not None:
                line += f" (event {device.moment.event:,})"
            console.print()
            console.print(Text(printable(f"{line}."), "bold"))
            if device.groups and top:
                console.print(held_table(_rows(device), "", top, key=device.by, noun=""))


def _rows(held: Held) -> list[HeldRow]:
    """Return a row for each group; modules that are alike, and steps, have one together."""
    known: list[Group] = []
    alike: list[tuple[str, list[int]]] = []
    others = held.groups
    if held.by == "step":
        known = sorted(
            (each for each in others if each.step is not None), key=lambda g: g.step or 0
        )
        for run in alike_runs([(each.step or 0, each.size_bytes) for each in known]):
            alike.append((f"{known[run[0]].step} to {known[run[-1]].step}", run))
        others = [group for group in others if group.step is None]
    elif held.by == "module":
        known = [group for group in others if group.module is not None]
        alike = alike_names([(group.module or "", group.size_bytes) for group in known])
        others = [group for group in others if group.module is None]
    rows = [_row(held.by, [known[i] for i in same], name) for name, same in alike]
    rows += [_row(held.by, [group], "") for group in others]
    return sorted(rows, key=lambda row: -row.size_bytes)


def _row(by: str, groups: Sequence[Group], name: str) -> HeldRow:
    """Return the row of a group, or of several that are alike and have a name together."""
    sizes = [group.size_bytes for group in groups]
    shown = _name(by, groups[0])
    if len(groups) > 1:
        each = size_range(min(sizes), max(sizes))
        shown = f"{printable(name)} ({len(groups)} \N{MULTIPLICATION SIGN}, {each} each)"
    requested = sum(group.requested_bytes for group in groups)
    return HeldRow(sum(sizes), requested, sum(group.count for group in groups), shown)


def _name(by: str, group: Group) -> str | Fitted:
    if by == "phase":
        return "(unknown)" if group.phase is None else printable(group.phase) or "(none)"
    if by in ("category", "owner"):
        category = printable((group.category or "").replace("_", " "))
        if by == "category":
            return category
        return f"({category})" if group.owner is None else printable(group.owner)
    if by == "holder":
        return "(not known)" if group.holder is None else printable(group.holder)
    if by == "module":
        return "(none)" if group.module is None else printable(group.module)
    if by == "pool":
        return "(unknown)" if group.pool is None else f"{group.pool[0]}.{group.pool[1]}"
    if by in ("step", "age", "stream"):
        value: int | None = getattr(group, by)
        return "(unknown)" if value is None else f"{value:#x}" if by == "stream" else str(value)
    if not group.frames:
        return "(none)" if by == "caller" else "(unknown)"
    return call_chain(group.frames[0], group.frames[1:])
