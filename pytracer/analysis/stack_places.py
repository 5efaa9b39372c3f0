"""Where in a training each distinct stack is: in a module's call, an optimizer's step, or backward.

These are facts of the frames that torch's own code has on the stack, and of the autograd node that
the recorder has seen.
"""

import re
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from pytracer.analysis.call_sites import first_frames, frames_matching, is_python, texts_matching
from pytracer.reading.snapshot import Column, Snapshot, Stacks

OUTSIDE, MODULE, OPTIMIZER, BACKWARD = range(4)
"""What the thread runs: nothing of the following, a call of a module, a step of an optimizer, or
autograd's engine."""

_FAR = np.iinfo(np.int64).max

_ENGINE = ("_engine_run_backward",), r"[/\\]torch[/\\]autograd[/\\]graph\.py"
_MODULE = ("_call_impl",), r"[/\\]torch[/\\]nn[/\\]modules[/\\]module\.py"
_OPTIMIZER = ("wrapper",), r"[/\\]torch[/\\]optim[/\\]optimizer\.py"
_ZERO_GRAD = ("zero_grad",), r"[/\\]torch[/\\](?:optim[/\\]optimizer|nn[/\\]modules[/\\]module)\.py"
_CHECKPOINT = None, r"[/\\]torch[/\\]utils[/\\]checkpoint\.py"
# The function with which a checkpoint reads the state of the random numbers, for its recomputation.
_RANDOM_STATE = ("get_rng_state",), r"[/\\]torch[/\\]random\.py"
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
# The function in which FSDP2 drops the gradients of gathered parameters, and the one in which
# autocast drops its cache of copies of parameters.
_REDUCES = ("foreach_reduce",), _GATHERS[1]
_AUTOCAST = ("__exit__",), r"[/\\]torch[/\\]amp[/\\]autocast_mode\.py"
# Pipeline parallelism, which allocates what it receives from other ranks.
_PIPELINE = None, r"[/\\]torch[/\\]distributed[/\\]pipelining[/\\]\w+\.py"
# The functions in which a DataLoader makes a batch in this process, and with which torch's
# distributed modules move their arguments to a device.
_INPUTS = (
    ("fetch", "_recursive_to"),
    r"[/\\]torch[/\\](?:utils[/\\]data[/\\]_utils[/\\]fetch|distributed[/\\]utils)\.py",
)
# What a program's main thread begins with; other threads begin with a function.
_MAIN = ("<module>", "_run_module_as_main"), r""
# The files of code that torch.compile makes.
_COMPILED = None, r"(?:<eval_with_key>[^/\\]*|[/\\]torchinductor_[^/\\]*[/\\].*)"


@dataclass(frozen=True, eq=False)
class StackPlaces:
    """Columns with a row for each distinct stack."""

    place: Column  # uint8: `OUTSIDE`, `MODULE`, `OPTIMIZER` or `BACKWARD`
    # bool, in `BACKWARD`: autograd's own code made the call, and no Python code that a node runs.
    is_of_engine: Column
    is_recomputed: Column  # bool, in `BACKWARD`: a checkpoint runs its forward calls again
    # bool: outside of `BACKWARD`, a checkpoint reads the state of the random numbers.
    keeps_random_state: Column
    is_zero_grad: Column  # bool: `zero_grad` of an optimizer or a module made the call
    gathers: Column  # bool: FSDP2 gathers parameters
    makes_buckets: Column  # bool: DDP makes its buckets
    # bool: a DataLoader makes a batch, or a distributed module moves its arguments.
    makes_inputs: Column
    # bool, in `OUTSIDE`: the stack is complete, and has no pipeline of torch.
    may_make_arguments: Column
    reduces: Column  # bool: FSDP2 reduces gradients
    leaves_autocast: Column  # bool: autocast drops its cache
    # int64: which of the program's calls of the engine runs a node, in the stack's own frames; 0:
    # none, or a call inside of another one, or the node is not known. Nodes that accumulate
    # gradients do not count.
    engine_call: Column
    is_second: Column  # bool: the node is that of a derivative
    accumulates: Column  # bool: the node adds to the gradient of a parameter
    is_compiled: Column  # bool: code that `torch.compile` made runs
    is_of_main: Column  # bool: complete, and begins with what only the main thread runs


_known: "WeakKeyDictionary[Stacks, StackPlaces]" = WeakKeyDictionary()
"""What was found out for each file: several analyses of it ask."""


