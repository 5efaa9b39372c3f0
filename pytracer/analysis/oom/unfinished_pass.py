"""How far a forward pass, or the first step of an optimizer, was when memory ran out.

From that follows what the rest would have needed: an estimate, because layers may differ.
"""

import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytracer.analysis.categories import CategoryUsage
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.ooms import OutOfMemory
from pytracer.analysis.stack_places import OPTIMIZER
from pytracer.reading.snapshot import ALLOC, Column
from pytracer.reading.steps import begin_of_step
from pytracer.text import size

_NUMBER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.)")  # of a layer, in the name of a parameter
_LEAST_STARTED = 3
"""The least number of layers that have begun: two that keep the same show what all keep."""

_ALIKE = 1.1  # the most by which the parameters of one layer are more than those of another
_REST = 1 << 20  # what they may also differ by: a block over 1 MiB may be so much larger

_LEAST_OF_MODEL = 0.5  # the least part of the parameters that the layers have

_LEAST_SAVED = 0.5  # the least part of what the layers keep that nodes of autograd have saved

_DEVIATION = 0.02  # the most by which what one layer keeps is more or less than what another keeps


@dataclass(frozen=True)
class Unfinished:
    """A forward pass, or the first step of an optimizer, that was not finished."""

    text: str  # how far it was, as a sentence
    more_bytes: int  # what the rest would have needed, at least
    layers: int = 0  # the number of layers; 0 for an optimizer
    layers_bytes: int = 0  # what all layers keep of a forward pass; 0 for an optimizer
    start_bytes: int = 0  # what was allocated before the first layer; 0 for an optimizer


def unfinished(
    data: DeviceData, oom: OutOfMemory, categories: Sequence[CategoryUsage]
) -> Unfinished | None:
    """Return what was not finished at an out-of-memory error; None if that is unknown.

    Args:
        categories: What the memory was for; [] if that is unknown.
    """
    if not data.history.is_known:
        return None
    sizes: dict[str, dict[str, int]] = defaultdict(dict)
    for usage in categories:
        sizes[usage.category] = {owner.name: owner.size_bytes for owner in usage.owners}
    is_first_step = sum(first <= oom.event for _, first in data.boundaries) < 2
    # Another optimizer may step first in a later step of the program.
    stack = int(data.trace.stack[oom.event])
    is_stepping = data.stack_places.place[stack] == OPTIMIZER
    of_optimizer = _optimizer(sizes) if is_first_step or is_stepping else None
    saved = sum(sizes["activation"].values())
    return of_optimizer or _forward(data, oom, sizes["parameter"], saved)


def _optimizer(sizes: dict[str, dict[str, int]]) -> Unfinished | None:
    """Return how many of the parameters with a gradient an optimizer has made the states of."""
    states: dict[str, int] = defaultdict(int)
    for owner, size_bytes in sizes["optimizer_state"].items():
        states[owner.partition(" of ")[2]] += size_bytes
    parameters = sizes["parameter"]
    wanted = {name for name in parameters if f"grad of {name}" in sizes["gradient"]}
    made = wanted & states.keys()
    if not made or len(made) == len(wanted):
        return None
    of_byte = statistics.median(states[name] / parameters[name] for name in made)
    more = int(of_byte * sum(parameters[name] for name in wanted)) - sum(
        states[name] for name in made
    )
    return Unfinished(
        f"The optimizer had created its state for {len(made)} of {len(wanted)} parameters; the "
        f"rest need about {size(more)} more",
        more,
    )


def _forward(
    data: DeviceData, oom: OutOfMemory, parameters: dict[str, int], saved_bytes: int
) -> Unfinished | None:
    """Return how many layers of a model a forward pass has begun.

    What each layer requests once shows it: from one to the next, as much memory is kept, most of it
    for the backward pass. Else a second model is made, or layers are loaded.
    """
    layers = layers_of(parameters)
    if layers is None:
        return None
    name, count = layers
    allocated = data.history.usage.allocated_bytes
    requests = _repeated_requests(data, oom.event)
    best: Column | None = None  # the most events, and of these the first
    each = 0
    for events in requests:
        kept = np.diff(allocated[events + 1])
        median = int(np.median(kept))
        if median <= 0 or kept.max() - kept.min() > _DEVIATION * median:
            continue
        is_better = best is None or (len(events), -events[0]) > (len(best), -best[0])
        is_same = median > each * (1 - _DEVIATION)
        if median > each * (1 + _DEVIATION) or (is_same and is_better):
            best, each = events, median
    if best is None or len(best) > count or not _are_layers(requests, best, count):
        return None
    begun, start = len(best), int(allocated[best[0]])
    if saved_bytes < _LEAST_SAVED * (begun - 1) * each:
        return None
    more = start + count * each - int(allocated[oom.event])
    if begun == count or more < each:
        return None
    return Unfinished(
        f"The forward pass was in layer {begun} of {count} ({name}). Each layer keeps "
        f"{size(each)}, so the rest of the pass needs about {size(more)} more",
        more,
        layers=count,
        layers_bytes=count * each,
        start_bytes=start,
    )


def _are_layers(requests: list[Column], once: Column, count: int) -> bool:
    """Return whether what is repeated with a request is a layer, and all of it began with it.

    It may be a whole forward pass, in which others are requested for each layer. And layers before
    it may have been larger or smaller.
    """
    for events in requests:
        of_one = np.count_nonzero((events >= once[0]) & (events < once[1]))
        if of_one >= count or (of_one and np.count_nonzero(events < once[0]) > of_one):
            return False
    return True


def layers_of(parameters: dict[str, int]) -> tuple[str, int] | None:
    """Return the name and the length of the list of layers that a model mainly has."""
    lists: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for name, size_bytes in parameters.items():
        for found in _NUMBER.finditer(name):
            lists[name[: found.start()]][found.group()][name[found.end() :]] = size_bytes
    total = sum(parameters.values())
    for name, layers in lists.items():
        parts = [layers[number] for number in sorted(layers, key=int)]
        period = _period(parts)
        sizes = [
            sum(sum(part.values()) for part in parts[begin : begin + period])
            for begin in range(0, len(parts), period)
        ]
        # At most one list has more than half of the parameters, apart from those inside of it.
        if sum(sizes) < _LEAST_OF_MODEL * total or len(sizes) <= _LEAST_STARTED:
            continue
        if max(sizes) <= _ALIKE * min(sizes) + _REST * (min(sizes) > _REST):
            return name.rstrip(".") or "of the model", len(sizes)
    return None


def _period(parts: list[dict[str, int]]) -> int:
    """Return how many children of a module make a layer: two, if a wide and a narrow one alternate.

    Args:
        parts: The sizes of the parameters of each child.
    """
    count = len(parts)
    periods = (n for n in range(1, count // 2 + 1) if count % n == 0)
    return next((n for n in periods if parts[n:] == parts[:-n]), 1)


def _repeated_requests(data: DeviceData, event: int) -> list[Column]:
    """Return the events of each request that has been repeated in the step, to the same size."""
    trace = data.trace
    begin = begin_of_step(data.boundaries, event)
    alloc = begin + np.flatnonzero(trace.action[begin:event] == ALLOC)
    sizes, of_size = np.unique(trace.size_bytes[alloc], return_inverse=True)
    request = trace.stack[alloc].astype(np.int64) * len(sizes) + of_size
    _, group, count = np.unique(request, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    parts = np.split(alloc[order], np.cumsum(count)[:-1])
    return [events for events in parts if len(events) >= _LEAST_STARTED]
