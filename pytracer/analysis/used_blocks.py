"""Which blocks the program used as arguments and results of models, and as gradients."""

import numpy as np

from pytracer.analysis.history import Lifetimes
from pytracer.reading.metadata import tensor_uses
from pytracer.reading.snapshot import Column, Snapshot


def used_blocks(snapshot: Snapshot, device: int, lives: Lifetimes, role: str) -> Column:
    """Return for each block whether a tensor in it had a role: bool.

    Args:
        snapshot: The snapshot.
        device: The device.
        lives: The device's blocks.
        role: "argument", "result" or "autograd_grad", as in the file.
    """
    is_used = np.zeros(len(lives), bool)
    uses = [use[:2] for use in tensor_uses(snapshot, device) if use.role == role]
    if not uses or not len(lives):
        return is_used
    event, address = np.array(uses, np.int64).T
    # The block is the one that was allocated last at the address, if it was not freed by then.
    known, number = np.unique(address, return_inverse=True)
    rows = np.flatnonzero(np.isin(lives.address, known))
    which = np.searchsorted(known, lives.address[rows])
    span = np.int64(len(snapshot.traces[device]) + 2)
    begin = which * span + lives.alloc_event[rows] + 1
    order = np.argsort(begin, kind="stable")
    rows, which, begin = rows[order], which[order], begin[order]
    found = np.searchsorted(begin, number * span + np.minimum(event, span - 2), side="right") - 1
    is_there = found >= 0
    found, event, number = found[is_there], event[is_there], number[is_there]
    is_there = (which[found] == number) & (lives.free_requested_event[rows[found]] >= event)
    is_used[rows[found[is_there]]] = True
    return is_used