def stack_places(snapshot: Snapshot) -> StackPlaces:
    """Return where each distinct stack of a snapshot is."""
    found = _known.get(snapshot.stacks)
    if found is None:
        found = _places(snapshot.stacks, snapshot.metadata.stack_depth or 0)
        _known[snapshot.stacks] = found
    return found


def _places(stacks: Stacks, stack_depth: int) -> StackPlaces:
    """Find out where each stack is; `stack_depth`: how many frames it has at most, 0: unknown."""

    def frames(names: tuple[str, ...] | None, file: str) -> Column:
        found = frames_matching(re.compile(f".*{file}", re.DOTALL).fullmatch, stacks, "filename")
        if names is not None:
            found &= frames_matching(names.__contains__, stacks, "name")
        return found

    has_node = (stacks.node != 0) | (stacks.forward != 0)
    python = _depth(stacks, is_python(stacks))
    depth = np.diff(stacks.offsets)
    begins_in_main = np.append(frames(*_MAIN)[stacks.frame], False)[stacks.offsets[1:] - 1]
    engine, module, optimizer, checkpoint, gathers, inputs, pipeline = (
        _depth(stacks, frames(*rule))
        for rule in (_ENGINE, _MODULE, _OPTIMIZER, _CHECKPOINT, _GATHERS, _INPUTS, _PIPELINE)
    )
    zero_grad, buckets, reduces, autocast, random_state, compiled = (
        _depth(stacks, frames(*rule))
        for rule in (_ZERO_GRAD, _BUCKETS, _REDUCES, _AUTOCAST, _RANDOM_STATE, _COMPILED)
    )
    is_backward = has_node | (engine < _FAR)
    place = np.select(
        [is_backward, optimizer < _FAR, module < _FAR], [BACKWARD, OPTIMIZER, MODULE], OUTSIDE
    ).astype(np.uint8)
    is_of_engine = is_backward & (python == engine)
    return StackPlaces(
        place=place,
        is_of_engine=is_of_engine,
        is_recomputed=is_backward & ~is_of_engine & (checkpoint < engine),
        keeps_random_state=~is_backward & (random_state == 0) & (checkpoint == 1),
        is_zero_grad=(zero_grad < _FAR) & (zero_grad == python),
        gathers=gathers < _FAR,
        makes_buckets=(buckets < _FAR) & (buckets == python),
        # A dataset may call a model, whose blocks are no inputs.
        makes_inputs=(inputs < module) & ~is_backward,
        # Of a stack that was cut off, the call of a module may be missing.
        may_make_arguments=(place == OUTSIDE) & (depth < stack_depth) & (pipeline == _FAR),
        reduces=(reduces < _FAR) & (reduces == python),
        leaves_autocast=(autocast < _FAR) & (autocast == python),
        engine_call=_engine_calls(stacks, is_of_engine & (engine < _FAR), frames(*_ENGINE)),
        is_second=_has_node(stacks, "BackwardBackward"),
        accumulates=_has_node(stacks, "AccumulateGrad"),
        is_compiled=compiled == 0,
        is_of_main=(depth > 0) & (depth < stack_depth) & begins_in_main,
    )


def _engine_calls(stacks: Stacks, is_of_engine: Column, is_engine: Column) -> Column:
    """Return the column `engine_call`; `is_engine`: which distinct frames are the engine's."""
    found = np.zeros(len(stacks), np.int64)
    numbers: dict[bytes, int] = {}
    begin, end = stacks.offsets[:-1], stacks.offsets[1:]
    is_wanted = is_of_engine & (stacks.node != 0) & ~_has_node(stacks, "AccumulateGrad")
    for stack in np.flatnonzero(is_wanted).tolist():
        frames = stacks.frame[begin[stack] : end[stack]]
        if np.count_nonzero(is_engine[frames]) == 1:
            found[stack] = numbers.setdefault(frames.tobytes(), len(numbers) + 1)
    return found


def _has_node(stacks: Stacks, text: str) -> Column:
    """Return for each stack whether the name of the node that ran has a text in it: bool."""
    return texts_matching(lambda name: text in name, stacks.strings, stacks.node)


def _depth(stacks: Stacks, is_wanted: Column) -> Column:
    """Return for each stack how far inside its first wanted frame is, 0: innermost; or `_FAR`."""
    begin, end = stacks.offsets[:-1], stacks.offsets[1:]
    first = first_frames(stacks, is_wanted)
    return np.where(first < end, first - begin, _FAR)
