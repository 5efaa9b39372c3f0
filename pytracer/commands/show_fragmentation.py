"""`pytracer show --fragmentation`: the free memory inside segments, and what keeps it there."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.pinned_segments import Fragmentation, Pin
from pytracer.commands.table import (
    Columns,
    Fitted,
    Part,
    Summed,
    bold,
    call_chain,
    line,
    make_table,
)
from pytracer.text import number, size, size_range


def parts(files: Sequence[Sequence[Fragmentation]], top: int) -> Iterator[Part]:
    """Yield what keeps free memory from being given back; the most such memory first."""
    in_order = sorted(files, key=lambda devices: -max(device.stuck_bytes for device in devices))
    for index, fragmented in enumerate(device for devices in in_order for device in devices):
        if index:
            yield ""
        if len(files) > 1:
            yield line(fragmented.path)
        yield from of_device(fragmented, top)


def of_device(fragmented: Fragmentation, top: int) -> Iterator[Part]:
    """Yield the free memory of one device, and what keeps it there."""
    yield bold(
        f"{fragmented.name} {fragmented.moment}: of {size(fragmented.reserved_bytes)} reserved, "
        f"{size(fragmented.active_bytes)} are in use, {size(fragmented.stuck_bytes)} are free next "
        f"to blocks in use, and {size(fragmented.returnable_bytes)} can be given back to the "
        f"device. The largest free block has {size(fragmented.largest_free_bytes)}."
    )
    if fragmented.pins:
        yield bold(_sentence(fragmented.pins[0]))
    if not fragmented.is_exact:
        yield "The sizes of some blocks are unknown, so free bytes are upper bounds."
    if fragmented.pins and top:
        yield ""
        yield _table(fragmented.pins, top)


def _sentence(pin: Pin) -> str:
    """Describe the segments that keep most, as in "108 segments of 80 MiB, each with 1 block"."""
    unit = "page" if pin.is_expandable else "segment"
    each = "" if pin.segments == 1 else " each"
    sizes = size_range(pin.least_segment_bytes, pin.most_segment_bytes)
    return (
        f"{call_site_text(pin.call_site)} keeps the most: {number(pin.segments, unit)} of "
        f"{sizes}{each}, with {number(pin.blocks, 'block')} of {size(pin.block_bytes)}, and "
        f"{size(pin.stuck_bytes)} free in total."
    )


def _table(pins: list[Pin], top: int) -> Table:
    has_streams = len({pin.stream for pin in pins}) > 1
    has_pools = {pin.pool for pin in pins} != {(0, 0)}

    def kept_by(pin: Pin) -> Fitted:
        stream = [f"stream {pin.stream:#x}"] if has_streams else []
        pool = [f"pool {pin.pool[0]}.{pin.pool[1]}"] if has_pools else []
        return call_chain(pin.call_site, (), *stream, *pool)

    columns: Columns = {
        "free": "stuck_bytes",
        "in use": "block_bytes",
        "blocks": "blocks",
        "segments": Summed(
            lambda pin: (
                f"{pin.segments:,} {pin.kind}{' page' if pin.is_expandable else ''}".rstrip()
            )
        ),
        "of": lambda pin: size_range(pin.least_segment_bytes, pin.most_segment_bytes),
        "kept by": kept_by,
    }
    title = "Free memory next to blocks in use"
    return make_table(pins, columns, title=title, text=-1, top=top, others="other row")
