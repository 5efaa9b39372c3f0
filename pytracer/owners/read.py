"""Reads which tensors, workspaces of cuBLAS and graphs of autograd own memory now."""

import contextlib
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any
from weakref import ref

from pytracer import _core
from pytracer.log import harmless, warn_once
from pytracer.owners.copies import (
    GradientRule,
    ModuleCopy,
    OptimizerCopy,
    Part,
    copies_of_modules,
    copy_of_optimizer,
)
from pytracer.owners.holders import Begin, HoldersNow
from pytracer.owners.names import PREFIXES, named_tensors, outermost
from pytracer.owners.registry import REGISTRY

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


def what_may_be_read(torch: Any, used: Collection[int]) -> tuple[GradientRule, int | None]:
    """Return which gradients the current thread may read now, and whether it may read graphs.

    It may if only so many other threads run a backward pass; None: it may not.

    torch replaces `grad` without a lock, in part without the GIL: a program that reads `grad` while
    another thread sets it may crash. So gradients are read only where no other thread sets them: on
    the thread that steps the optimizer of the parameter, and, inside of backward, on the thread
    that accumulates the gradients of the parameter's device (`csrc/tensors/model_copy.cpp`). The
    same holds for what the nodes of a graph keep, which a backward pass releases. Whether another
    thread runs one is looked up while they are read. `used` are the devices in use; -1: the CPU.
    """
    thread = threading.get_ident()
    ours = (threading.main_thread(), threading.current_thread())
    may_others_train = any(not one.daemon and one not in ours for one in threading.enumerate())
    is_only_maker = thread in REGISTRY.makers and not may_others_train
    is_in_backward, device = torch._C._current_graph_task_id() != -1, -1
    # A thread of autograd's runs the pass of another one, which waits.
    passes = int(is_in_backward and isinstance(ours[1], threading._DummyThread))
    if is_in_backward:
        with contextlib.suppress(Exception):  # the accelerator is not initialised
            device = int(torch._C._accelerator_getDeviceIndex())
        may_read_graphs = sum(index >= 0 for index in used) < 2  # each accelerator has a thread
    else:
        steppers = {each for _, each in REGISTRY.optimizers() if each is not None}
        may_read_graphs = steppers == {thread} if steppers else is_only_maker
    rule = True, thread, is_only_maker, is_in_backward, device, passes
    return rule, passes if may_read_graphs else None


