"""Which module of a model each block belongs to.

A tensor's owner names its module, and the phases of `pytracer.annotate_modules` name the module
that ran. Without such a fact, a block has no module.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pytracer.analysis.block_categories import WORKSPACE, rows_at_end
from pytracer.analysis.call_sites import active_at, sum_by_key
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.history import History
from pytracer.analysis.stack_places import stack_places
from pytracer.reading.metadata import module_phases
from pytracer.reading.snapshot import INACTIVE, Column, Snapshot

FORWARD, BACKWARD, NEAR = range(3)
"""Of a block that the backward pass allocated for a module: `BACKWARD`, or `NEAR` if the forward
call is that of a neighbouring autograd node, and so perhaps of another module. Else `FORWARD`."""

# A parameter that no module has.
_OF_OPTIMIZER = re.compile(r" group \d+( parameter \d+)?$")

_ACCUMULATE = "AccumulateGrad of "

_PREFIXES = ("", "backward of ", "backward near ")


@dataclass(frozen=True)
class ModuleUsage:
    """The active blocks of one module at one moment.

    Attributes:
        module: The path of the module, as in "layers.3.attn.q_proj"; None for blocks whose module
            is unknown, or that no module allocated. "backward of PATH" has what the backward pass
            allocated for the module's forward calls. "backward near PATH" has the same where the
            forward call is that of a neighbouring autograd node.
        size_bytes: The bytes that the allocator gave the blocks.
        requested_bytes: The bytes that the program requested.
        count: The number of blocks.
    """

    module: str | None
    size_bytes: int
    requested_bytes: int
    count: int


@dataclass(frozen=True)
class Modules:
    """Which modules a device's memory belonged to. A moment's bytes add up to its `active_bytes`.

    Attributes:
        at_end: The modules when the file was written, the largest first. In the file of an
            out-of-memory, this is the moment of the out-of-memory.
        at_peak: The modules at `DeviceReport.peak_allocated`; None without a history.
    """

    at_end: list[ModuleUsage]
    at_peak: list[ModuleUsage] | None


@dataclass(frozen=True, eq=False)
class BlockModules:
    """The modules of blocks; columns with a row for each block.

    Attributes:
        path: int64, an index in `paths`; 0: no module is known.
        paths: The distinct paths; the first is "".
        role: uint8: `FORWARD`, `BACKWARD` or `NEAR`.
    """

    path: Column
    paths: tuple[str, ...]
    role: Column


def modules(data: DeviceData, peak: int | None) -> Modules | None:
    """Return which modules a device's memory belonged to; None if no module was a phase.

    Args:
        data: The device.
        peak: The entry of the peak in `history.usage`; None without a history.
    """
    models, paths, _ = module_phases(data.snapshot.metadata)
    if not models and not paths:
        return None
    at_peak = None if data.history is None or peak is None else modules_at(data, peak)
    return Modules(modules_at(data, None), at_peak)


def modules_at(data: DeviceData, entry: int | None) -> list[ModuleUsage]:
    """Return which modules the memory belonged to at one moment, the largest first.

    Args:
        data: The device.
        entry: An entry of `history.usage`; None: the end.
    """
    history, snapshot = data.history, data.snapshot
    if history is None:
        blocks = snapshot.blocks
        own = snapshot.segments.device[blocks.segment] == data.device
        alive = np.flatnonzero((blocks.state != INACTIVE) & own)
        found = _modules(snapshot, blocks.stack[alive], np.zeros(len(alive), np.int64), alive)
        sizes = blocks.size_bytes[alive], blocks.requested_bytes[alive]
    else:
        lives, found = history.blocks, block_modules(snapshot, data.device, history)
        alive = np.flatnonzero(active_at(history, len(data.trace) if entry is None else entry))
        found = BlockModules(found.path[alive], found.paths, found.role[alive])
        sizes = lives.size_bytes[alive], lives.requested_bytes[alive]
    keys, sums = sum_by_key(found.path * len(_PREFIXES) + found.role, *sizes, 1)
    usages = []
    for key, *total in zip(keys.tolist(), *(column.tolist() for column in sums), strict=True):
        path, role = divmod(key, len(_PREFIXES))
        usages.append(ModuleUsage(_PREFIXES[role] + found.paths[path] if path else None, *total))
    return sorted(usages, key=lambda usage: -usage.size_bytes)


def block_modules(snapshot: Snapshot, device: int, history: History) -> BlockModules:
    """Return the modules of the blocks of a device's history."""
    lives = history.blocks
    phase = np.where(lives.alloc_event >= 0, lives.user_metadata, 0).astype(np.int64)
    return _modules(snapshot, lives.stack, phase, rows_at_end(snapshot, device, lives))


