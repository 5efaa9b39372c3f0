"""Memory that a program need not take: a known change of one line avoids it, and loses nothing."""

import re

from pytracer.analysis.call_sites import first_frames, frames_matching
from pytracer.analysis.held_memory import HeldMemory
from pytracer.analysis.stack_places import MODULE, OUTSIDE, stack_places
from pytracer.reading.snapshot import OOM, Column, Stacks
from pytracer.text import size

LEAST_PART = 0.05
"""The least part of the memory that is worth a sentence."""

_LOADS = re.compile(r".*[/\\](?:torch[/\\]serialization|safetensors[/\\]torch)\.py", re.DOTALL)
_UPDATES_ALL = re.compile(r"_multi_tensor_\w+")
_UNOWNED = {"unknown", "temporary", "activation", "input", "output"}


def avoidable(held: HeldMemory) -> list[str]:
    """Return what to change, as sentences with the bytes that it saves; [] without events."""
    if held.entry is None or not len(held.rows):
        return []
    trace, stacks, event = held.data.trace, held.stacks, held.entry - 1
    now, asked = int(trace.stack[event]), 0
    if trace.action[event] == OOM:
        asked = int(trace.size_bytes[event])
    size_bytes, stack = held.column("size_bytes"), held.column("stack")
    is_unowned = held.is_in(_UNOWNED)
    loads = _have(stacks, frames_matching(_LOADS.fullmatch, stacks, "filename"))
    updates = _have(stacks, frames_matching(_UPDATES_ALL.fullmatch, stacks, "name"))
    step = max((first for _, first in held.data.boundaries if first <= event), default=0)
    is_old = held.is_in({"gradient"}) & (held.column("alloc_event") < step)
    is_forward = stack_places(stacks).place[now] in (MODULE, OUTSIDE)
    found = {
        'Load the checkpoint to the CPU, as by map_location="cpu": on the device, {} of it are '
        "kept next to the model.": size_bytes[is_unowned & loads[stack]].sum() + asked * loads[now],
        "Create the optimizer with fused=True or foreach=False: its update of all parameters at "
        "once takes {} of temporary memory.": size_bytes[is_unowned & updates[stack]].sum()
        + asked * updates[now],
        "Call optimizer.zero_grad(), with its default set_to_none=True, before the forward pass: "
        "{} of gradients of the step before are kept.": is_forward * size_bytes[is_old].sum(),
    }
    least = LEAST_PART * (int(size_bytes.sum()) + asked)
    return [text.format(size(int(saved))) for text, saved in found.items() if saved > least]


def _have(stacks: Stacks, is_wanted: Column) -> Column:
    """Return for each stack whether it has one of the wanted frames: bool."""
    found: Column = first_frames(stacks, is_wanted) < stacks.offsets[1:]
    return found
