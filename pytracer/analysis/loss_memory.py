"""How much memory the scores of a loss take: a number for each token and word, several times."""

import re
from collections.abc import Iterable

import numpy as np

from pytracer.analysis.held_memory import HeldMemory

_OF_LOSS = re.compile(
    r"(?:\w*cross_entropy|nll_loss|log_softmax|ForCausalLMLoss)$|LogSoftmaxBackward|NllLossBackward"
)
_SAVED = "LogSoftmaxBackward0.result"
_LEAST_PART = 0.25
_OWNED = {"parameter", "gradient", "optimizer_state", "buffer"}


def loss_bytes(held: HeldMemory, functions: Iterable[str], requested_bytes: int) -> int:
    """Return the bytes of the blocks that have the size of a loss's scores, or half or twice it.

    Args:
        held: The blocks at an out-of-memory.
        functions: The names of the innermost functions that requested memory.
        requested_bytes: The size of the request, which counts if it has such a size.

    Returns:
        The bytes, with the request; 0 if no loss is known, or if they are little of the memory.
    """
    scores = requested_bytes
    if not any(map(_OF_LOSS.match, functions)):
        scores = int(held.requested_bytes_of(_SAVED).max(initial=0))
    if not scores:
        return 0
    sizes = np.array([scores // 2, scores, 2 * scores])
    is_score = np.isin(held.column("requested_bytes"), sizes) & ~held.is_in(_OWNED)
    found = int(held.column("size_bytes")[is_score].sum())
    found += requested_bytes * int(requested_bytes in sizes)
    return found if found >= _LEAST_PART * (held.active_bytes + requested_bytes) else 0
