"""How much less memory a program would need with the usual remedies, by estimate."""

from collections.abc import Sequence

from pytracer.analysis.blocks import Blocks
from pytracer.analysis.categories import CategoryUsage, Owner
from pytracer.analysis.oom.unfinished_pass import Unfinished, layers_of
from pytracer.text import size

_LEAST_PART = 0.05  # the least part of the memory that a remedy saves if it is named

_KEPT_BY_CHECKPOINTS = ("checkpoint.", "CheckpointFunctionBackward", "_NoopSaveInputsBackward")
"""The names of what torch.utils.checkpoint keeps for a region."""

_WEIGHTS = ("AddmmBackward0.mat2", "MmBackward0.mat2")
"""The names of weights that a graph keeps: merged ones, and copies in another data type. Others are
called "weight"."""

OF_BATCH = ("activation", "temporary", "input", "output")
"""The categories whose memory grows with the batch."""

_PARTS = {2: "half", 3: "a third", 4: "a quarter"} | {n: f"1/{n}" for n in (6, 8, 12, 16, 24, 32)}
_ROOM = 0.95  # of the memory; the allocator does not get all of it into one piece
_BESIDE_LAYERS = 1.25  # what a loss and temporary tensors take, too, relative to the layers


def lowering(
    categories: Sequence[CategoryUsage],
    progress: Unfinished | None = None,
    total_bytes: int = 0,
    missing_bytes: int = 0,
    *,
    is_needed: bool = False,
    recomputed_bytes: int = 0,
) -> list[str]:
    """Return what three usual remedies would save, as one sentence, or none.

    Args:
        progress: What was not finished when memory ran out; None: unknown.
        total_bytes: The memory that the allocator could have; 0: unknown.
        missing_bytes: How much more was needed at least: if all remedies save less, none is named.
        is_needed: Whether only less memory helps. Then there is always a sentence.
        recomputed_bytes: What the recomputation of a checkpoint keeps.
    """
    sizes = {usage.category: usage.size_bytes for usage in categories}
    least = max(_LEAST_PART * sum(sizes.values()), 1)
    kept = _owners(categories, "activation")
    # What checkpoints keep is there already.
    regions = [owner for owner in kept if owner.name.startswith(_KEPT_BY_CHECKPOINTS)]
    of_regions = sum(owner.size_bytes for owner in regions)
    saved = sizes.get("activation", 0) - of_regions
    # Weights of no model, which batches share.
    of_weights = sum(
        owner.size_bytes
        for owner in kept
        if owner.name in _WEIGHTS or owner.name.endswith(".weight")
    )
    of_batch = sum(sizes.get(one, 0) for one in OF_BATCH) - of_weights
    states = sizes.get("optimizer_state", 0) * 3 // 4
    part = None
    if progress is not None and progress.layers:
        saved = progress.layers_bytes - progress.layers_bytes // progress.layers
        if of_weights < least:
            of_batch = max(of_batch, progress.layers_bytes)
            part = _fitting_part(sizes, progress, total_bytes)
        are_checkpointed = 2 * of_regions > sizes.get("activation", 0)
    else:
        parameters = {each.name: each.size_bytes for each in _owners(categories, "parameter")}
        layers = layers_of(parameters)
        regions_of_layer = max((owner.count for owner in regions), default=0)
        are_checkpointed = layers is not None and regions_of_layer >= layers[1]
    # Then the rest of the activations is that of the embedding and of the loss.
    saved = 0 if are_checkpointed else max(saved - recomputed_bytes, 0)
    found = [
        (0 if part else of_batch // 2, "half the batch", ""),
        (saved, "checkpointing", "up to "),
        (states, "an 8-bit or sharded optimizer", ""),
    ]
    if max(of_batch // 2, saved) + states < missing_bytes:
        found = []
    saving = [(name, f"{most}{size(less)}") for less, name, most in found if less >= least]
    if not is_needed and (not saving or saved < least or states < least):
        return []
    texts = [f"{part} of this batch fits"] if part else []
    texts += [" saves ".join(one) for one in saving[:1]] + [" ".join(one) for one in saving[1:]]
    if texts:
        return [f"By estimate, {', '.join(texts)}."]
    total = sum(sizes.values())
    usual = {
        "a smaller or sharded model": sizes.get("parameter", 0) >= total / 2,
        "a smaller batch": max(of_batch, sizes.get("unknown", 0)) >= least,
        "checkpointing": saved >= least,
        "a smaller optimizer": states >= least,
    }
    named = [name for name, is_much in usual.items() if is_much] or ["a smaller batch"]
    return [f"The program must hold less: {', '.join(named)}."]


def recomputed_bytes(held: Blocks) -> int:
    """Return the bytes of activations that the recomputation of a checkpoint has made.

    In a program with checkpoints they are all, if no name of an activation is known: which of them
    checkpoints keep is unknown then.
    """
    is_recomputed = held.data.stack_places.is_recomputed
    of_graphs = held.where(held.is_in("category", "activation"))
    is_unknown = is_recomputed.any() and not of_graphs.are("owner", bool).any()
    return of_graphs.bytes_where(is_recomputed[of_graphs["stack"]] | is_unknown)


def _owners(categories: Sequence[CategoryUsage], category: str) -> list[Owner]:
    return [each for usage in categories if usage.category == category for each in usage.owners]


def _fitting_part(sizes: dict[str, int], progress: Unfinished, total_bytes: int) -> str | None:
    """Return which part of the batch would fit; None: none of those that are looked at.

    Gradients and the states of an optimizer that a first step has not made yet count as AdamW's.
    """
    to_come = (not sizes.get("gradient")) + 2 * (not sizes.get("optimizer_state"))
    start = progress.start_bytes + sizes.get("parameter", 0) * to_come
    for part, name in _PARTS.items():
        if start + _BESIDE_LAYERS * progress.layers_bytes // part <= _ROOM * total_bytes:
            return name
    return None
