"""Where in a training each distinct stack is: in a module's call, an optimizer's step, or backward.

These are facts of the frames that torch's own code has on the stack, and of the autograd node that
the recorder has seen.
"""

import re
from dataclasses import dataclass

import numpy as np

from pytracer.analysis.call_sites import frames_matching, is_python
from pytracer.reading.snapshot import Column, Stacks

OUTSIDE, MODULE, OPTIMIZER, BACKWARD = range(4)
"""What the thread runs: nothing of the following, a call of a module, a step of an optimizer, or
autograd's engine."""

_FAR = np.iinfo(np.int64).max

_ENGINE = ("_engine_run_backward",), r"[/\\]torch[/\\]autograd[/\\]graph\.py"
_MODULE = ("_call_impl",), r"[/\\]torch[/\\]nn[/\\]modules[/\\]module\.py"
_OPTIMIZER = ("wrapper",), r"[/\\]torch[/\\]optim[/\\]optimizer\.py"
_ZERO_GRAD = ("zero_grad",), r"[/\\]torch[/\\](?:optim[/\\]optimizer|nn[/\\]modules[/\\]module)\.py"
_CHECKPOINT = None, r"[/\\]torch[/\\]utils[/\\]checkpoint\.py"
# The functions in which FSDP2 allocates what it gathers parameters with, and the gathered
# parameters; and the functions from which DDP's reducer makes its buckets.
_GATHERS = (
    (
        *("foreach_all_gather", "foreach_all_gather_copy_out"),
        *("init_all_gather_outputs", "alloc_storage"),
    ),
    r"[/\\]torch[/\\]distributed[/\\]fsdp[/\\]_fully_shard[/\\]\w+\.py",
)
_BUCKETS = (
    ("_ddp_init_helper", "_pre_forward"),
    r"[/\\]torch[/\\]nn[/\\]parallel[/\\]distributed\.py",
)
# The functions in which a DataLoader makes a batch in this process, and with which torch's
# distributed modules move their arguments to a device.
_INPUTS = (
    ("fetch", "_recursive_to"),
    r"[/\\]torch[/\\](?:utils[/\\]data[/\\]_utils[/\\]fetch|distributed[/\\]utils)\.py",
)


@dataclass(frozen=True, eq=False)
class StackPlaces:
    """Columns with a row for each distinct stack.

    Attributes:
        place: uint8: `OUTSIDE`, `MODULE`, `OPTIMIZER` or `BACKWARD`.
        is_of_engine: bool, in `BACKWARD`: autograd's own code made the call, and no Python code
            that a node runs.
        is_recomputed: bool, in `BACKWARD`: a checkpoint runs its forward calls again.
        is_zero_grad: bool: `zero_grad` of an optimizer or a module made the call.
        gathers: bool: FSDP2 gathers parameters.
        makes_buckets: bool: DDP makes its buckets.
        makes_inputs: bool: a DataLoader makes a batch, or a distributed module moves its arguments.
    """

    place: Column
    is_of_engine: Column
    is_recomputed: Column
    is_zero_grad: Column
    gathers: Column
    makes_buckets: Column
    makes_inputs: Column


def stack_places(stacks: Stacks) -> StackPlaces:
    """Find out where each distinct stack is."""

    def frames(names: tuple[str, ...] | None, file: str) -> Column:
        found = frames_matching(re.compile(f".*{file}", re.DOTALL).fullmatch, stacks, "filename")
        if names is not None:
            found &= frames_matching(names.__contains__, stacks, "name")
        return found

    has_node = (stacks.node != 0) | (stacks.forward != 0)
    python = _depth(stacks, is_python(stacks))
    engine, module, optimizer, checkpoint, gathers, inputs = (
        _depth(stacks, frames(*rule))
        for rule in (_ENGINE, _MODULE, _OPTIMIZER, _CHECKPOINT, _GATHERS, _INPUTS)
    )
    zero_grad, buckets = (_depth(stacks, frames(*rule)) for rule in (_ZERO_GRAD, _BUCKETS))
    is_backward = has_node | (engine < _FAR)
    place = np.select(
        [is_backward, optimizer < _FAR, module < _FAR], [BACKWARD, OPTIMIZER, MODULE], OUTSIDE
    ).astype(np.uint8)
    is_of_engine = is_backward & (python == engine)
    return StackPlaces(
        place=place,
        is_of_engine=is_of_engine,
        is_recomputed=is_backward & ~is_of_engine & (checkpoint < engine),
        is_zero_grad=(zero_grad < _FAR) & (zero_grad == python),
        gathers=gathers < _FAR,
        makes_buckets=(buckets < _FAR) & (buckets == python),
        # A dataset may call a model, whose blocks are no inputs.
        makes_inputs=(inputs < module) & ~is_backward,
    )


def _depth(stacks: Stacks, is_wanted: Column) -> Column:
    """Return for each stack how far inside its first wanted frame is, 0: innermost; or `_FAR`."""
    begin, end = stacks.offsets[:-1], stacks.offsets[1:]
    wanted = np.flatnonzero(is_wanted[stacks.frame])
    following = np.append(wanted, len(stacks.frame))[np.searchsorted(wanted, begin)]
    return np.where(following < end, following - begin, _FAR)
