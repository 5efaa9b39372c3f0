"""Memory that a program need not take: a known change of one line avoids it, and loses nothing."""

import re

import numpy as np

from pytracer.analysis.blocks import Blocks
from pytracer.analysis.call_sites import first_frames, frames_matching
from pytracer.analysis.stack_places import MODULE
from pytracer.reading.snapshot import OOM, Column, Stacks
from pytracer.reading.steps import begin_of_step
from pytracer.text import size

_LEAST_PART = 0.05  # the least part of the memory that is worth a sentence

_LEAST_SCORES = 0.25  # the same of a loss's scores: some of them are needed in any case

_INNERMOST = 4  # how many functions may tell what a request is for, as cross_entropy() does

_OF_LOSS = re.compile(
    r"(?:\w*cross_entropy|nll_loss|log_softmax|ForCausalLMLoss)$|LogSoftmaxBackward|NllLossBackward"
)
_SAVED = "LogSoftmaxBackward0.result"
_LOADS = re.compile(r".*[/\\](?:torch[/\\]serialization|safetensors[/\\]torch)\.py", re.DOTALL)
_UPDATES_ALL = re.compile(r"_multi_tensor_\w+")
_NO_OPTIMIZER = " without an optimizer"  # csrc/tensors/graphs.cpp
_OWNED = {"parameter", "gradient", "optimizer_state", "buffer"}


def avoidable(held: Blocks) -> list[str]:
    """Return what to change, as sentences with the bytes that it saves.

    Args:
        held: The blocks at an out-of-memory error, whose request counts like a block; [] for
            others.
    """
    trace, stacks, event = held.data.trace, held.stacks, (held.entry or 0) - 1
    if event < 0 or trace.action[event] != OOM:
        return []
    now, asked = int(trace.stack[event]), int(trace.size_bytes[event])
    size_bytes, stack = held["size_bytes"], held["stack"]
    total = int(size_bytes.sum()) + asked

    def bytes_from(is_wanted: Column) -> int:
        """Return the bytes that these stacks allocate or request, and that nothing owns."""
        of_blocks = size_bytes[~held.is_in("category", *_OWNED) & is_wanted[stack]]
        return int(of_blocks.sum() + asked * is_wanted[now])

    scores = _of_scores(held, now, asked, _LEAST_SCORES * total)
    loaded = bytes_from(_have(stacks, frames_matching(_LOADS.fullmatch, stacks, "filename")))
    updates = bytes_from(_have(stacks, frames_matching(_UPDATES_ALL.fullmatch, stacks, "name")))
    begin = begin_of_step(held.data.boundaries, event)
    is_old = held.is_in("category", "gradient") & (held["alloc_event"] < begin)
    untrained = _untrained(held, is_old)
    # A reference model that runs without torch.no_grad() keeps such.
    of_graphs = _bytes_by_model(held.where(held.is_in("category", "activation")))
    references = {model: of_graphs[model] for model in of_graphs if model.endswith(_NO_OPTIMIZER)}
    is_forward = held.data.stack_places.place[now] == MODULE
    record = held.data.snapshot.metadata.oom_of(held.data.device)
    is_evaluated = is_forward and record is not None and record.evaluating is True
    # Not every NPU has fused updates, and the update of one parameter takes as much as this one.
    ways = ["fused=True"] * (held.data.snapshot.backend(held.data.device) != "npu")
    ways += ["foreach=False"] * (2 * asked < updates)
    found = [
        (
            scores,
            "Compute the loss in chunks: with this request, blocks of the logits' size take {}.",
        ),
        (
            loaded,
            'Load the checkpoint with map_location="cpu": on the device, its tensors take {} in '
            "addition to the model.",
        ),
        (
            updates if ways else 0,
            f"Create the optimizer with {' or '.join(ways)}: updating all parameters at once "
            "takes at least {} of temporary memory.",
        ),
        (
            held.bytes_where(held.is_in("category", "activation"))
            if is_evaluated and not references
            else 0,
            "The model is in evaluation mode, but keeps {} of activations. If no backward pass "
            "follows, call it under torch.no_grad().",
        ),
        (
            int(size_bytes[is_old].sum()) - sum(untrained.values()) if is_forward else 0,
            "Call optimizer.zero_grad(), with its default set_to_none=True, before the forward "
            "pass: {} of the previous step's gradients are kept.",
        ),
    ]
    least = _LEAST_PART * total
    for model, saved in references.items():
        name = model.removesuffix(_NO_OPTIMIZER)
        untrained.pop(name, 0)
        text = f"No optimizer has the parameters of {name}, but {{}} of activations are kept for "
        text += f"their gradients. Call {name}.requires_grad_(False) unless you train it."
        found.append((saved, text))
    for model, saved in untrained.items():
        text = (
            f"No optimizer has state for {model}. Unless you train it, requires_grad_(False) saves "
        )
        found.append((saved, f"{text}{{}} of gradients, and activations."))
    return [text.replace("{}", size(saved)) for saved, text in found if saved > least]


def _untrained(held: Blocks, is_old: Column) -> dict[str, int]:
    """Return the bytes of gradients of earlier steps by model, of those that no optimizer steps.

    Optimizers that have no states do not tell.
    """
    stepped, found = (
        _bytes_by_model(held.where(are_wanted))
        for are_wanted in (held.is_in("category", "optimizer_state"), is_old)
    )
    return {model: found[model] for model in found if stepped and model not in stepped}


def _bytes_by_model(held: Blocks) -> dict[str, int]:
    """Return the bytes of what is of a model's parameters, as "grad of Net.layer.weight" is.

    By the model's name, or if there is only one by that of its outermost module.
    """
    sizes: dict[str, int] = {}
    for owner in held.group("owner"):
        model = (owner.key[0] or "").partition(" of ")[2].partition(".")[0]
        if model:
            sizes[model] = sizes.get(model, 0) + owner.size_bytes
    return sizes


def _have(stacks: Stacks, is_wanted: Column) -> Column:
    """Return for each stack whether it has one of the wanted frames: bool."""
    found: Column = first_frames(stacks, is_wanted) < stacks.offsets[1:]
    return found


def _of_scores(held: Blocks, stack: int, asked: int, least: float) -> int:
    """Return the bytes of a loss's scores: a number for each token and word, several times.

    That are the blocks of the size of the request, or of what a loss has saved, or half or twice.
    """
    scores, stacks = asked, held.stacks
    frames = stacks.frame[stacks.offsets[stack] : stacks.offsets[stack + 1]][:_INNERMOST]
    names = [stacks.strings[stacks.name[frame]] for frame in frames.tolist()]
    if not any(map(_OF_LOSS.match, [*names, stacks.strings[stacks.node[stack]]])):
        is_saved = held.is_in("owner", _SAVED)
        scores = int(held["requested_bytes"][is_saved].max(initial=0))
    if not scores:
        return 0
    sizes = np.array([scores // 2, scores, 2 * scores])
    is_score = np.isin(held["requested_bytes"], sizes) & ~held.is_in("category", *_OWNED)
    found = int(held["size_bytes"][is_score].sum()) + asked * int(asked in sizes)
    return found if found >= least else 0
