"""Which module of a model each block belongs to.

A tensor's owner names its module, and the phases of `pytracer.annotate_modules` name the module
that ran. Without such a fact, a block has no module.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pytracer.analysis.block_categories import OF_NO_MODEL, values_of
from pytracer.analysis.call_sites import texts_matching
from pytracer.analysis.stack_places import stack_places
from pytracer.reading.snapshot import Column, Snapshot

FORWARD, BACKWARD, NEAR = range(3)
"""Of a block that the backward pass allocated for a module: `BACKWARD`, or `NEAR` if the forward
call is that of a neighbouring autograd node, and so perhaps of another module. Else `FORWARD`."""

# A parameter that no module has.
_OF_OPTIMIZER = re.compile(r" group \d+( parameter \d+)?$")

_ACCUMULATE = "AccumulateGrad of "

PREFIXES = ("", "backward of ", "backward near ")
"""What the name of a module begins with, by the role of its blocks."""


@dataclass(frozen=True, eq=False)
class BlockModules:
    """The modules of blocks; columns with a row for each block."""

    path: Column  # int64, an index in `paths`; 0: no module is known
    paths: tuple[str, ...]  # the distinct paths; the first is ""
    role: Column  # uint8: `FORWARD`, `BACKWARD` or `NEAR`


def modules_of(snapshot: Snapshot, stack: Column, phase: Column, row: Column) -> BlockModules:
    """Return the modules of blocks.

    Args:
        stack: For each block the stack of its allocation.
        phase: The phase of its allocation, an index in the snapshot's `strings`; 0: none.
        row: The block's row in the snapshot's blocks; -1 if it was freed before the end.
    """
    strings, blocks, stacks = snapshot.strings, snapshot.blocks, snapshot.stacks
    module_phases = snapshot.metadata.module_phases
    paths, owners, marked = module_phases.paths, module_phases.owners, module_phases.names
    numbers: dict[str, int] = {"": 0}

    def numbered(texts: Column, path_of: "dict[int, str]") -> Column:
        keys, which = np.unique(texts, return_inverse=True)
        found = (path_of.get(key, "") for key in keys.tolist())
        return np.array([numbers.setdefault(path, len(numbers)) for path in found], np.int64)[which]

    def phases(texts: Column) -> Column:
        keys = np.unique(texts).tolist()
        return numbered(texts, {key: strings[key] for key in keys if strings[key] in marked})

    # Code that autograd's engine calls belongs to the forward call. Python code that a node runs,
    # such as a recomputation, is in phases of its own.
    is_of_engine = stack_places(snapshot).is_of_engine[stack]
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
    # The block of several tensors may belong to several modules.
    is_other = texts_matching(OF_NO_MODEL.__contains__, strings, blocks.category)
    has_tensor = (blocks.owners == 1) & ~is_other
    owner = values_of(np.where(has_tensor, blocks.owner, 0), row)
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
