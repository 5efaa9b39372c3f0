"""The command `pytracer frag`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from pytracer.analysis.advice import Suggestion
from pytracer.analysis.explanation import explain
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.pinned_segments import Fragmentation, Pin, fragmentation
from pytracer.commands.parallel import find_files, in_parallel, print_errors
from pytracer.commands.shared_options import (
    device_option,
    files_argument,
    json_options,
    memory_option,
    moment_option,
    top_option,
)
from pytracer.commands.table import call_site, new_table
from pytracer.errors import PytracerError
from pytracer.reading.reader import load
from pytracer.simulator.trials import try_settings
from pytracer.text import number, printable, size, size_range


@click.command("frag")
@files_argument
@moment_option
@device_option
@top_option("rows")
@json_options
@memory_option
@click.pass_context
def frag_command(
    context: click.Context,
    paths: tuple[Path, ...],
    moment: str | None,
    device: int | None,
    top: int,
    as_json: bool,
    json_path: str | None,
    memory_bytes: int | None,
) -> None:
    """What keeps free memory from being given back?

    \b
    pytracer frag snapshot.pickle
    pytracer frag snapshot.pickle --at peak
    pytracer frag outputs/profile

    Prints the free memory inside segments, and the call sites whose blocks keep it there: the
    allocator gives a segment, or a page of an expandable segment, back only if all of it is free.
    Of several files, or a directory of them, the one with the most such memory comes first.
    """
    found, errors = find_files(paths)
    read = partial(_read, device=device, moment=moment)
    results = errors + in_parallel(read, found, "Reading snapshots", memory_bytes)
    files = [result for result in results if not isinstance(result, PytracerError)]
    files.sort(key=lambda file: -max(device.stuck_bytes for device in file.devices))
    if as_json or json_path is not None:
        from pytracer.commands.json_output import write_results

        write_results(
            {"files": [file.devices for file in files]}, results, to_stdout=as_json, path=json_path
        )
    if not as_json:
        console = Console(highlight=False)
        shown = ((device, file.advice) for file in files for device in file.devices)
        for index, (fragmented, advice) in enumerate(shown):
            if index:
                console.print()
            if len(found) > 1:
                console.print(Text(printable(fragmented.path)), soft_wrap=True)
            _show(console, fragmented, advice.get(fragmented.device), top)
    if print_errors(results):
        context.exit(1)


@dataclass(frozen=True)
class _File:
    """The devices of a file, and by device what `pytracer explain` advises first."""

    devices: list[Fragmentation]
    advice: dict[int, Suggestion]


def _read(path: Path, device: int | None, moment: str | None) -> _File:
    snapshot = load(path)
    devices = fragmentation(snapshot, device, moment)
    explanations = explain(snapshot, device, try_settings)
    return _File(
        devices, {one.device: one.suggestions[0] for one in explanations if one.suggestions}
    )


def _show(console: Console, fragmented: Fragmentation, advice: Suggestion | None, top: int) -> None:
    console.print(Text(printable(_answer(fragmented)), "bold"))
    if fragmented.pins and (sentence := _sentence(fragmented.pins[0])):
        console.print(Text(printable(sentence), "bold"))
    if not fragmented.is_exact:
        console.print("The sizes of some blocks are unknown, so free bytes are upper bounds.")
    if fragmented.pins and top:
        console.print()
        console.print(_table(fragmented.pins, top))
    if fragmented.stuck_bytes and advice is not None:
        console.print()
        console.print("What to try:")
        console.print(Text(printable(f"  {advice.text()}"), "bold"), soft_wrap=True)


def _answer(fragmented: Fragmentation) -> str:
    return (
        f"{fragmented.name} {fragmented.moment}: of {size(fragmented.reserved_bytes)} reserved, "
        f"{size(fragmented.active_bytes)} are in use, {size(fragmented.stuck_bytes)} are free next "
        f"to blocks in use, and {size(fragmented.returnable_bytes)} can be given back to the "
        f"device. The largest free block has {size(fragmented.largest_free_bytes)}."
    )


def _sentence(pin: Pin) -> str:
    """Describe the segments that pin most, as in "108 segments of 80 MiB, each with 1 block"."""
    unit = "page" if pin.is_expandable else "segment"
    each = "" if pin.segments == 1 else " each"
    sizes = size_range(pin.least_segment_bytes, pin.most_segment_bytes)
    return (
        f"{call_site_text(pin.call_site)} pins most: {number(pin.segments, unit)} of {sizes}"
        f"{each}, with {number(pin.blocks, 'block')} of {size(pin.block_bytes)} and "
        f"{size(pin.stuck_bytes)} free in all."
    )


def _table(pins: list[Pin], top: int) -> object:
    streams, pools = ({getattr(pin, name) for pin in pins} for name in ("stream", "pool"))
    has_streams, has_pools = len(streams) > 1, pools != {(0, 0)}
    table = new_table(
        "free",
        "in use",
        "blocks",
        "segments",
        "of",
        *(("stream",) if has_streams else ()),
        *(("pool",) if has_pools else ()),
        "pinned by",
        title="Free memory next to blocks in use",
        text=-1,
    )
    for pin in pins[:top]:
        kind = f"{pin.kind} page" if pin.is_expandable else pin.kind
        table.add_row(
            size(pin.stuck_bytes),
            size(pin.block_bytes),
            f"{pin.blocks:,}",
            f"{pin.segments:,} {kind}",
            size_range(pin.least_segment_bytes, pin.most_segment_bytes),
            *((f"{pin.stream:#x}",) if has_streams else ()),
            *((f"{pin.pool[0]}.{pin.pool[1]}",) if has_pools else ()),
            call_site(pin.call_site),
        )
    if others := pins[top:]:
        table.add_row(
            size(sum(pin.stuck_bytes for pin in others)),
            size(sum(pin.block_bytes for pin in others)),
            f"{sum(pin.blocks for pin in others):,}",
            f"{sum(pin.segments for pin in others):,}",
            "",
            *([""] * (has_streams + has_pools)),
            f"({number(len(others), 'other row')})",
        )
    return table
