"""The command `pytracer recommend`."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from pytracer.commands import shared_options as shared
from pytracer.commands.json_output import json_option, print_json
from pytracer.commands.parallel import signals_interrupt
from pytracer.commands.table import Columns, Part, echo, line, make_table
from pytracer.experiments.conclusions import wrapped_name
from pytracer.recommendation import Recommendation, TriedSetting, recommend_sweep
from pytracer.simulator.deviation import deviation_text
from pytracer.text import parsed_size, printable, size

ROWS = 6  # the most settings in the table; JSON has all

SIMPLE = 2  # the most keys of a setting in the table, next to the recommended and the own settings

NAME_WIDTH = 26


@click.command("recommend")
@click.argument("path", metavar="FILE_OR_DIRECTORY", type=shared.source_path)
@click.option(
    "--capacity",
    "capacities",
    metavar="SIZE",
    multiple=True,
    callback=shared.parsed_by(lambda texts: [*dict.fromkeys(map(parsed_size, texts))]),
    help="The memory that the allocator may reserve, such as 80GiB. May be repeated.  [default: "
    "the limit of the recording, if the file has it]",
)
@click.option(
    "--set",
    "settings",
    metavar="SETTINGS",
    multiple=True,
    help="Allocator settings, as NAME:VALUE,NAME:VALUE, to add to the recording's own and compare. "
    "May be repeated.",
)
@shared.simulated_device_option
@json_option
def command(path: Path, capacities: list[int], as_json: bool, **question: Any) -> None:
    """Which allocator settings does this recording need?

    \b
    pytracer recommend snapshot.pickle
    pytracer recommend outputs/profile --capacity 80GiB
    pytracer recommend snapshot.pickle --set expandable_segments:True

    Simulates the recorded requests under many settings of the allocator, or under the given ones,
    and prints one line to paste. Needs neither torch nor a device. In a directory, the rank decides
    that has the least memory to spare.
    """
    console = Console(stderr=True, highlight=False)
    with signals_interrupt(), console.status("Reading the recording") as status:
        question["on_progress"] = lambda text: status.update(printable(text))
        found = recommend_sweep(path, capacities or [None], **question)
    if as_json:
        print_json({"recommendations": found})
        return
    for recommendation in found:
        if recommendation is not found[0]:
            echo([""])
        echo(_parts(recommendation, is_one_of_several=len(found) > 1))


def _parts(found: Recommendation, is_one_of_several: bool) -> Iterator[Part]:
    if is_one_of_several and found.capacity_bytes is not None:
        yield line(f"With {size(found.capacity_bytes)}:", "bold")
    yield line(found.answer, "bold")
    if found.command:
        yield line(f"  {found.command}", "bold")
    if found.why:
        yield line(found.why)
    limit = "" if found.capacity_bytes is None else f", limit {size(found.capacity_bytes)}"
    yield line(f"{found.path}, {found.device}: {found.requests:,} requests{limit}")
    yield line(deviation_text(found.deviation))
    columns: Columns = {
        "setting": lambda row: wrapped_name(
            "own settings" if row.name == found.own.name else printable(row.name), NAME_WIDTH
        ),
        "OOM": lambda row: "no" if row.fits else Text("yes", "bold red"),
        "peak\nreserved": "peak_reserved_bytes",
        "not\nallocated": "waste_bytes",
        "calls": "device_calls",
        "smallest\ndevice": "smallest_device_bytes",
    }
    table = make_table(_rows(found), columns, text=0)
    table.columns[0].min_width = NAME_WIDTH
    yield table
    files_of = Counter(rank.rank for rank in found.ranks)
    for rank in found.ranks:
        # Roles may have equal ranks.
        is_named = rank.rank is not None and files_of[rank.rank] == 1
        who = f"rank {rank.rank}" if is_named else rank.path
        after = ""
        if rank.recommended is not None:
            after = f", recommended: {_outcome(rank.recommended)}"
        elif rank.why_unknown is not None:
            after = f". Can't tell about other settings, because {rank.why_unknown}"
        yield line(f"{who}: own settings: {_outcome(rank.own)}{after}")
    yield from map(line, found.notes)


def _rows(found: Recommendation) -> list[TriedSetting]:
    """Return the recommended settings, the recording's own, and the given or the best others.

    Of the best others that differ in values alone, the best has a row, and settings of more than
    `SIMPLE` keys have none.
    """
    first = [found.own] if found.recommended is None else [found.recommended, found.own]
    if found.settings:
        return [*first, *(tried for tried in found.tried if tried not in first)]
    rows, seen = list(first), {_keys(row) for row in first}
    for tried in found.tried:
        keys = _keys(tried)
        is_new = keys not in seen and tried not in rows
        if len(rows) < ROWS and len(keys) <= SIMPLE and is_new:
            rows.append(tried)
            seen.add(keys)
    return rows


def _keys(tried: TriedSetting) -> tuple[str, ...]:
    return tuple(re.findall(r"(?:^|,)(\w+):", tried.name))


def _outcome(tried: TriedSetting) -> str:
    ending = "" if tried.fits else ", out of memory"
    return f"{size(tried.peak_reserved_bytes)} reserved{ending}"
