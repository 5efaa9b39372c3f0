"""The modules and optimizers of this process, found as they are made and used.

Torch reports each parameter, buffer and submodule when a module gets it, and each optimizer when it
steps. What torch did not report is found once, when modules are first asked for: what is older than
the first tracer, and copies.
"""

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Iterable
from itertools import compress, islice
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from pytracer.backends.running_torch import is_compiled
from pytracer.log import warn_once
from pytracer.owners.names import RememberedNames, named_tensors

MAX_MODULES = 2**18
"""How many modules, and how many optimizers, are known at most. Later ones are counted."""

MAX_SEARCH_SECONDS = 0.5
"""How long the search for unreported modules may take, without the listing itself."""

_OBJECTS_BETWEEN_CLOCKS = 2**16
_MAX_MAKERS = 1024


class Registry:
    """Weak references to modules and optimizers. Any thread may call the methods; none raises.

    Attributes:
        names: The names that parameters had.
        makers: The threads that make modules or start tracers.
        dropped: How many modules and optimizers found no room.
        is_complete: False if the search for unreported ones could not examine all objects, or
            failed.
    """

    def __init__(self) -> None:
        """Know nothing yet, and do not follow torch."""
        self._modules: WeakValueDictionary[int, Any] = WeakValueDictionary()
        # Those that are older than all that torch reported.
        self._older_modules: WeakValueDictionary[int, Any] = WeakValueDictionary()
        # The thread that stepped an optimizer last; None: it has not stepped yet.
        self._optimizers: WeakKeyDictionary[Any, int | None] = WeakKeyDictionary()
        self._handles: list[Any] = []
        self._changing = threading.RLock()  # a signal handler may start or stop a tracer
        self.names = RememberedNames()
        self.makers: set[int] = set()
        self.dropped = 0
        self.is_complete = True
        self._is_searched = False

    def follow(self) -> None:
        """Have torch report modules and optimizers from now on.

        The hooks stay: they take next to nothing, and without them each start of a tracer would
        have to search for the modules that were made meanwhile.
        """
        with self._changing:
            self._note_maker()
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
        ):
            self._handles.append(register(hook))

    def _end(self) -> None:
        for handle in self._handles:
            with contextlib.suppress(Exception):
                handle.remove()
        self._handles.clear()
        self._is_searched = False

    def _note_maker(self) -> None:
        if len(self.makers) < _MAX_MAKERS:
            self.makers.add(threading.get_ident())

    def _registered(self, module: Any, _name: str, _value: Any) -> None:
        """Note a module, on the thread that gives it a parameter, a buffer or a submodule."""
        if is_compiled():  # torch would not compile what follows
            return
        if not self._knows_module(module):
            self._note_maker()
            self._add_module(module, self._modules)

    def _steps(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Note an optimizer and its thread, before its first step makes its state."""
        if is_compiled():
            return
        try:
            thread, stepped = threading.get_ident(), self._optimizers.get(optimizer)
            if stepped != thread:
                self._add_optimizer(optimizer, thread)
            if stepped is None:
                self.names.remember(named_tensors(self.modules()), self.optimizers())
        except Exception:  # code of the program: a hash, or a module that is not like torch's
            self.dropped += 1

    def _knows_module(self, module: Any) -> bool:
        return id(module) in self._modules or id(module) in self._older_modules

    def _add_module(self, module: Any, modules: "WeakValueDictionary[int, Any]") -> None:
        if len(self._modules) + len(self._older_modules) < MAX_MODULES:
            with contextlib.suppress(TypeError):  # a class without weak references
                modules[id(module)] = module
                return
        self.dropped += 1

    def _add_optimizer(self, optimizer: Any, thread: int | None) -> None:
        if len(self._optimizers) < MAX_MODULES or optimizer in self._optimizers:
            with contextlib.suppress(TypeError):
                self._optimizers[optimizer] = thread
                return
        self.dropped += 1

    def _search_once(self) -> None:
        """Find what torch did not report, the first time that something is asked for.

        Not as the first tracer starts: this takes longer than all else that a start does, and the
        first step of an optimizer is slow anyway.
        """
        if self._is_searched:
            return
        with self._changing:
            if self._is_searched or not self._handles:
                return
            try:
                modules = sys.modules["torch.nn.modules.module"]
                optimizers = sys.modules["torch.optim.optimizer"]
                self.is_complete = self._search(modules.Module, optimizers.Optimizer)
            except Exception as error:
                self.is_complete = False
                warn_once(
                    f"some blocks of parameters and optimizers may have no names: the search for "
                    f"older modules failed ({error!r}). Everything else is recorded",
                    "owners: search",
                )
            finally:
                self._is_searched = True

    def _search(self, module: type, optimizer: type) -> bool:
        """Find what torch did not report; return whether everything was examined.

        Only the types of objects are looked at, so hardly any code of the program runs.
        """
        begin = time.monotonic()
        optimizers = _subclasses(optimizer)
        wanted = _subclasses(module) | optimizers
        place = self._older_modules
        # A list that is in itself would keep all objects alive: so no list grows by the next one.
        oldest = gc.get_objects(generation=2)
        middle = gc.get_objects(generation=1)
        youngest = gc.get_objects(generation=0)
        try:
            for objects in (oldest, middle, youngest):
                things = iter(objects)
                # Without a line of Python for each of some 100,000 objects.
                is_wanted = map(wanted.__contains__, map(id, map(type, objects)))
                for _ in range(0, len(objects), _OBJECTS_BETWEEN_CLOCKS):
                    if time.monotonic() - begin > MAX_SEARCH_SECONDS:
                        return False
                    some = islice(things, _OBJECTS_BETWEEN_CLOCKS)
                    for thing in compress(some, islice(is_wanted, _OBJECTS_BETWEEN_CLOCKS)):
                        if id(type(thing)) in optimizers:
                            self._add_older(thing)
                        elif id(thing) in self._modules:
                            place = self._modules  # what follows is younger
                        elif not self._knows_module(thing):
                            self._add_module(thing, place)
        finally:
            # On Python 3.10, this call's frame is in a list, and refers to it.
            for objects in (oldest, middle, youngest):
                objects.clear()
        return gc.get_freeze_count() == 0  # what is frozen is in no list

    def _add_older(self, optimizer: Any) -> None:
        try:
            if optimizer not in self._optimizers:
                self._add_optimizer(optimizer, None)
        except Exception:  # code of the program: a hash
            self.dropped += 1

    def modules(self) -> list[Any]:
        """Return the modules that exist, in the order in which they were made, as far as known."""
        self._search_once()
        return _alive((*self._older_modules.valuerefs(), *self._modules.valuerefs()))

    def optimizers(self) -> list[Any]:
        """Return the optimizers that exist, in the order in which they were found."""
        self._search_once()
        return _alive(self._optimizers.keyrefs())

    def stepping_thread(self, optimizer: Any) -> int | None:
        """Return the thread that stepped an optimizer last; None: it has not stepped yet."""
        return self._optimizers.get(optimizer)


def _subclasses(kind: type) -> set[int]:
    """Return the ids of a class and of all classes that inherit from it."""
    found = {id(kind)}
    waiting = [kind]
    while waiting:
        subclasses: list[type] = type.__subclasses__(waiting.pop())
        for subclass in subclasses:
            if id(subclass) not in found:
                found.add(id(subclass))
                waiting.append(subclass)
    return found


def _alive(references: "Iterable[ref[Any]]") -> list[Any]:
    return [thing for reference in references if (thing := reference()) is not None]


REGISTRY = Registry()
"""The modules and optimizers of this process."""

os.register_at_fork(after_in_child=REGISTRY.reset_lock)