class OwnersNow:
    """The owners of memory at one moment, on `devices`, of which those `used` have had an event.

    `session` records them. Graphs and holders may take `patience` times as long as usual. Reading
    never raises.

    Attributes:
        owners: The owners; of those with the same memory, the one that names it first.
        unread_gradients: Of how many parameters the gradient may not be read on this thread.
        unread: How many owners could not be read, or are beyond `MAX_OWNERS`.
        holders: Addresses and devices of storages without an owner, or that a graph keeps, and who
            holds them; "": nobody was found.
        unheld: What has the memory without an owner or a holder; "": perhaps a Python tensor.
        unsearched: For how many tensors there was no time, or no room, to search for holders.
    """

    def __init__(
        self,
        devices: Collection[int],
        used: Collection[int] = (),
        patience: float = 1,
        session: _core.Session | None = None,
    ) -> None:
        self._devices, self._used, self._patience, self._session = devices, used, patience, session
        self._torch: Any = sys.modules.get("torch")
        for _ in range(2):
            self.owners: list[Owner] = []
            self.unread = 0
            self.unread_gradients = 0
            self.holders: list[tuple[int, int, str]] = []
            self.unheld = ""
            self.unsearched = 0
            self._of_roots: dict[int, list[Begin]] = {}  # by the id of a model or an optimizer
            self._models: dict[Begin, str] = {}  # of the parameters that no optimizer has
            self._roots: dict[int, tuple[ref[Any], bool]] = {}
            self._graph_passes: int | None = None
            self._has_found_models = False
            if self._torch is None:
                break
            # Classes and modes of the program that intercept functions of tensors are not asked.
            with self._torch._C.DisableTorchFunction():
                self._attempt(self._read)
                self._attempt(self._workspaces)
                self._attempt(self._hold)
            if not self._has_found_models:
                break
            PREFIXES.forget_new()

    def _read(self) -> None:
        """Read what models and optimizers have."""
        rule, self._graph_passes = what_may_be_read(self._torch, self._used)
        optimizers: list[OptimizerCopy] = []
        steppers: dict[int, int] = {}  # threads by parameters
        for reference, thread in REGISTRY.optimizers():
            optimizer, unread = copy_of_optimizer(reference, thread, rule)
            self._note_unread(unread)
            if optimizer is None:
                continue
            optimizers.append(optimizer)
            if thread is not None:
                steppers.update((each.number, thread) for each in optimizer.parameters)
        modules, unread = copies_of_modules(REGISTRY.modules(), steppers, rule)
        self._note_unread(unread)
        # By id, with the id of the model or the optimizer.
        parameters: dict[int, tuple[str, _core.TensorCopy, int]] = {}
        for name, parameter, root in self._of_modules(modules, optimizers):
            parameters.setdefault(parameter.number, (name, parameter, root))
        for optimizer in optimizers:
            self._parameters_of(optimizer, parameters)
        for name, parameter, root in parameters.values():
            self.unread_gradients += parameter.is_gradient_unread
            self._add(parameter.gradient, _GRADIENT, _GRAD, f"grad of {name}", root)
            self._add(parameter.main_gradient, _GRADIENT, _GRAD, f"main_grad of {name}", root)
        for optimizer in optimizers:
            self._state_of(optimizer, parameters)
        # By name: FSDP2 gathers others than those of the optimizer. An optimizer may have copies of
        # parameters, which no module has: then nobody knows which it trains.
        numbers = {each.number for optimizer in optimizers for each in optimizer.parameters}
        trained = {parameters[number][0] for number in numbers}
        if not {root for _, _, root in parameters.values()} & {each.number for each in optimizers}:
            parts = [(name, part[2:]) for name, one, _ in parameters.values() for part in one.parts]
            kept = {begin for name, begin in parts if name in trained}  # FSDP1 has several in one
            models = {begin: name.partition(".")[0] for name, begin in parts if begin not in kept}
            partly = {name.partition(".")[0] for name in trained} if trained else {*models.values()}
            self._models = {begin: name for begin, name in models.items() if name not in partly}
        self._roots = self._several(modules, optimizers)

    def _hold(self) -> None:
        """Read what graphs keep, unless another thread may change them, and who holds tensors."""
        owned = [owner[:3] for owner in self.owners]
        now = HoldersNow(
            *(self._torch, owned, self._devices, self._session, self._roots, self._graph_passes),
            *(self._models, self._patience),
        )
        self._has_found_models = REGISTRY.add(*now.models)  # that were copied or unpickled
        for address, size_bytes, device, name in now.saved:
            self._add_owner((address, size_bytes, device, _ACTIVATION, _SAVED, name))
        self.unread += now.unread
        self.unsearched = now.unsearched
        for root, text in now.of_roots.items():
            now.found.update(dict.fromkeys(self._of_roots[root], text))
        self.holders = [(address, device, text) for (device, address), text in now.found.items()]
        if now.has_all and not self.unread:
            self.unheld = now.likely

    def _several(
        self, modules: list[ModuleCopy], optimizers: list[OptimizerCopy]
    ) -> "dict[int, tuple[ref[Any], bool]]":
        """Return the models and optimizers of a class that has several, and whether it has many.

        A model that is still used is in a variable, which says nothing; one of several may be kept.
        """
        roots: list[ModuleCopy | OptimizerCopy] = [*outermost(modules), *optimizers]
        roots = [root for root in roots if root.number in self._of_roots][-_MOST_ROOTS:]
        counts = Counter(each.class_name for each in roots)
        return {
            each.number: (each.reference, counts[each.class_name] >= _SEVERAL)
            for each in roots
            if counts[each.class_name] > 1
        }

    def _note_unread(self, unread: int) -> None:
        self.unread += unread
        if unread:
            warn_once(
                "some memory could not be named: a tensor of a model or an optimizer could not "
                "be read. The job is not affected",
                "owners: unread",
            )

    def _attempt(self, read: Callable[[], None]) -> None:
        # Code of the program may run: that of subclasses of tensors and of optimizers.
        failed = "some memory could not be named: reading a tensor failed with {error}"
        with harmless(f"{failed}. The job is not affected", "owners"):
            read()
            return
        self.unread += 1

    def _add(self, parts: list[Part], category: int, rule: int, name: str, root: int) -> None:
        """Add the memory of a tensor of a model or an optimizer with this id."""
        for address, size_bytes, device, _ in parts:
            self._add_owner((address, size_bytes, device, category, rule, name))
            self._of_roots.setdefault(root, []).append((device, address))

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

    def _of_modules(
        self, modules: list[ModuleCopy], optimizers: list[OptimizerCopy]
    ) -> Iterator[tuple[str, _core.TensorCopy, int]]:
        """Add what modules have; yield the parameters, and the ids of the outermost modules."""
        named = [*named_tensors(modules)]
        names: dict[int, str] = {}
        for name, tensor, is_buffer, _ in named:
            if not is_buffer:
                names.setdefault(tensor.number, name)
        REGISTRY.names.remember(lambda parameter: names.get(parameter, ""), optimizers)
        for name, tensor, is_buffer, root in named:
            category = _BUFFER if is_buffer else _PARAMETER
            self._add(tensor.parts, category, _MODULE, name, root.number)
            if not is_buffer:
                yield name, tensor, root.number

    def _parameters_of(
        self, optimizer: OptimizerCopy, known: dict[int, tuple[str, _core.TensorCopy, int]]
    ) -> None:
        """Add the parameters that no module has."""
        for group, (parameters, _) in enumerate(optimizer.groups):
            for position, parameter in enumerate(parameters):
                if parameter.number in known:
                    continue
                name = REGISTRY.names.name_of(optimizer, (group, position), parameter.number)
                name = name or f"{optimizer.class_name} group {group} parameter {position}"
                known[parameter.number] = name, parameter, optimizer.number
                self._add(parameter.parts, _PARAMETER, _OPTIMIZER, name, optimizer.number)

    def _state_of(
        self, optimizer: OptimizerCopy, parameters: dict[int, tuple[str, _core.TensorCopy, int]]
    ) -> None:
        kind, root = optimizer.class_name, optimizer.number
        named = [
            (parameters[key][0] if key in parameters else kind, values)
            for key, values in optimizer.states
        ]
        # Such as a learning rate that is a tensor.
        named += [(f"{kind} group {i}", values) for i, (_, values) in enumerate(optimizer.groups)]
        for owner, values in named:
            for name, tensors in values:
                for tensor in tensors:
                    self._add(tensor.parts, _STATE, _OPTIMIZER, f"{name} of {owner}", root)


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
    with harmless("a snapshot does not say who owns the memory: {error}", "owners"):
        marks = session.mark()
        used = [mark.device for mark in marks if mark.used]
        devices = {mark.device for mark in marks} - {_core.HOST_DEVICE}  # which has no tensor
        now = OwnersNow(devices, used, patience, session)
        return _core.Owners(
            marks,
            now.owners,
            unread=now.unread + REGISTRY.dropped,
            unread_gradients=now.unread_gradients,
            holders=now.holders,
            unheld=now.unheld,
            unsearched=now.unsearched,
            has_all_modules=REGISTRY.is_complete,
        )
    return None
