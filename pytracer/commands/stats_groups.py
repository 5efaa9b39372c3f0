"""The tables of `pytracer stats --at` and `--by`: who holds memory at one moment."""

from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytracer.analysis.groups import Group, Held, who_holds
from pytracer.commands.json_output import write_results
from pytracer.commands.parallel import find_files, in_parallel, print_errors
from pytracer.commands.table import Fitted, call_chain, new_table
from pytracer.errors import PytracerError
from pytracer.export.texts import check_stack_texts
from pytracer.reading.reader import load
from pytracer.text import number, printable, size


def held_in_file(
    path: Path, *, device: int | None, at: str | None, by: str, depth: int
) -> list[Held]:
    """Read a file and return who holds memory at a moment.

    Raises:
        PytracerError: The file cannot be read, or it has no such device or moment.
    """
    snapshot = load(path)
    check_stack_texts(snapshot)
    return who_holds(snapshot, device, at=at, by=by, depth=depth)


def show_held(
    paths: Iterable[Path],
    read: Callable[[Path], list[Held]],
    top: int,
    as_json: bool,
    json_path: str | None,
    memory_bytes: int | None,
) -> bool:
    """Print the groups of each device of each file, as tables or JSON.

    Args:
        paths: Files, and directories of them.
        read: `held_in_file` with its arguments.
        top: How many groups to print; JSON has all.
        as_json, json_path, memory_bytes: The options of the command.

    Returns:
        Whether all files could be read.
    """
    found, errors = find_files(paths)
    results = errors + in_parallel(read, found, "Reading snapshots", memory_bytes)
    files = [devices for devices in results if not isinstance(devices, PytracerError)]
    if as_json or json_path is not None:
        write_results({"files": files}, results, to_stdout=as_json, path=json_path)
    if not as_json:
        console = Console(highlight=False)
        for devices in filter(None, files):
            console.print(Text(printable(devices[0].path)), soft_wrap=True)
            for held in devices:
                _show(console, held, top)
    return not print_errors(results)


def _show(console: Console, held: Held, top: int) -> None:
    bound = "" if held.is_exact else "at least "
    line = f"{held.name} {held.moment}: {bound}{size(held.active_bytes)} in use"
    if held.moment.event is not None:
        line += f" (event {held.moment.event:,})"
    console.print()
    console.print(Text(printable(f"{line}."), "bold"))
    if held.groups and top:
        console.print(_table(held, top))


def _table(held: Held, top: int) -> Table:
    table = new_table("bytes", "share", "blocks", held.by, text=-1)

    def row(groups: list[Group], name: str | Fitted) -> None:
        total = sum(group.size_bytes for group in groups)
        share = total / held.active_bytes if held.active_bytes else 0.0
        count = sum(group.count for group in groups)
        cell = Text(name) if isinstance(name, str) else name
        table.add_row(size(total), f"{share:.0%}", f"{count:,}", cell)

    for group in held.groups[:top]:
        row([group], _name(held.by, group))
    if others := held.groups[top:]:
        row(others, f"({number(len(others), 'other')})")
    return table


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
    if by in ("step", "age"):
        value = group.step if by == "step" else group.age
        return "(unknown)" if value is None else str(value)
    if not group.frames:
        return "(none)" if by == "caller" else "(unknown)"
    return call_chain(group.frames[0], group.frames[1:])
