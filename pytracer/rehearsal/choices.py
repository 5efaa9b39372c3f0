"""Choices that no simulated device computes: tokens are spread evenly over experts."""

import ctypes
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytracer.rehearsal.plan import Report

_MOST_THINGS = 512  # of which experts may be chosen; words and classes are more


def spread_evenly(
    torch: ModuleType, backend: str, report: Report
) -> Callable[[int, int, int], bool]:
    """Have masks and counts be those of an even choice, which is what `topk` made last.

    A row, such as a token, gets some of several things, such as experts. Return a function that
    answers a copy from the device, if it knows the values.
    """
    import numpy as np

    aten = torch.ops.aten
    shares: dict[int, int] = {}  # how many elements are true of a mask that has so many
    rows_of = np.zeros(0, np.int64)  # the number of rows of each thing
    assumed = ""
    things_of: dict[object, Any] = {}  # tensors with the indices of all things

    def topk(scores: Any, each: int, dim: int = -1, *rest: bool) -> Any:
        nonlocal rows_of, assumed
        if scores.dim() > 1 and 0 < each < scores.shape[dim] <= _MOST_THINGS:
            things, all_of_them = scores.shape[dim], scores.numel() // scores.shape[dim] * each
            rows_of = np.diff(np.arange(things + 1) * all_of_them // things)
            shares.clear()
            shares.update(dict.fromkeys((scores.numel(), scores.numel() * each), all_of_them))
            shares.update(dict.fromkeys((all_of_them // each, all_of_them), int(rows_of.max())))
            shares[things] = things
            assumed = f"which {each} of {things} experts each token gets (spread evenly here)"
        indices = scores.new_empty(0, dtype=torch.int64)
        found = {"values": scores.new_empty(0), "indices": indices}
        return aten.topk.values(scores, each, dim, *rest, **found)

    def note() -> None:
        report.unknown += [assumed] * (assumed not in report.unknown)

    def nonzero(mask: Any) -> Any:
        count = shares.get(mask.numel())
        if count is None:
            return aten.nonzero.out(mask, out=mask.new_empty(0, dtype=torch.int64))
        note()
        indices = mask.new_empty((mask.dim(), count), dtype=torch.int64).T
        if mask.shape == rows_of.shape:
            return things_of.setdefault((mask.device, count), indices)
        return indices

    def answer(destination: int, source: int, size_bytes: int) -> bool:
        known = [(each.data_ptr(), np.arange(len(each))) for each in things_of.values()]
        if size_bytes == rows_of.nbytes > rows_of.itemsize:
            note()
            known.append((source, rows_of))
        for start, values in known:
            if 0 <= source - start <= values.nbytes - size_bytes:
                ctypes.memmove(destination, values.tobytes()[source - start :], size_bytes)
                return True
        return False

    functions = {"topk": topk, "nonzero": nonzero}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is another one already
        for name, function in functions.items():
            torch.library.impl(f"aten::{name}", backend, function)
    return answer
