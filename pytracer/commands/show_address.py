"""`pytracer show --address`: the blocks that had an address."""

from collections.abc import Iterator, Sequence

import click

from pytracer.analysis.addresses import AddressedBlock
from pytracer.analysis.frame_text import shown_callers
from pytracer.commands.table import Columns, Part, bold, call_chain, line, make_table
from pytracer.text import number


def parsed(text: str) -> int:
    """Return the address that a text names, as in "0x7f2a00000000".

    Raises:
        BadParameter: The text is no address.
    """
    try:
        address = int(text, 0)
    except ValueError:
        address = -1
    if not 0 <= address < 2**63:
        raise click.BadParameter(f"{text!r} is no address: give one such as 0x7f2a00000000")
    return address


def parts(files: Sequence[Sequence[AddressedBlock]], top: int) -> Iterator[Part]:
    """Yield the last `top` blocks of each file."""
    if not any(files):
        yield "No block in the recording had this address."
    columns: Columns = {
        "offset": lambda block: f"{block.offset:#x}",
        "bytes": "requested_bytes",
        "allocated": lambda block: _when(block.alloc_event, block.alloc_step, "before"),
        "freed": lambda block: _when(block.free_event, block.free_step, "not"),
        "call site ← callers": lambda block: call_chain(
            block.call_site, shown_callers(block.call_site, block.callers)
        ),
    }
    for blocks in filter(None, files):
        last = blocks[-1]
        state = "is in this block at the end" if last.free_event is None else "is free at the end"
        yield line(last.path)
        yield bold(f"{last.name}: {number(len(blocks), 'block')} had the address, which {state}.")
        if top:
            yield make_table(blocks[-top:], columns, text=-1)


def _when(event: int | None, step: int | None, unknown: str) -> str:
    text = unknown if event is None else f"event {event:,}"
    return text + ("" if step is None else f"\nstep {step}")
