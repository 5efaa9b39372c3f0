"""How much less memory a program would need with the usual remedies, by estimate."""

from collections.abc import Sequence

from pytracer.analysis.categories import CategoryUsage
from pytracer.analysis.unfinished import Unfinished
from pytracer.text import size

_LEAST_PART = 0.05
"""The least part of the memory that a remedy saves if it is named."""

_KEPT_BY_CHECKPOINTS = ("checkpoint.", "CheckpointFunctionBackward", "_NoopSaveInputsBackward")
"""The names of what torch.utils.checkpoint keeps for a region."""

_OF_BATCH = ("activation", "temporary", "input", "output")
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
) -> list[str]:
    """Return what three usual remedies would save, as one sentence, or none.

    Args:
        categories: What the memory was for.
        progress: What was not finished when memory ran out; None: unknown.
        total_bytes: The memory that the allocator could have; 0: unknown.
        missing_bytes: How much more was needed at least: if all remedies save less, none is named.
        is_needed: Whether only less memory helps. Then there is always a sentence.
    """
    sizes = {usage.category: usage.size_bytes for usage in categories}
    least = max(_LEAST_PART * sum(sizes.values()), 1)
    saved, of_batch = _of_checkpoints(categories), sum(sizes.get(one, 0) for one in _OF_BATCH)
    states = sizes.get("optimizer_state", 0) * 3 // 4
    part = None
    if progress is not None and progress.layers:
        saved = progress.layers_bytes - progress.layers_bytes // progress.layers
        of_batch = max(of_batch, progress.layers_bytes)
        part = _fitting_part(sizes, progress, total_bytes)
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
        "checkpointing": sizes.get("activation", 0) >= least,
        "a smaller optimizer": states >= least,
    }
    named = [name for name, is_much in usual.items() if is_much] or ["a smaller batch"]
    return [f"The program must hold less: {', '.join(named)}."]


def _of_checkpoints(categories: Sequence[CategoryUsage]) -> int:
    """Return the bytes of activations, without what checkpoints keep: they are there already."""
    return sum(
        usage.size_bytes
        - sum(
            each.size_bytes for each in usage.owners if each.name.startswith(_KEPT_BY_CHECKPOINTS)
        )
        for usage in categories
        if usage.category == "activation"
    )


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
