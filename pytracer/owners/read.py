"""Reads which tensors, workspaces of cuBLAS and graphs of autograd own memory now."""

import contextlib
import gc
import os
import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

from pytracer import _core
from pytracer.log import warn_once
from pytracer.owners.gradients import GradientAccess
from pytracer.owners.holders import IS_GARBAGE, Begin, HoldersNow, without_tensor
from pytracer.owners.names import named_tensors, outermost
from pytracer.owners.registry import REGISTRY
from pytracer.owners.saved_tensors import SavedTensors
from pytracer.owners.tensors import memory_of, tensors_in

MAX_OWNERS = 200_000  # how many owners are read at most; later ones are counted
_MOST_ROOTS = 1000  # of how many models and optimizers the holders are searched at most
_SEVERAL = 3  # so many models of one class show that they are kept, as in a list
Owner = tuple[int, int, int, int, int, str]
"""Address, bytes, device, indices in `_core.CATEGORIES` and `_core.CATEGORY_RULES`, name."""

_PARAMETER, _BUFFER, _GRADIENT, _STATE, _WORKSPACE, _ACTIVATION = map(
    _core.CATEGORIES.index,
    ("parameter", "buffer", "gradient", "optimizer_state", "workspace", "activation"),
)
_MODULE, _OPTIMIZER, _GRAD, _CUBLAS, _SAVED = map(
    _core.CATEGORY_RULES.index, ("module", "optimizer", "grad", "cublas", "saved_by_node")
)


