"""`pytracer show --by` and `--at`: who holds memory at one moment."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from pytracer.analysis.alike import alike_names, alike_runs
from pytracer.analysis.groups import Group, Held, who_holds
from pytracer.commands.show_tables import HeldRow, held_table
from pytracer.commands.table import Fitted, call_chain
from pytracer.export.texts import check_stack_texts
from pytracer.reading.reader import load
from pytracer.text import printable, size, size_range


def read(path: Path, **question: Any) -> list[Held]:
    """Return who holds memory at a moment, for each device of a file, as `who_holds` is asked.

    Raises:
        PytracerError: The file cannot be read, or it has no such device or moment.
    """
    snapshot = load(path)
    check_stack_texts(snapshot)
    return who_holds(snapshot, **question)


def show(files: Sequence[Sequence[Held]], top: int) -> None:
    """Print the groups of each device of each file, at most `top` of each."""
    console = Console(highlight=False)
    for devices in filter(None, files):
        console.print(Text(printable(devices[0].path)), soft_wrap=True)
        for held in devices:
            bound = "" if held.is_exact else "at least "
            line = f"{held.name} {held.moment}: {bound}{size(held.active_bytes)} in use"
            if held.moment.event is not None:
                line += f" (event {held.moment.event:,})"
            console.print()
            console.print(Text(printable(f"{line}."), "bold"))
            if held.groups and top:
                console.print(held_table(_rows(held), "", top, key=held.by, noun=""))


def _rows(held: Held) -> list[HeldRow]:
    """Return a row for each group; modules that are alike, and steps, have one together."""
    groups = sorted(held.groups, key=lambda group: group.step or 0)
    steps = [(group.step, group.size_bytes) for group in groups if group.step is not None]
    modules = [(group.module, group.size_bytes) for group in groups if group.module is not None]
    rows = []
    if held.by == "step" and steps:
        known = [group for group in groups if group.step is not None]
        for run in alike_runs(steps):
            name = f"{steps[run[0]][0]} to {steps[run[-1]][0]}" if len(run) > 1 else None
            rows.append(_row(held, [known[i] for i in run], name))
        groups = [group for group in groups if group.step is None]
    elif held.by == "module":
        known = [group for group in groups if group.module is not None]
        for pattern, same in alike_names(modules):
            rows.append(_row(held, [known[i] for i in same], pattern if len(same) > 1 else None))
        groups = [group for group in groups if group.module is None]
    rows += [_row(held, [group], None) for group in groups]
    return sorted(rows, key=lambda row: -row.size_bytes)


def _row(held: Held, groups: Sequence[Group], name: str | None) -> HeldRow:
    """Return the row of a group, or of several that are alike and have a name together."""
    sizes = [group.size_bytes for group in groups]
    shown = _name(held.by, groups[0])
    if name is not None:
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
