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
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from pytracer import _core
from pytracer.backends.running_torch import is_compiled
from pytracer.log import warn_once
from pytracer.owners.names import ParameterPaths, RememberedNames, has_parameters
from pytracer.owners.uses import note_modules, note_optimizer

MAX_MODULES = 2**18  # how many modules, and optimizers, are known at most; later ones are counted
_MAX_MAKERS = 1024
_GATHERING = {"FSDPModule", "FullyShardedDataParallel"}


class Registry:
    """Weak references to modules and optimizers. Any thread may call the methods; none raises.

    Attributes:
        names: The names that parameters had.
        makers: The threads that make modules or start tracers.
        dropped: How many modules and optimizers found no room.
        is_complete: False if the search for older ones failed.
    """

    def __init__(self) -> None:
        self._modules: WeakValueDictionary[int, Any] = WeakValueDictionary()
        # The thread that stepped an optimizer last; None: it has not stepped yet.
        self._optimizers: WeakKeyDictionary[Any, int | None] = WeakKeyDictionary()
        self._handles: list[Any] = []
        self._changing = threading.RLock()  # a signal handler may start or stop a tracer
        self._changes = 0  # how often a module got a parameter, a buffer or a submodule
        self._named_at = -1  # the changes when `_paths` was made
        self._paths = ParameterPaths([])
        self._noted_at = -1  # the changes when what modules have was noted in the live blocks
        # How many states of an optimizer were noted; it makes more when it steps other parameters.
        self._noted_states: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
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
            self._noted_states.clear()
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
        modules = sys.modules.get("torch.nn.modules.module")
        optimizers = sys.modules.get("torch.optim.optimizer")
        if modules is None or optimizers is None:  # no torch
            return
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
        if id(module) not in self._modules:
            self._note_maker()
            self._add(self._modules, id(module), module)

    def _steps(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Note an optimizer and its thread, before its first step makes its state."""
        if is_compiled():
            return
        try:
            thread, stepped = threading.get_ident(), self._optimizers.get(optimizer)
            if stepped != thread:
                self._add(self._optimizers, optimizer, thread)
            if stepped is None:
                self._remember_names(optimizer)
        except Exception:  # code of the program: a hash, or a module that is not like torch's
            self.dropped += 1

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Note what models and an optimizer have, after a step that has made states."""
        if is_compiled():
            return
        try:
            noted, states = self._noted_states.get(optimizer), len(optimizer.state)
            if noted == states:
                return
            self._noted_states[optimizer] = states
            if self._noted_at != self._changes:
                self.search()
                self._noted_at = self._changes  # with those that the search has found
                note_modules(self.modules())
            note_optimizer(optimizer, noted or 0)
        except Exception:  # code of the program: a module or an optimizer that is not like torch's
            self.dropped += 1

    def _called(self) -> None:
        """Note what models have: a program without an optimizer has no other moment for it.

        In the forward pass, FSDP and ZeRO have memory of other ranks in place of parameters.
        """
        try:
            self.search()
            modules = self.modules()
            kinds = {base.__name__ for kind in set(map(type, modules)) for base in kind.__mro__}
            if kinds.isdisjoint(_GATHERING) and "deepspeed" not in sys.modules:
                note_modules(modules)
        except Exception:  # code of the program: a module that is not like torch's
            self.dropped += 1

    def _remember_names(self, optimizer: Any) -> None:
        # All modules are named at once, for all optimizers that step for the first time, and anew
        # only if a parameter is missing and modules have changed: a program may have an optimizer
        # for each parameter.
        if self._named_at != self._changes and not self._paths.has_all(optimizer):
            self._named_at = self._changes
            self._paths = ParameterPaths(self.modules())
        self.names.remember(self._paths.name_of, [optimizer])

    def _add(self, known: Any, key: Any, value: Any) -> None:
        if len(known) < MAX_MODULES or key in known:
            with contextlib.suppress(TypeError):  # a class without weak references
                known[key] = value
                return
        self.dropped += 1

    def search(self) -> None:
        """Find the modules and optimizers that torch has not reported.

        Only the types of objects are looked at, so hardly any code of the program runs.
        """
        modules = sys.modules.get("torch.nn.modules.module")
        optimizers = sys.modules.get("torch.optim.optimizer")
        if modules is None or optimizers is None:  # no torch
            return
        for thing in _core.live_instances(modules.Module, optimizers.Optimizer):
            try:
                if issubclass(type(thing), modules.Module):
                    if id(thing) not in self._modules:
                        self._changes += 1
                        self._add(self._modules, id(thing), thing)
                elif thing not in self._optimizers:
                    self._add(self._optimizers, thing, None)
            except Exception:  # code of the program: a hash
                self.dropped += 1

    def modules(self) -> list[Any]:
        """Return the modules that exist, in the order in which they were found."""
        return _alive(self._modules.valuerefs())

    def optimizers(self) -> list[Any]:
        """Return the optimizers that exist, in the order in which they were found."""
        return _alive(self._optimizers.keyrefs())

    def are_models_evaluating(self) -> bool | None:
        """Return whether no module with parameters is in training mode; None if there is none."""
        try:
            modes = {module.training for module in self.modules() if has_parameters(module)}
        except Exception:  # code of the program: a module that is not like torch's
            return None
        return not any(modes) if modes else None

    def stepping_thread(self, optimizer: Any) -> int | None:
        """Return the thread that stepped an optimizer last; None: it has not stepped yet."""
        return self._optimizers.get(optimizer)


def _is_being_imported() -> bool:
    """Return whether torch is just being imported, as with `PYTRACER=1`: nothing is older then."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))  # set by importlib


def _alive(references: "Iterable[ref[Any]]") -> list[Any]:
    return [thing for reference in references if (thing := reference()) is not None]


REGISTRY = Registry()  # the modules and optimizers of this process

os.register_at_fork(after_in_child=REGISTRY.reset_lock)