class OwnersNow:
    """The owners of memory at one moment, on `devices`, of which those `used` have had an event.

    Graphs and holders may take `patience` times as long as usual. Reading never raises.

    Attributes:
        owners: The owners; of those with the same memory, the one that names it first.
        unread_gradients: Of how many parameters the gradient may not be read on this thread.
        unread: How many owners could not be read, or are beyond `MAX_OWNERS`.
        holders: Addresses and devices of storages without an owner, or that a graph keeps, and who
            holds them; "": nobody was found.
        unheld: What has the memory without an owner or a holder; "": perhaps a Python tensor.
    """

    def __init__(
        self, devices: Collection[int], used: Collection[int] = (), patience: float = 1
    ) -> None:
        self.owners: list[Owner] = []
        self.unread = 0
        self.unread_gradients = 0
        self.holders: list[tuple[int, int, str]] = []
        self.unheld = ""
        self._of_roots: dict[int, list[Begin]] = {}  # by the id of a model or an optimizer
        self._graphs: dict[Begin, int] = {}  # the id of the tensor that keeps a saved one
        self._later: dict[int, int] = {}
        self._has_all_graphs = False
        self._devices, self._used, self._patience = devices, used, patience
        self._torch: Any = sys.modules.get("torch")
        if self._torch is None:
            return
        self._attempt(REGISTRY.search)
        # Classes and modes of the program that intercept functions of tensors are not asked.
        with self._torch._C.DisableTorchFunction():
            may_read_graphs = self._read()
            self._attempt(self._workspaces)
            # Meanwhile tensors that other threads drop stay alive: that is worth it when memory has
            # run out.
            if may_read_graphs or self._patience > 1:
                self._attempt(self._graphs_and_holders, may_read_graphs)

    def _read(self) -> bool:
        """Read what models and optimizers have; return whether graphs may be read, too."""
        # By id, with the id of the model or the optimizer; the tensors stay alive meanwhile.
        parameters: dict[int, tuple[str, Any, int]] = {}
        for name, parameter, root in self._of_modules():
            parameters.setdefault(id(parameter), (name, parameter, root))
        optimizers = REGISTRY.optimizers()
        access = GradientAccess(self._torch, REGISTRY)
        for optimizer in optimizers:
            self._attempt(self._parameters_of, optimizer, parameters, access)
        for name, parameter, root in parameters.values():
            self._attempt(self._gradient_of, name, parameter, root, access)
        for optimizer in optimizers:
            self._attempt(self._state_of, optimizer, parameters)
        return access.may_read_graphs(self._used)

    def _graphs_and_holders(self, may_read_graphs: bool) -> None:
        """Read what graphs keep, unless another thread may change them, and who holds tensors.

        The list refers to all tensors meanwhile: those that other threads drop would die later.
        """
        tensor = self._torch.Tensor
        if may_read_graphs:
            saved = SavedTensors(self._torch, self._patience)
            things = _core.live_instances(*saved.kinds)
            self._attempt(self._saved, saved, things)
            things[:] = [thing for thing in things if issubclass(type(thing), tensor)]
        else:
            things = _core.live_instances(tensor)
        self._attempt(self._hold, things)

    def _saved(self, saved: SavedTensors, things: list[Any]) -> None:
        """Add the memory that graphs keep, unless a tensor with an owner has a part of it.

        The weights of a layer are kept too, and all parameters of FSDP1 are in one storage.
        """
        begins = sorted((device, address) for address, _, device, *_ in self.owners)
        known = set()
        for name, tensor, kept_by in saved.found(things):
            for memory in memory_of(self._torch, tensor):
                begin = memory.device, memory.storage_address
                if begin in known:
                    continue
                known.add(begin)
                place = bisect_left(begins, begin)
                size_bytes = memory.part.untyped_storage().nbytes()
                end = memory.device, memory.storage_address + size_bytes
                if place == len(begins) or begins[place] >= end:
                    owner = memory.storage_address, size_bytes, memory.device
                    self._add_owner((*owner, _ACTIVATION, _SAVED, name))
                    self._graphs[begin] = kept_by
        self.unread += saved.unread + (not saved.is_complete)
        self._has_all_graphs, self._later = saved.is_complete, saved.later

    def _hold(self, tensors: list[Any]) -> None:
        """Find who holds what has no owner, and the graphs of autograd."""
        named = sorted((device, address) for address, _, device, *_ in self.owners)
        ends = {(device, address): address + size for address, size, device, *_ in self.owners}

        def is_wanted(begin: Begin) -> bool:
            """Return whether no owner is where a storage begins."""
            place = bisect_right(named, begin) - 1
            is_in = place >= 0 and named[place][0] == begin[0]
            return begin[0] in self._devices and not (is_in and begin[1] < ends[named[place]])

        graphs = {*self._graphs.values(), *self._later.values()}
        now = HoldersNow(self._torch, tensors, is_wanted, graphs, self._roots, self._patience)
        texts = now.of_tensors
        for begin, tensor in self._graphs.items():
            # Nobody may hold the tensor itself, but one that was computed from it.
            path = []
            while not texts.get(tensor) and tensor in self._later:
                path.append(tensor)
                tensor = self._later.pop(tensor)
            text = texts.get(tensor, "")
            texts.update(dict.fromkeys(path, text))
            # The tensor itself may be in a variable, too. Another graph may keep what garbage does.
            own = now.found.get(begin, "")
            now.found[begin] = text or ("" if own.endswith(IS_GARBAGE) else own)
        for root, text in now.of_roots.items():
            now.found.update(dict.fromkeys(self._of_roots[root], text))
        self.holders = [(address, device, text) for (device, address), text in now.found.items()]
        if now.is_complete and self._has_all_graphs and not self.unread:
            self.unheld = without_tensor()

    def _roots(self) -> Iterator[tuple[Any, bool]]:
        """Yield the models and optimizers of a class that has several, and whether it has many.

        A model that is still used is in a variable, which says nothing; one of several may be kept.
        """
        roots = [*outermost(REGISTRY.modules()), *REGISTRY.optimizers()]
        roots = [root for root in roots if id(root) in self._of_roots][-_MOST_ROOTS:]
        counts = Counter(map(type, roots))
        yield from (
            (root, counts[type(root)] >= _SEVERAL) for root in roots if counts[type(root)] > 1
        )

    def _attempt(self, read: Any, *arguments: Any) -> None:
        try:
            read(*arguments)
        except Exception as error:  # code of the program: subclasses of tensors and of optimizers
            self.unread += 1
            warn_once(
                f"some memory has no name: reading a tensor failed with {error!r}. The job is not "
                "affected",
                f"owners: {type(error)}",
            )

    def _add(self, tensor: Any, category: int, rule: int, name: str, root: int) -> None:
        """Add a tensor of a model or an optimizer with this id."""
        for memory in memory_of(self._torch, tensor):
            self._add_owner((*memory[:3], category, rule, name))
            begin = memory.device, memory[0]
            self._of_roots.setdefault(root, []).append(begin)

    def _add_owner(self, owner: Owner) -> None:
        if owner[2] not in self._devices:
            return
        if len(self.owners) < MAX_OWNERS:
            self.owners.append(owner)
        else:
            self.unread += 1

    def _workspaces(self) -> None:
        # Before torch 2.13, torch does not keep their sizes. A workspace is all of a block, so its
        # first byte names the block.
        found, unread = _core.workspaces()
        self.unread += unread
        for address, device, is_lt in found:
            name = "cuBLASLt workspace" if is_lt else "cuBLAS workspace"
            self._add_owner((address, 1, device, _WORKSPACE, _CUBLAS, name))

    def _of_modules(self) -> Iterator[tuple[str, Any, int]]:
        """Add what modules have; yield the parameters, and the ids of the outermost modules."""
        named: list[Any] = []
        self._attempt(lambda: named.extend(named_tensors(REGISTRY.modules())))
        names: dict[int, str] = {}
        for name, tensor, is_buffer, _ in named:
            if not is_buffer:
                names.setdefault(id(tensor), name)
        self._attempt(
            REGISTRY.names.remember,
            lambda parameter: names.get(id(parameter), ""),
            REGISTRY.optimizers(),
        )
        for name, tensor, is_buffer, root in named:
            category = _BUFFER if is_buffer else _PARAMETER
            self._attempt(self._add, tensor, category, _MODULE, name, root)
            if not is_buffer:
                yield name, tensor, root

    def _parameters_of(
        self, optimizer: Any, parameters: dict[int, tuple[str, Any, int]], access: GradientAccess
    ) -> None:
        """Add the parameters that no module has."""
        kind = type(optimizer).__name__
        thread = REGISTRY.stepping_thread(optimizer)
        for number, group in enumerate(list(optimizer.param_groups)):
            of_group = list(group["params"])
            access.note_optimizer(of_group, thread)
            for position, parameter in enumerate(of_group):
                if id(parameter) not in parameters:
                    name = REGISTRY.names.name_of(optimizer, (number, position), parameter)
                    name = name or f"{kind} group {number} parameter {position}"
                    root = id(optimizer)
                    parameters[id(parameter)] = (name, parameter, root)
                    self._attempt(self._add, parameter, _PARAMETER, _OPTIMIZER, name, root)

    def _gradient_of(self, name: str, parameter: Any, root: int, access: GradientAccess) -> None:
        if not access.may_read(parameter):
            self.unread_gradients += parameter.requires_grad
        elif parameter.is_leaf and (gradient := parameter.grad) is not None:
            self._add(gradient, _GRADIENT, _GRAD, f"grad of {name}", root)
        # Megatron's gradient in full precision. A property of this name is not asked, because
        # Megatron-FSDP's allocates the gradient.
        main_grad = getattr(parameter, "__dict__", {}).get("main_grad")
        if isinstance(main_grad, self._torch.Tensor):
            self._add(main_grad, _GRADIENT, _GRAD, f"main_grad of {name}", root)

    def _state_of(self, optimizer: Any, parameters: dict[int, tuple[str, Any, int]]) -> None:
        kind, root = type(optimizer).__name__, id(optimizer)
        for key, state in list(optimizer.state.items()):
            owner, *_ = parameters.get(id(key), (kind,))
            values = list(state.items()) if isinstance(state, dict) else [(key, state)]
            for name, value in values:
                text = f"{name if isinstance(name, str | int) else 'state'} of {owner}"
                for tensor in tensors_in(self._torch, value):
                    self._attempt(self._add, tensor, _STATE, _OPTIMIZER, text, root)
        for number, group in enumerate(list(optimizer.param_groups)):
            for name, value in list(group.items()):
                if name != "params":  # such as a learning rate that is a tensor
                    for tensor in tensors_in(self._torch, value):
                        named = f"{name} of {kind} group {number}"
                        self._attempt(self._add, tensor, _STATE, _OPTIMIZER, named, root)


