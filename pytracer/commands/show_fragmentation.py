"""`pytracer show --fragmentation`: the free memory inside segments, and what keeps it there."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.pinned_segments import Fragmentation, Pin
from pytracer.commands.table import Columns, Fitted, call_chain, make_table
from pytracer.text import number, printable, size, size_range


def show(files: Sequence[Sequence[Fragmentation]], top: int) -> None:
    """Print what keeps free memory from being given back; the most such memory first."""
    console = Console(highlight=False)
    in_order = sorted(files, key=lambda devices: -max(device.stuck_bytes for device in devices))
    for index, fragmented in enumerate(device for devices in in_order for device in devices):
        if index:
            console.print()
        if len(files) > 1:
            console.print(Text(printable(fragmented.path)), soft_wrap=True)
        show_device(console, fragmented, top)


def show_device(console: Console, fragmented: Fragmentation, top: int) -> None:
    """Print the free memory of one device, and what keeps it there."""
    console.print(Text(printable(_answer(fragmented)), "bold"))
    if fragmented.pins and (sentence := _sentence(fragmented.pins[0])):
        console.print(Text(printable(sentence), "bold"))
    if not fragmented.is_exact:
        console.print("The sizes of some blocks are unknown, so free bytes are upper bounds.")
    if fragmented.pins and top:
        console.print()
        console.print(_table(fragmented.pins, top))


def _answer(fragmented: Fragmentation) -> str:
    return (
        f"{fragmented.name} {fragmented.moment}: of {size(fragmented.reserved_bytes)} reserved, "
        f"{size(fragmented.active_bytes)} are in use, {size(fragmented.stuck_bytes)} are free next "
        f"to blocks in use, and {size(fragmented.returnable_bytes)} can be given back to the "
        f"device. The largest free block has {size(fragmented.largest_free_bytes)}."
    )


def _sentence(pin: Pin) -> str:
    """Describe the segments that keep most, as in "108 segments of 80 MiB, each with 1 block"."""
    unit = "page" if pin.is_expandable else "segment"
    each = "" if pin.segments == 1 else " each"
    sizes = size_range(pin.least_segment_bytes, pin.most_segment_bytes)
    return (
        f"{call_site_text(pin.call_site)} keeps most: {number(pin.segments, unit)} of {sizes}"
        f"{each}, with {number(pin.blocks, 'block')} of {size(pin.block_bytes)} and "
        f"{size(pin.stuck_bytes)} free in all."
    )


def _table(pins: list[Pin], top: int) -> Table:
    streams, pools = ({getattr(pin, name) for pin in pins} for name in ("stream", "pool"))
    has_streams, has_pools = len(streams) > 1, pools != {(0, 0)}

    def kept_by(pin: Pin) -> Fitted:
        stream = [f"stream {pin.stream:#x}"] if has_streams else []
        pool = [f"pool {pin.pool[0]}.{pin.pool[1]}"] if has_pools else []
        return call_chain(pin.call_site, (), *stream, *pool)

    columns: Columns = {
        "free": "stuck_bytes",
        "in use": "block_bytes",
        "blocks": "blocks",
        "segments": lambda p: f"{p.segments:,} {p.kind}{' page' if p.is_expandable else ''}",
        "of": lambda pin: size_range(pin.least_segment_bytes, pin.most_segment_bytes),
        "kept by": kept_by,
    }
    table = make_table(pins[:top], columns, title="Free memory next to blocks in use", text=-1)
    if others := pins[top:]:
        table.add_row(
            size(sum(pin.stuck_bytes for pin in others)),
            size(sum(pin.block_bytes for pin in others)),
            f"{sum(pin.blocks for pin in others):,}",
            f"{sum(pin.segments for pin in others):,}",
            "",
            f"({number(len(others), 'other row')})",
        )
    return table