def _modules(snapshot: Snapshot, stack: Column, phase: Column, row: Column) -> BlockModules:
    """Return the modules of blocks.

    Args:
        snapshot: The snapshot.
        stack: For each block the stack of its allocation.
        phase: The phase of its allocation, an index in the snapshot's `strings`; 0: none.
        row: The block's row in the snapshot's blocks; -1 if it was freed before the end.
    """
    strings, blocks, stacks = snapshot.strings, snapshot.blocks, snapshot.stacks
    models, paths, owners = module_phases(snapshot.metadata)
    marked = models | paths
    numbers: dict[str, int] = {"": 0}

    def number_of(path: str) -> int:
        return numbers.setdefault(path, len(numbers))

    def numbered(texts: Column, path_of: "dict[int, str]") -> Column:
        keys, which = np.unique(texts, return_inverse=True)
        found = np.array([number_of(path_of.get(key, "")) for key in keys.tolist()], np.int64)
        return found[which]

    def phases(texts: Column) -> Column:
        keys = np.unique(texts).tolist()
        return numbered(texts, {key: strings[key] for key in keys if strings[key] in marked})

    # Code that autograd's engine calls belongs to the forward call. Python code that a node runs,
    # such as a recomputation, is in phases of its own.
    is_of_engine = stack_places(stacks).is_of_engine[stack]
    path = np.where(is_of_engine, phases(stacks.phase)[stack], phases(phase))
    node = stacks.node[stack]
    into = {
        key: _module_of(strings[key].removeprefix(_ACCUMULATE), paths, owners)
        for key in np.unique(node).tolist()
        if strings[key].startswith(_ACCUMULATE)
    }
    of_parameter = numbered(node, into)
    path = np.where(is_of_engine & (path == 0), of_parameter, path)
    role = np.where(stacks.is_exact[stack] | (of_parameter != 0), BACKWARD, NEAR)
    role = np.where(is_of_engine & (path != 0), role, FORWARD).astype(np.uint8)
    # The block of several tensors may belong to several modules, and a workspace is no module's.
    workspace = [key for key in np.unique(blocks.category).tolist() if strings[key] == WORKSPACE]
    has_tensor = (blocks.owners == 1) & ~np.isin(blocks.category, workspace)
    is_owned = (row >= 0) & has_tensor[row] if len(blocks) else np.zeros(len(row), bool)
    owner = np.where(is_owned, blocks.owner[np.where(is_owned, row, 0)] if len(blocks) else 0, 0)
    names = {key: _module_of(strings[key], paths, owners) for key in np.unique(owner).tolist()}
    of_owner = numbered(owner, names)
    has_owner = of_owner != 0
    return BlockModules(
        path=np.where(has_owner, of_owner, path),
        paths=tuple(numbers),
        role=np.where(has_owner, FORWARD, role).astype(np.uint8),
    )


def _module_of(owner: str, phases: frozenset[str], owners: Mapping[str, str] | None) -> str:
    """Return the module of a tensor: the innermost one around it that was a phase, if any was.

    Args:
        owner: The name of the tensor.
        phases: The paths of the modules that were phases.
        owners: Their phases by their paths in the names of tensors; None if those are the same.
    """
    tensor = owner.rpartition(" of ")[2]
    if not tensor or _OF_OPTIMIZER.search(tensor):
        return ""
    known = dict.fromkeys(phases) if owners is None else owners
    path = innermost = tensor.rpartition(".")[0]
    while path and path not in known:
        path = path.rpartition(".")[0]
    return known.get(path) or path or innermost