_pausing = 0
_threshold = gc.get_threshold()  # of the program, while the collector is paused


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Keep Python's collector from running by itself: it would free garbage that a file names.

    Whether the program has switched it off, also meanwhile, stays as it is.
    """
    global _pausing, _threshold
    if (threshold := gc.get_threshold())[0]:
        _threshold = threshold
        gc.set_threshold(0, *threshold[1:])
    _pausing += 1
    try:
        yield
    finally:
        _pausing -= 1
        _resume()


def _resume() -> None:
    if not _pausing and not gc.get_threshold()[0]:
        gc.set_threshold(*_threshold)


def _resume_in_child() -> None:
    global _pausing
    if _pausing:
        _pausing = 0
        _resume()


os.register_at_fork(after_in_child=_resume_in_child)


def read_owners(session: _core.Session, patience: float = 1) -> _core.Owners | None:
    """Read the owners of what the next view of a session has; None if that fails. Never raises.

    `patience`: as for `OwnersNow`.
    """
    try:
        marks = session.mark()
        used = [mark.device for mark in marks if mark.used]
        now = OwnersNow({mark.device for mark in marks}, used, patience)
        return _core.Owners(
            marks,
            now.owners,
            unread=now.unread + REGISTRY.dropped,
            unread_gradients=now.unread_gradients,
            holders=now.holders,
            unheld=now.unheld,
            has_all_modules=REGISTRY.is_complete,
        )
    except Exception as error:
        warn_once(f"a snapshot has no owners of memory: {error!r}", f"owners: {type(error)}")
        return None
