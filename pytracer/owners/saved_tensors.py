"""Which memory autograd keeps now, for backward passes to come.

The nodes of all graphs are found from the tensors and the functions that exist, and from the node
that runs. Only what a node refers to is read (`_raw_saved_…` and its `data`): asking it for the
saved tensor itself would run recomputations and hooks of the program, allocate memory, and may make
the backward pass fail.
"""

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from pytracer.owners.tensors import tensors_in

MAX_NODES = 8_000
"""How many nodes of connected graphs are read at most, and how many tensors are asked for theirs.

torch 2.13 keeps the Python object of each node that was asked for; freeing a chain of 42,000 of
them overflows the stack.
"""

MAX_SECONDS = 0.2  # the processor time in which graphs are read at most
_RAW = "_raw_saved_"
_attributes_by_type: dict[type, tuple[str, ...]] = {}


class _Connected:
    """How many nodes the graphs have that share some: the graphs of one tensor each, by its id."""

    def __init__(self) -> None:
        self._joined: dict[int, int] = {}
        self._nodes: dict[int, int] = {}

    def count(self, graph: int) -> int:
        """Count one more node, and return how many the graphs have that are connected with one."""
        first = self._first(graph)
        self._nodes[first] = self._nodes.get(first, 0) + 1
        return self._nodes[first]

    def join(self, one: int, other: int) -> int:
        """Take note that two graphs are connected; return how many nodes they have together."""
        one, other = self._first(one), self._first(other)
        if one != other:
            self._joined[other] = one
            self._nodes[one] = self._nodes.get(one, 0) + self._nodes.pop(other, 0)
        return self._nodes.get(one, 0)

    def _first(self, graph: int) -> int:
        while (before := self._joined.get(graph, graph)) != graph:
            self._joined[graph] = graph = self._joined.get(before, before)
        return graph


class SavedTensors:
    """The tensors that graphs keep at one moment. `patience` is a factor of `MAX_SECONDS`.

    Attributes:
        unread: How many nodes, and regions of checkpoints, could not be read.
        is_complete: Whether neither bound was reached.
        kinds: The types of the objects that lead to the nodes.
        later: Tensors that were computed from others, by the ids of the others: they keep what
            these keep.
    """

    def __init__(self, torch: Any, patience: float = 1) -> None:
        self.unread = 0
        self.is_complete = True
        self.later: dict[int, int] = {}
        self._torch = torch
        checkpoint = sys.modules.get("torch.utils.checkpoint")
        frame = getattr(checkpoint, "_CheckpointFrame", None)
        self._checkpoint_frames = (frame,) if frame else ()
        self.kinds = (torch.Tensor, torch._C._FunctionBase, *self._checkpoint_frames)
        self._end = time.thread_time() + MAX_SECONDS * patience

    def found(self, things: Iterable[Any]) -> Iterator[tuple[str, Any, int]]:
        """Yield names such as "MmBackward0.self", and the tensors; one tensor more than once.

        The third is the id of a tensor that keeps the graph; 0: none is known. `things` are all
        objects of the types `kinds`.

        No other thread may run a backward pass meanwhile, and the caller must have switched off
        functions of the program that intercept those of tensors.
        """
        torch = self._torch
        waiting: list[tuple[Any, int]] = [(torch._C._current_autograd_node(), 0)]
        frames = []
        made_by: dict[int, int] = {}  # tensors by nodes, both by id
        for thing in things:
            if issubclass(type(thing), self._checkpoint_frames):
                frames.append(thing)
            elif len(waiting) >= MAX_NODES:  # asking a tensor makes an object of its node too
                self.is_complete = False
            elif issubclass(type(thing), torch.Tensor):
                if (node := self._node_of(thing)) is None:
                    continue
                if (first := made_by.setdefault(id(node), id(thing))) == id(thing):
                    waiting.append((node, first))
                else:  # another view of the same tensor
                    self.later[id(thing)] = first
            else:
                waiting.append((thing, 0))
        # By id: the node, which stays alive meanwhile, who keeps it, and whether others follow. One
        # without others ends the graphs, as that of a parameter does.
        seen: dict[int, tuple[Any, int, bool]] = {}
        connected = _Connected()
        while waiting:
            node, kept_by = waiting.pop()
            if node is None:
                continue
            if (earlier := made_by.get(id(node), kept_by)) != kept_by:
                self.later[earlier] = kept_by
            known = seen.get(id(node))
            if known is None:
                nodes = connected.count(kept_by)
            else:
                nodes = connected.join(known[1], kept_by) if known[2] else 0
            if nodes > MAX_NODES or time.thread_time() > self._end:
                self.is_complete = False
                break
            if known is not None:
                continue
            following: tuple[tuple[Any, int], ...] = ()
            with contextlib.suppress(RuntimeError):  # a function that is in no graph (any more)
                following = node.next_functions
            waiting.extend((each, kept_by) for each, _ in following)
            seen[id(node)] = node, kept_by, bool(following)
            try:
                for name, tensor in self._of_node(node):
                    yield name, tensor, kept_by
            except Exception:  # attributes of a function of the program
                self.unread += 1
        for thing in frames:
            for name, tensor in self._of_checkpoint(thing):
                yield name, tensor, 0

    def _node_of(self, tensor: Any) -> Any:
        """Return the node that made a tensor; of a view, the one that made what it is a view of.

        Asking a view itself makes a new node, if its memory was changed in place.
        """
        try:
            return (tensor._base if tensor._is_view() else tensor).grad_fn
        except Exception:  # a tensor inside of torch.func's functions
            return None

    def _of_node(self, node: Any) -> Iterator[tuple[str, Any]]:
        kind = type(node)
        attributes = _attributes_by_type.get(kind)
        if attributes is None:
            attributes = tuple(name for name in dir(kind) if name.startswith(_RAW))
            _attributes_by_type[kind] = attributes
        for attribute in attributes:
            try:
                value = getattr(node, attribute)
            except RuntimeError:  # the node has released its tensors
                continue
            name = f"{kind.__name__}.{attribute.removeprefix(_RAW)}"
            for saved in value if isinstance(value, tuple | list) else (value,):
                if saved is not None:
                    yield from self._of_saved(name, saved)
        if isinstance(node, self._torch._C._FunctionBase):
            for key, value in list(getattr(node, "__dict__", {}).items()):
                for tensor in tensors_in(self._torch, value):
                    yield f"{kind.__name__}.{key}", tensor

    def _of_saved(self, name: str, saved: Any) -> Iterator[tuple[str, Any]]:
        """Yield what is kept: a tensor, or the tensors in what a hook of the program made of it."""
        try:
            kept = saved.data
        except Exception:
            self.unread += 1
            return
        for tensor in tensors_in(self._torch, kept):
            yield name, tensor

    def _of_checkpoint(self, frame: Any) -> Iterator[tuple[str, Any]]:
        """Yield the arguments of a checkpointed region, and what was computed again by now."""
        try:
            arguments = [*getattr(frame, "saved_args", ())]
            computed = [*getattr(frame, "recomputed", {}).values()]
        except Exception:
            self.unread += 1
            return
        for saved in arguments:
            if hasattr(saved, "unpack_hook"):
                yield from self._of_saved("checkpoint.argument", saved)
        for tensors in computed:
            for tensor in list(tensors.values()):
                if isinstance(tensor, self._torch.Tensor):
                    yield "checkpoint.recomputed", tensor
