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
        self,
        torch: Any,
        tensors: list[Any],
        is_wanted: Callable[[Begin], bool],
        graphs: Collection[int],
    ) -> None:
        """Search the holders.

        Args:
            torch: The module.
            tensors: All tensors, of which those without a holder that is wanted are dropped. No
                other object of pytracer may refer to them, because references are counted.
            is_wanted: Whether the holder of a storage is wanted.
            graphs: The ids of the tensors that keep graphs of autograd.
        """
        chosen, self.is_complete = _choose(torch, tensors, is_wanted, graphs)
        hidden = [f"{Path(str(module.__file__)).parent}/" for module in (pytracer, torch)]
        texts = _core.holders_of(tensors, hidden, MAX_SECONDS)
        self.found: dict[Begin, str] = {}
        self.of_tensors: dict[int, str] = {}
        for (begin, tensor), text in zip(chosen, texts, strict=True):
            self.found[begin] = self.found.get(begin) or text
            self.of_tensors[tensor] = text


def _choose(
    torch: Any, tensors: list[Any], is_wanted: Callable[[Begin], bool], graphs: Collection[int]
) -> tuple[list[tuple[Begin, int]], bool]:
    """Drop other tensors; return the storages and ids of the rest, and whether none had no room."""
    sizes: list[tuple[bool, int, int, Begin]] = []
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
    tensors[:] = [tensors[number] for _, _, number, _ in chosen]
    storages = [begin for *_, begin in chosen]
    return list(zip(storages, map(id, tensors), strict=True)), len(chosen) == len(sizes)
