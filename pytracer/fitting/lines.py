"""Which memory grows with what: the categories and the lines at the peak of a prediction."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pytracer.analysis.block_categories import BlockCategories, block_categories
from pytracer.analysis.blocks import sum_by_group
from pytracer.analysis.call_sites import call_sites, frame_at
from pytracer.analysis.requests import block_order
from pytracer.fitting.alignment import Recorded
from pytracer.fitting.prediction import Program
from pytracer.fitting.results import Grown
from pytracer.fitting.sizes import Sizes
from pytracer.reading.snapshot import Column
from pytracer.simulator.rules import AllocatorRules


def grown(
    program: Program, target: Sizes, rules: AllocatorRules
) -> tuple[list[Grown], list[Grown]]:
    """Return the categories and the call sites of the memory at the target's peak."""
    base = program.base
    done = program.simulate(target, rules)
    assert done.allocated_bytes is not None
    held = base.held_at(int(np.argmax(done.allocated_bytes)))
    sizes = program.size_bytes(target)[held]
    more = {
        name: program.size_bytes({**target, name: target[name] + 1})[held] - sizes
        for name in program.variables
    }

    names, index = kinds_of(base).categories()
    sites = call_sites(base.snapshot.stacks)
    distinct, site = np.unique(sites[base.stack[held]], return_inverse=True)
    by_category = [
        Grown(names[i], None, size_bytes, each)
        for i, size_bytes, each in _sums(index[held], len(names), sizes, more)
    ]
    by_site = [
        Grown("", frame_at(base.snapshot.stacks, int(distinct[i])), size_bytes, each)
        for i, size_bytes, each in _sums(site, len(distinct), sizes, more)
    ]
    return by_category, by_site


def kinds_of(base: Recorded) -> BlockCategories:
    """Return what each allocation was for."""
    recording = base.recording
    found = block_categories(base.snapshot, recording.device, recording.history)
    block = recording.requests.block[base.rows]
    rows = block_order(recording.history.blocks)[block]
    return replace(found, kind=found.kind[rows], owner=found.owner[rows])


def _sums(
    group: Column, groups: int, sizes: Column, more: dict[str, Column]
) -> Sequence[tuple[int, int, dict[str, int]]]:
    """Return the groups that have bytes, the largest first, with their sums."""
    total = sum_by_group(group, sizes, groups)
    each = {name: sum_by_group(group, column, groups) for name, column in more.items()}
    found = [
        (i, int(total[i]), {name: int(column[i]) for name, column in each.items()})
        for i in range(groups)
        if total[i] > 0
    ]
    return sorted(found, key=lambda row: -row[1])
