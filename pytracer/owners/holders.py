"""Who holds memory that nothing else explains: the Python objects that keep its tensors."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytracer
from pytracer import _core
from pytracer.owners.tensors import memory_of

MAX_TENSORS = 10_000
"""For how many tensors holders are searched at most: those that keep graphs, then the largest."""

MAX_SECONDS = 0.3  # how long the search takes at most, in which no other thread runs Python
_OURS = f"{Path(pytracer.__file__).parent}/"

Begin = tuple[int, int]
"""Where the storage of a tensor begins: the device, -1 for the CPU, and the address."""


class HoldersNow:
    """The holders of tensors at one moment.

    Attributes:
        found: The holder by the storage: "losses[41] of main()"; "": nobody was found.
        of_tensors: The same by the id of the tensor.
        is_complete: Whether a storage that is not in `found` has no tensor in Python.
    """

    def __init__(
        self, torch: Any, is_wanted: Callable[[Begin], bool], graphs: Collection[int]
    ) -> None:
        """Search the holders.

        Args:
            torch: The module.
            is_wanted: Whether the holder of a storage is wanted.
            graphs: The ids of the tensors that keep graphs of autograd.
        """
        chosen, tensors, self.is_complete = _chosen(torch, is_wanted, graphs)
        # No other object may refer to the tensors, because references are counted.
        texts = _core.holders_of(tensors, _OURS, MAX_SECONDS)
        self.found: dict[Begin, str] = {}
        self.of_tensors: dict[int, str] = {}
        for (begin, tensor), text in zip(chosen, texts, strict=True):
            self.found[begin] = self.found.get(begin) or text
            self.of_tensors[tensor] = text


def _chosen(
    torch: Any, is_wanted: Callable[[Begin], bool], graphs: Collection[int]
) -> tuple[list[tuple[Begin, int]], list[Any], bool]:
    """Return the storages and the ids of the chosen tensors, these, and whether they are all."""
    sizes: list[tuple[bool, int, int, Begin]] = []
    tensors = _core.live_instances(torch.Tensor)
    for number, tensor in enumerate(tensors):
        try:
            for memory in memory_of(torch, tensor):
                begin = memory.device, memory.storage_address
                if id(tensor) in graphs or is_wanted(begin):
                    sizes.append((id(tensor) not in graphs, -memory.size_bytes, number, begin))
        except Exception:  # code of the program: subclasses of tensors
            continue
    sizes.sort()
    chosen = sizes[:MAX_TENSORS]
    return (
        [(begin, id(tensors[number])) for _, _, number, begin in chosen],
        [tensors[number] for _, _, number, _ in chosen],
        len(chosen) == len(sizes),
    )
