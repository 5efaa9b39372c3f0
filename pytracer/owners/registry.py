"""The modules and optimizers of this process, found as they are made and used.

Torch reports each parameter, buffer and submodule when a module gets it, and each optimizer when it
steps. Modules that were copied or unpickled, and those that are older than the first tracer, are
found among all Python objects: when a tracer starts, before what models have is noted, and when a
snapshot is written.
"""

import contextlib
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any
from weakref import ref

from pytracer import _core
from pytracer.backends.running_torch import is_compiled
from pytracer.log import warn_once
from pytracer.owners.copies import copies_of_modules, copy_of_optimizer
from pytracer.owners.names import ParameterPaths, RememberedNames
from pytracer.owners.weak_table import WeakTable

MAX_MODULES = 2**18  # how many modules, and optimizers, are known at most; later ones are counted
_MAX_MAKERS = 1024
_GATHERING = {"FSDPModule", "FullyShardedDataParallel"}


@dataclass
class _Steps:
    """What is known about an optimizer."""

    thread: int | None = None  # that stepped it last; None: it has not stepped yet
    noted: int | None = None  # so many of its states are in the live blocks; None: nothing is


class Registry:
    """Weak references to modules and optimizers. Any thread may call the methods; none raises.

    Attributes:
        names: The names that parameters had.
        makers: The threads that make modules or start tracers.
        dropped: How many modules and optimizers found no room.
        is_complete: False if the search for older ones failed.
    """

    def __init__(self) -> None:
        self._modules = WeakTable[bool](MAX_MODULES)
        self._optimizers = WeakTable[_Steps](MAX_MODULES)
        self._handles: list[Any] = []
        self._changing = threading.RLock()  # a signal handler may start or stop a tracer
        self._changes = 0  # how often a module got a parameter, a buffer or a submodule
        self._named_at = -1  # the changes when `_paths` was made
        self._paths = ParameterPaths([])
        self._noted_at = -1  # the changes when what modules have was noted in the live blocks
        self.names = RememberedNames()
        self.makers: set[int] = set()
        self.dropped = 0
        self.is_complete = True

    def follow(self) -> None:
        """Have torch report modules and optimizers from now on.

        The hooks stay: they take next to nothing, and without them each start of a tracer would
        have to search for the modules that were made meanwhile.
        """
        with self._changing:
            self._note_maker()
            self._noted_at = -1  # the live blocks may be new
            for _, known in self._optimizers.live():
                known.noted = None
            self._follow_calls()
            if self._handles:
                return
            try:
                self._follow_torch()
            except Exception as error:  # another torch than expected
                self._end()
                self.is_complete = False
                warn_once(
                    f"blocks of parameters and optimizers have no names: torch refused the hooks "
                    f"({error!r}). Everything else is recorded",
                    "owners: hooks",
                )

    def reset_lock(self) -> None:
        """Replace the lock in a forked child: a thread that the child lacks may hold it."""
        self._changing = threading.RLock()

    def _follow_torch(self) -> None:
        if None in model_classes():  # no torch
            return
        modules = sys.modules["torch.nn.modules.module"]
        optimizers = sys.modules["torch.optim.optimizer"]
        for register, hook in (
            (modules.register_module_parameter_registration_hook, self._registered),
            (modules.register_module_buffer_registration_hook, self._registered),
            (modules.register_module_module_registration_hook, self._registered),
            (optimizers.register_optimizer_step_pre_hook, self._steps),
            (optimizers.register_optimizer_step_post_hook, self._stepped),
        ):
            self._handles.append(register(hook))
        self.is_complete = False  # also if a signal's handler ends the search
        if not _is_being_imported():
            self.search()
        self.is_complete = True

    def _follow_calls(self) -> None:
        """Note what models have when one is called first, on a device that is recorded."""
        module = getattr(sys.modules.get("torch.nn.modules.module"), "Module", None)
        code = getattr(getattr(module, "_call_impl", None), "__code__", None)
        if code is not None:
            _core.call_when_seen(code, self._called)

    def _end(self) -> None:
        for handle in self._handles:
            with contextlib.suppress(Exception):
                handle.remove()
        self._handles.clear()

    def _note_maker(self) -> None:
        if len(self.makers) < _MAX_MAKERS:
            self.makers.add(threading.get_ident())

    def _registered(self, module: Any, _name: str, _value: Any) -> None:
        """Note a module, on the thread that gives it a parameter, a buffer or a submodule."""
        if is_compiled():  # torch would not compile what follows
            return
        self._changes += 1
        with contextlib.suppress(TypeError):  # a class without weak references
            reference = ref(module)
            if self._modules.get(id(module), reference) is None:
                self._note_maker()
                self.dropped += not self._modules.add(id(module), reference, True)

    def _steps(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Note an optimizer and its thread, before its first step makes its state."""
        if is_compiled():
            return
        try:
            reference, known = self._known(optimizer)
            stepped, known.thread = known.thread, threading.get_ident()
            if stepped is None:
                self._remember_names(reference)
        except Exception:  # no room, or a module that is not like torch's
            self.dropped += 1

    def _known(self, optimizer: Any) -> "tuple[ref[Any], _Steps]":
        reference = ref(optimizer)
        known = self._optimizers.get(id(optimizer), reference)
        if known is None:
            known = _Steps()
            if not self._optimizers.add(id(optimizer), reference, known):
                raise LookupError
        return reference, known

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Note what models and an optimizer have, after a step that has made states."""
        if is_compiled():
            return
        try:
            reference, known = self._known(optimizer)
            # It makes more states when it steps other parameters.
            if known.noted == len(optimizer.state):
                return
            if self._noted_at != self._changes:
                self.search()
                self._noted_at = self._changes  # with those that the search has found
                self._note_modules()
            first = known.noted or 0
            with sys.modules["torch"]._C.DisableTorchFunction():
                copy, _ = copy_of_optimizer(reference, None, first_state=first, notes_uses=True)
            known.noted = copy.state_count if copy is not None else first
        except Exception:  # no room, or an optimizer that is not like torch's
            self.dropped += 1

    def _called(self) -> None:
        """Note what models have: a program without an optimizer has no other moment for it.

        In the forward pass, FSDP and ZeRO have memory of other ranks in place of parameters.
        """
        try:
            self.search()
            classes = _core.class_names(self.modules())
            if "deepspeed" not in sys.modules and _GATHERING.isdisjoint(classes):
                self._note_modules()
        except Exception:  # a module that is not like torch's
            self.dropped += 1

    def _note_modules(self) -> None:
        with sys.modules["torch"]._C.DisableTorchFunction():
            copies_of_modules(self.modules(), {}, notes_uses=True)

    def _remember_names(self, reference: "ref[Any]") -> None:
        # All modules are named at once, for all optimizers that step for the first time, and anew
        # only if a parameter is missing and modules have changed: a program may have an optimizer
        # for each parameter.
        with sys.modules["torch"]._C.DisableTorchFunction():
            copy, _ = copy_of_optimizer(reference)
            if copy is None:
                return
            if self._named_at != self._changes and not self._paths.has_all(copy):
                self._named_at = self._changes
                self._paths = ParameterPaths(copies_of_modules(self.modules(), {})[0])
        self.names.remember(self._paths.name_of, [copy])

    def search(self) -> None:
        """Find the modules and optimizers that torch has not reported.

        Only the types of objects are looked at, so no code of the program runs.
        """
        if None not in (kinds := model_classes()):
            self.add(*_core.live_references(*kinds))

    def add(
        self, modules: "list[tuple[int, ref[Any]]]", optimizers: "list[tuple[int, ref[Any]]]"
    ) -> bool:
        """Add modules and optimizers that exist; return whether there are new ones."""
        self._modules.forget_dead()
        self._optimizers.forget_dead()
        added = [self._modules.add(*new, True) for new in modules if not self._modules.get(*new)]
        self._changes += len(added)
        others = [each for each in optimizers if self._optimizers.get(*each) is None]
        added += [self._optimizers.add(*new, _Steps()) for new in others]
        self.dropped += added.count(False)
        return any(added)

    def modules(self) -> "list[ref[Any]]":
        """Return references to the modules, in the order in which they were found."""
        return [reference for reference, _ in self._modules.live()]

    def optimizers(self) -> "list[tuple[ref[Any], int | None]]":
        """Return references to the optimizers, and the threads that stepped them last.

        They are in the order in which they were found. None: it has not stepped yet.
        """
        return [(reference, known.thread) for reference, known in self._optimizers.live()]

    def are_models_evaluating(self) -> bool | None:
        """Return whether no module with parameters is in training mode; None if there is none."""
        modes = _core.training_modes(self.modules())
        return not any(modes) if modes else None


def model_classes() -> tuple[Any, Any]:
    """Return torch's classes of modules and of optimizers; None: not imported."""
    modules = sys.modules.get("torch.nn.modules.module")
    optimizers = sys.modules.get("torch.optim.optimizer")
    return getattr(modules, "Module", None), getattr(optimizers, "Optimizer", None)


def _is_being_imported() -> bool:
    """Return whether torch is just being imported, as with `PYTRACER=1`: nothing is older then."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))  # set by importlib


REGISTRY = Registry()  # the modules and optimizers of this process

os.register_at_fork(after_in_child=REGISTRY.reset_lock)
