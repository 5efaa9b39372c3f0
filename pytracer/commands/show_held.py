"""`pytracer show --by` and `--at`: who holds memory at one moment."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.table import Table

from pytracer.analysis.alike_rows import alike_names, alike_runs
from pytracer.analysis.answer_words import LEAST_SHARE
from pytracer.analysis.groups import Group, Held, who_holds
from pytracer.commands.table import (
    Columns,
    Fitted,
    Part,
    Summed,
    Total,
    bold,
    call_chain,
    line,
    make_table,
)
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
                yield held_table(device, top)


def held_table(
    held: Held, top: int, title: str = "", more: Mapping[Any, Any] = MappingProxyType({})
) -> Table:
    """Make the table of who holds memory, at most `top` rows and one for the others.

    `more` has the callers of call sites, or what follows the names of categories.
    """
    rows, whole = _rows(held, more), held.active_bytes
    is_rounded = any(
        size(row.size_bytes) != size(row.requested_bytes)
        for row in rows
        if row.size_bytes >= LEAST_SHARE * whole
    )
    is_line = bool(title) and held.by == "line"
    columns: Columns = {
        "bytes": "size_bytes",
        **({"requested": "requested_bytes"} if is_rounded else {}),
        "share": Summed(lambda row: f"{row.size_bytes / whole if whole else 0:.0%}"),
        "blocks": "count",
        "call site ← callers" if is_line else held.by: "name",
    }
    others = "other call site" if is_line else "other"
    return make_table(rows, columns, title=title, text=-1, top=top, others=others)


def _rows(held: Held, more: Mapping[Any, Any]) -> list[Total]:
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
    rows = [_row(by, more, [known[i] for i in same], name) for name, same in alike]
    others = (group for group in held.groups if not known or getattr(group, by) is None)
    rows += [_row(by, more, [group], "") for group in others]
    return sorted(rows, key=lambda row: -row.size_bytes)


def _row(by: str, more: Mapping[Any, Any], groups: Sequence[Group], name: str) -> Total:
    if len(groups) == 1:
        return Total(groups, _name(by, more, groups[0]))
    sizes = [group.size_bytes for group in groups]
    each = f"{len(groups)} \N{MULTIPLICATION SIGN}, {size_range(min(sizes), max(sizes))} each"
    return Total(groups, f"{name} ({each})")


def _name(by: str, more: Mapping[Any, Any], group: Group) -> str | Fitted:
    if by in ("line", "caller", "stack"):
        if not group.frames:
            return "(none)" if by == "caller" else "(unknown)"
        site, *callers = group.frames
        return call_chain(site, more.get(site, callers))
    category = (group.category or "").replace("_", " ")
    if by == "category":
        return f"{category}{more.get(group.category, '')}"
    value: Any = getattr(group, by)
    if value is None:
        missing = {"owner": f"({category})", "holder": "(not known)", "module": "(none)"}
        return missing.get(by, "(unknown)")
    if by == "pool":
        return f"{value[0]}.{value[1]}"
    return f"{value:#x}" if by == "stream" else printable(str(value)) or "(none)"
