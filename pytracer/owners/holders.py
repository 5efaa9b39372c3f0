"""Who holds memory that nothing else explains: the Python objects that keep its tensors.

The core looks at all objects at once, keeps none, and returns names and numbers.
"""

import contextlib
import gc
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any
from weakref import ref

import pytracer
from pytracer import _core
from pytracer.owners.registry import model_classes

MAX_TENSORS = 20_000
"""For how many tensors holders are searched at most: those that keep graphs, then the largest."""

MAX_SECONDS = 0.3
"""The processor time that the search takes at most, or a fifth of the time by the clock.

No other thread runs Python meanwhile.
"""

MAX_NODES = 8_000
"""How many nodes of connected graphs, and of how many tensors, are read at most."""

MAX_GRAPH_SECONDS = 0.2
"""The same for the time in which graphs are read."""

LEAST_PART = 0.001
"""The part of a device's memory that must have no owner, or 1 MiB, for a search during a run."""

_MAX_LOOKED = 100_000  # how many tensors are looked at, the youngest
IS_GARBAGE = ", which gc.collect() would free"  # csrc/holders/search.h
_NO_TENSOR = "no Python tensor"  # csrc/holders/roots.h
_ANY_ITEM = re.compile(r"\[[^]]*\]")

Begin = tuple[int, int]
"""Where the storage of a tensor begins: the device, -1 for the CPU, and the address."""


class HoldersNow:
    """The holders of tensors at one moment.

    In the memory `owned` (address, bytes, device), only graphs are looked for. If `session`
    knows all live blocks, and nearly all memory has an owner, nothing is looked for without
    `roots`: models and optimizers, and of each whether the list or dict that keeps it is wanted.
    `models` are those of parameters that no optimizer has.

    Attributes:
        saved: What graphs keep without an owner: address, bytes, device, name; the name ends
            with the model if only gradients need it that no optimizer uses.
        found: The holder by the storage: "losses[41] of main()"; "": nobody was found.
        of_roots: By the ids of models and optimizers those that are garbage, or in such a list.
        unsearched: For how many tensors there was no time, or no room.
        unread: How many nodes of graphs could not be read.
        likely: What has memory that no Python tensor has.
        has_all: Whether a storage that is not in `found` has no tensor in Python.
        models: All modules and optimizers, unless nothing was looked for: ids and references.
    """

    def __init__(
        self,
        torch: Any,
        owned: Iterable[tuple[int, int, int]],
        devices: Collection[int],
        session: _core.Session | None,
        roots: "dict[int, tuple[ref[Any], bool]]",
        graph_passes: int | None,
        models: dict[Begin, str],
        patience: float = 1,
    ) -> None:
        hidden, unnamed = ([f"{Path(str(each.__file__)).parent}/"] for each in (pytracer, torch))
        checkpoint = sys.modules.get("torch.utils.checkpoint")
        now = _core.kept_tensors(
            torch,
            (getattr(checkpoint, "_CheckpointFrame", None), *model_classes()),
            [*owned],
            {*devices},
            session,
            _allocated_bytes(torch, devices),
            graph_passes,
            MAX_NODES,
            MAX_GRAPH_SECONDS * patience,
            int(MAX_TENSORS * patience),
            _MAX_LOOKED,
            bool(gc.get_freeze_count()),  # the collector does not know those objects
            MAX_SECONDS * patience,
            hidden,
            unnamed,
            [reference for reference, _ in roots.values()],
            models,
            LEAST_PART if patience == 1 else 0.0,
        )
        self.saved = now["saved"]
        self.unsearched, self.unread = now["unsearched"], now["unread"]
        self.models = now["modules"], now["optimizers"]
        self.has_all = now["has_all"] and now["has_all_graphs"] and not now["unread"]
        texts, self.found = now["tensors"], now["holders"]
        later = now["later"]
        for begin, tensor in now["graphs"]:
            # Nobody may hold the tensor itself, but one that was computed from it.
            path = []
            while not texts.get(tensor) and tensor in later:
                path.append(tensor)
                tensor = later.pop(tensor)
            text = texts.get(tensor, "")
            texts.update(dict.fromkeys(path, text))
            # The tensor itself may be in a variable, too. Another graph may keep what garbage does.
            own = self.found.get(begin, "")
            self.found[begin] = text or ("" if own.endswith(IS_GARBAGE) else own)
        self.of_roots = {
            number: text
            for number, text in now["roots"].items()
            if text.endswith(IS_GARBAGE) or (roots[number][1] and "[" in text)
        }
        self.likely = _likely_keeper(now["futures"], now["likely"])
        for begin, text in self.found.items():
            if text == _NO_TENSOR:  # or a graph that was not read has it
                self.found[begin] = self.likely if now["has_all_graphs"] else ""


def _allocated_bytes(torch: Any, devices: Collection[int]) -> dict[int, int]:
    """Return how many bytes GPUs have allocated, as torch counts them; {}: nobody may ask.

    torch_npu ends the process if it is asked for those of a pluggable allocator.
    """
    with contextlib.suppress(Exception):  # torch is not initialised, or is another one
        if "torch_npu" not in sys.modules:
            stats = {each: torch.cuda.memory_stats(each) for each in devices if each >= 0}
            return {each: found["requested_bytes.all.current"] for each, found in stats.items()}
    return {}


def _likely_keeper(futures: list[str], keeper: str) -> str:
    """Return what has memory that no Python tensor has.

    Args:
        futures: Who holds the futures of torch.
        keeper: What has it, if nothing of these.
    """
    if futures:
        ((keeper, _),) = Counter(_ANY_ITEM.sub("[…]", text) for text in futures).most_common(1)
    # What torch.multiprocessing has sent to a process is kept until that process drops it.
    reductions = sys.modules.get("torch.multiprocessing.reductions")
    sent = list(getattr(reductions, "shared_cache", {}).items())
    # What was received has a pair as its key, what is in a file its path.
    if any(
        isinstance(key, bytes) and not key.startswith(b"/") and storage.expired()
        for key, storage in sent
    ):
        keeper = "a process that received it"
    return f"{_NO_TENSOR}, perhaps {keeper}" if keeper else _NO_TENSOR
