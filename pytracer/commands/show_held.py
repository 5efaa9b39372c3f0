"""`pytracer show --by` and `--at`: who holds memory at one moment."""

from collections.abc import Iterator, Sequence
from typing import Any

from pytracer.analysis.alike_rows import alike_names, alike_runs
from pytracer.analysis.groups import Group, Held, who_holds
from pytracer.commands.show_tables import held_table
from pytracer.commands.table import Fitted, Part, Total, bold, call_chain, line
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


def parts(files: Sequence[Sequence[Held]], top: int) -> Iterator[Part]:
    """Yield the groups of each device of each file, at most `top` of each."""
    for devices in filter(None, files):
        yield line(devices[0].path)
        for device in devices:
            bound = "" if device.is_exact else "at least "
            text = f"{device.name} {device.moment}: {bound}{size(device.active_bytes)} in use"
            if device.moment.event is not None:
                text += f" (event {device.moment.event:,})"
            yield ""
            yield bold(f"{text}.")
            if device.groups and top:
                yield held_table(_rows(device), "", top, key=device.by)


def _rows(held: Held) -> list[Total]:
    """Return a row for each group; modules that are alike, and steps, have one together."""
    by, alike, known = held.by, list[tuple[str, list[int]]](), list[Group]()
    if by in ("step", "module"):
        known = [group for group in held.groups if getattr(group, by) is not None]
    if by == "step":
        known.sort(key=lambda group: group.step or 0)
        for run in alike_runs([(group.step or 0, group.size_bytes) for group in known]):
            alike.append((f"{known[run[0]].step} to {known[run[-1]].step}", run))
    elif by == "module":
        alike = alike_names([(group.module or "", group.size_bytes) for group in known])
    rows = [_row(by, [known[i] for i in same], name) for name, same in alike]
    others = (group for group in held.groups if not known or getattr(group, by) is None)
    rows += [_row(by, [group], "") for group in others]
    return sorted(rows, key=lambda row: -row.size_bytes)


def _row(by: str, groups: Sequence[Group], name: str) -> Total:
    if len(groups) == 1:
        return Total(groups, _name(by, groups[0]))
    sizes = [group.size_bytes for group in groups]
    each = f"{len(groups)} \N{MULTIPLICATION SIGN}, {size_range(min(sizes), max(sizes))} each"
    return Total(groups, f"{name} ({each})")


def _name(by: str, group: Group) -> str | Fitted:
    if by in ("line", "caller", "stack"):
        if not group.frames:
            return "(none)" if by == "caller" else "(unknown)"
        return call_chain(group.frames[0], group.frames[1:])
    category = (group.category or "").replace("_", " ")
    if by == "category":
        return category
    value: Any = getattr(group, by)
    if value is None:
        missing = {"owner": f"({category})", "holder": "(not known)", "module": "(none)"}
        return missing.get(by, "(unknown)")
    if by == "pool":
        return f"{value[0]}.{value[1]}"
    return f"{value:#x}" if by == "stream" else printable(str(value)) or "(none)"
