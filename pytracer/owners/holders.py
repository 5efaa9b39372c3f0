"""Who holds memory that nothing else explains: the Python objects that keep its tensors."""

import gc
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import pytracer
from pytracer import _core
from pytracer.owners.container_bounds import with_bounds
from pytracer.owners.tensors import memory_of

MAX_TENSORS = 20_000
"""For how many tensors holders are searched at most: those that keep graphs, then the largest."""

MAX_SECONDS = 0.3  # how long the search takes at most, in which no other thread runs Python

_MAX_LOOKED = 100_000  # how many tensors are looked at, the youngest
IS_GARBAGE = ", which gc.collect() would free"  # csrc/holders/search.cpp
_TEMPORARY = "a temporary value"  # code that runs has it: csrc/holders/search.cpp
_NO_TENSOR = "no Python tensor"
_RECEIVED = f"{_NO_TENSOR}, perhaps a process that received it"

Begin = tuple[int, int]
"""Where the storage of a tensor begins: the device, -1 for the CPU, and the address."""


class HoldersNow:
    """The holders of tensors at one moment.

    Of `tensors`, which are all, those without a holder that is wanted are dropped. No other object
    of pytracer may refer to them, because references are counted. `graphs` are the ids of tensors
    that keep graphs of autograd. `roots` returns models and optimizers, and of each whether the
    list or dict that keeps it is wanted, too.

    Attributes:
        found: The holder by the storage: "losses[41] of main()"; "": nobody was found.
        of_tensors: The same by the id of the tensor.
        of_roots: By the ids of models and optimizers those that are garbage, or in such a list.
        is_complete: Whether a storage that is not in `found` has no tensor in Python.
    """

    def __init__(
        self,
        torch: Any,
        tensors: list[Any],
        is_wanted: Callable[[Begin], bool],
        graphs: Collection[int],
        roots: Callable[[], Iterable[tuple[Any, bool]]],
        patience: float = 1,
    ) -> None:
        chosen, self.is_complete = _choose(
            torch, tensors, is_wanted, graphs, int(MAX_TENSORS * patience)
        )
        hidden, unnamed = ([f"{Path(str(each.__file__)).parent}/"] for each in (pytracer, torch))
        first_root, wanted = len(tensors), []
        for root, is_list_wanted in roots():
            tensors.append(root)
            wanted.append((id(root), is_list_wanted))
            del root
        texts = _core.holders_of(tensors, hidden, unnamed, MAX_SECONDS * patience)
        # Without its bound, a container is accused of a leak.
        texts = with_bounds(texts, hidden + unnamed, MAX_SECONDS * patience / 2)
        self.of_roots = {
            number: text
            for (number, is_list_wanted), text in zip(wanted, texts[first_root:], strict=True)
            if text.endswith(IS_GARBAGE) or (is_list_wanted and "[" in text)
        }
        del tensors[first_root:], texts[first_root:]
        self.found: dict[Begin, str] = {}
        self.of_tensors: dict[int, str] = {}
        garbage: dict[Begin, tuple[str, list[Any]]] = {}
        temporary: set[Begin] = set()
        for (begin, number), text, tensor in zip(chosen, texts, tensors, strict=True):
            if text.endswith(IS_GARBAGE):
                garbage.setdefault(begin, (text, []))[1].append(tensor)
                self.found.setdefault(begin, "")
            elif text == _TEMPORARY:
                temporary.add(begin)
                self.of_tensors[number] = ""
            else:
                self.found[begin] = self.found.get(begin) or text
                self.of_tensors[number] = text
        for begin, (text, kept) in garbage.items():
            if not self.found[begin] and _are_all(torch, kept):
                self.found[begin] = text
        for begin in temporary:
            self.found[begin] = self.found.get(begin) or _TEMPORARY


def without_tensor() -> str:
    """Return what has memory that no Python tensor has.

    What torch.multiprocessing has sent to a process is kept until that process drops it.
    """
    reductions = sys.modules.get("torch.multiprocessing.reductions")
    sent = list(getattr(reductions, "shared_cache", {}).items())
    # What was received has a pair as its key, what is in a file its path.
    is_sent = any(
        isinstance(key, bytes) and not key.startswith(b"/") and storage.expired()
        for key, storage in sent
    )
    return _RECEIVED if is_sent else _NO_TENSOR


def _are_all(torch: Any, tensors: list[Any]) -> bool:
    """Return whether nothing but these tensors has the memory of their storage."""
    uses = getattr(torch._C.TensorBase, "_use_count", None)
    storage_uses = getattr(torch._C, "_storage_Use_Count", None)
    if uses is None or storage_uses is None:
        return False
    try:
        storage = tensors[0].untyped_storage()  # which is one more use
        # References of this variable, of the question, and of torch.
        is_alone = sys.getrefcount(storage) <= 3
        is_alone = is_alone and storage_uses(storage._cdata) == len(tensors) + 1
        return is_alone and all(uses(tensor) == 1 for tensor in tensors)
    except Exception:  # code of the program: subclasses of tensors
        return False


def _choose(
    torch: Any,
    tensors: list[Any],
    is_wanted: Callable[[Begin], bool],
    graphs: Collection[int],
    most: int,
) -> tuple[list[tuple[Begin, int]], bool]:
    """Drop other tensors; return the storages and ids of the rest, and whether these are all."""
    sizes: list[tuple[bool, int, int, Begin]] = []
    # Objects that gc.freeze() has hidden are not found.
    are_all = len(tensors) <= _MAX_LOOKED and not gc.get_freeze_count()
    del tensors[:-_MAX_LOOKED]
    for number, tensor in enumerate(tensors):
        try:
            parts = list(memory_of(torch, tensor))
            is_fake = type(tensor).__module__.startswith("torch._subclasses.")  # of torch.compile
            are_all = are_all and bool(parts or tensor.is_meta or is_fake or not tensor.numel())
        except Exception:  # code of the program: subclasses of tensors
            are_all = False
            continue
        for memory in parts:
            begin = memory.device, memory.storage_address
            if id(tensor) in graphs or is_wanted(begin):
                sizes.append((id(tensor) not in graphs, -memory.size_bytes, number, begin))
    sizes.sort()
    are_all = are_all and len(sizes) <= most
    del sizes[most:]
    tensors[:] = [tensors[number] for _, _, number, _ in sizes]
    storages = [begin for *_, begin in sizes]
    return list(zip(storages, map(id, tensors), strict=True)), are_all
