"""Phases without a change of the program: the option `phases="auto"`, and modules' own phases."""

import contextlib
import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any
from weakref import ref

from pytracer.backends.running_torch import is_compiled
from pytracer.errors import ConfigError
from pytracer.log import warn_once
from pytracer.owners.copies import copies_of_modules
from pytracer.owners.names import named_modules, submodules, wrapped_module
from pytracer.owners.registry import REGISTRY
from pytracer.owners.uses import is_outermost, note_arguments, note_gradients, note_results
from pytracer.owners.weak_table import WeakTable
from pytracer.tracing.phases import annotate


class _Calls(threading.local):
    """The calls of the calling thread that are in a phase, outermost first.

    torch does not report the end of a call that Ctrl-C or another BaseException ends. Such a call
    is left when the next one begins, because the code that it named does not run any more. Owners
    are known by their id, so that nothing keeps a module alive.
    """

    def __init__(self) -> None:
        self.entered: list[tuple[int, annotate | None, CodeType | None]] = []

    def enter(self, owner: object, phase: annotate | None, code: CodeType | None = None) -> None:
        """Enter a phase, or none, for a call of `owner`; `code` is running until the call ends."""
        if phase is not None:
            phase.__enter__()
        self.entered.append((id(owner), phase, code))

    def training_phase(self) -> annotate | None:
        """Return the innermost of the three phases of a training; None: the thread is in none."""
        return next((phase for _, phase, _ in reversed(self.entered) if phase in _TRAINING), None)

    def leave(self, owner: object) -> None:
        """Leave the phase of the latest call of `owner`, and of calls within; if there is one."""
        if any(entered == id(owner) for entered, _, _ in self.entered):
            while self._pop() != id(owner):
                pass

    def leave_ended(self, beginning: FrameType) -> None:
        """Leave the phases of calls whose code no longer runs outside of the call that begins."""
        while self.entered:
            code = self.entered[-1][2]
            if code is None or any(f.f_code is code for f in _frames(beginning.f_back)):
                return
            self._pop()

    def _pop(self) -> int:
        owner, phase, _ = self.entered.pop()
        if phase is not None:
            phase.__exit__(None, None, None)
        return owner


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


class _TrainingPhases:
    """The phases of the option `phases="auto"`, while at least one tracer wants them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may start or stop a tracer
        self._users = 0
        self._undo: list[Callable[[], object]] = []
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # another thread may have held it
        self._users = 0  # the parent's tracers do nothing in the child
        self._remove()

    def begin(self) -> None:
        """Enter phases from now on. A failure is logged, not raised."""
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            try:
                self._install()
            except Exception as error:
                self._remove()
                warn_once(f'phases="auto" marks no phases: {error!r}')

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._remove()

    def _install(self) -> None:
        import torch
        from torch.nn.modules import module
        from torch.optim import optimizer

        removable = (
            module.register_module_forward_pre_hook(self._module_begins),
            module.register_module_forward_hook(self._module_ends, always_call=True),
            optimizer.register_optimizer_step_pre_hook(functools.partial(_begins, _OPTIMIZER)),
            optimizer.register_optimizer_step_post_hook(_ends),
        )
        self._undo = [handle.remove for handle in removable]
        for name in ("backward", "grad"):
            self._undo.append(_replace(torch.autograd, name, self._in_backward))
        if hasattr(module, "_has_any_global_hook"):
            # A call of torch.compile(module) warns of hooks of all modules. Those above do nothing
            # in compiled code and may run twice, so only those of others are worth a warning.
            ours = {handle.id for handle in removable[:2]}
            self._undo.append(
                _replace(module, "_has_any_global_hook", lambda _: lambda: _has_hooks(module, ours))
            )

    def _remove(self) -> None:
        for undo in self._undo:
            undo()
        self._undo = []

    def _module_begins(self, module: object, args: Any) -> None:
        if is_compiled():
            return
        caller = sys._getframe(1)  # torch's function that calls a module
        _CALLS.leave_ended(caller)
        if _CALLS.entered and _CALLS.entered[-1][0] == id(module):
            # It calls itself: the end of this call is not that of the phase.
            _CALLS.enter(module, None, caller.f_code)
        elif _CALLS.training_phase() != _FORWARD:
            _CALLS.enter(module, _FORWARD, caller.f_code)
            if is_outermost(caller):
                note_arguments(module, args)

    def _module_ends(self, module: object, _args: Any, output: Any) -> None:
        if not is_compiled():
            calls = [(owner, phase) for owner, phase, _ in _CALLS.entered]
            if (id(module), _FORWARD) in calls and is_outermost(sys._getframe(1)):
                note_results(module, output)
            _CALLS.leave(module)

    def _in_backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def in_backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiled() or not self._users:
                return function(*args, **kwargs)
            call = object()
            _CALLS.leave_ended(sys._getframe())
            _CALLS.enter(call, _BACKWARD)
            try:
                result = function(*args, **kwargs)
            finally:
                _CALLS.leave(call)
            note_gradients(result)  # `torch.autograd.backward` returns none
            return result

        return in_backward


# Hooks of modules and optimizers.


def _begins(phase: annotate, owner: object, *_: object) -> None:
    """Enter the phase of a call of a module, or of a step of an optimizer."""
    if not is_compiled():
        caller = sys._getframe(1)  # torch's function that makes the call
        _CALLS.leave_ended(caller)
        _CALLS.enter(owner, phase, caller.f_code)


def _ends(owner: object, *_: object) -> None:
    if not is_compiled():
        _CALLS.leave(owner)


def _note_arguments(module: object, args: Any, kwargs: Any) -> None:
    if not is_compiled() and is_outermost(sys._getframe(1)):
        note_arguments(module, args, kwargs)


def _note_results(module: object, _args: Any, output: Any) -> None:
    if not is_compiled() and is_outermost(sys._getframe(1)):
        note_results(module, output)


_GLOBAL_HOOKS = re.compile(r"_global_(?:for|back)ward_\w*hooks\w*")


def _has_hooks(module: Any, ours: set[int]) -> bool:
    """Return whether torch has hooks of all modules, next to `ours`."""
    tables = (hooks for name, hooks in vars(module).items() if _GLOBAL_HOOKS.fullmatch(name))
    return any(set(hooks) - ours for hooks in tables)


def _replace(
    place: Any, name: str, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[], None]:
    """Replace a function of a module; return the function that undoes it."""
    original = getattr(place, name)
    replacement = wrapped(original)
    setattr(place, name, replacement)

    def undo() -> None:
        if getattr(place, name) is replacement:  # else someone has replaced it since
            setattr(place, name, original)

    return undo


class ModulePhases:
    """The names of the phases that `annotate_modules` has marked in this process.

    They tell a file's readers which phases are modules, and which tensors are theirs. Bounded, as
    the phases are.
    """

    MOST = 65_535
    MOST_BYTES = 2**20  # how long all names together may be, each counted once

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {"models": set(), "paths": set()}
        self._bytes = 0
        self._modules = WeakTable[str](self.MOST)

    def add(self, path: str, name: str, module: Any) -> None:
        """Add the name of the phase of a module; `path` is "" for the model itself."""
        names = self._names["paths" if path else "models"]
        text = name.encode("utf-8", "replace")  # as the recorder has it
        name = text.decode()
        if name not in names:
            if len(names) >= self.MOST or self._bytes + len(text) > self.MOST_BYTES:
                return
            names.add(name)
            self._bytes += len(text)
        with contextlib.suppress(TypeError):  # a class without weak references
            self._modules.add(id(module), ref(module), name)

    def as_metadata(self) -> dict[str, Any]:
        """Return the names as a snapshot has them.

        `owners` has the phases by the paths that the names of tensors have. They begin at the
        outermost module, which may be another one than the annotated model.
        """
        names: dict[str, Any] = {kind: sorted(names) for kind, names in self._names.items()}
        owners: dict[str, str] = {}
        with contextlib.suppress(Exception):  # code of the program: attributes of modules
            copies = copies_of_modules(REGISTRY.modules(), {})[0] if self._modules.live() else []
            for path, module, _ in named_modules(copies):
                if name := self._modules.get(module.number, module.reference):
                    owners[path] = name
        return {**names, "paths_of_owners": owners}


_CALLS = _Calls()
MODULE_PHASES = ModulePhases()
_TRAINING = [annotate(name) for name in ("forward", "backward", "optimizer")]
_FORWARD, _BACKWARD, _OPTIMIZER = _TRAINING
TRAINING_PHASES = _TrainingPhases()


class _Hook(functools.partial[None]):
    """A hook of a module, in whose place a copy of the module has one that does nothing.

    So the module can be copied, pickled, and sent to processes that lack pytracer. A partial object
    adds no frame of Python.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")  # ignores its arguments


class annotate_modules:  # noqa: N801
    """Phases for the modules of a model: each call of a module is a phase named by its path.

        with pytracer.annotate_modules(model):
            train()

    The phase of an allocation is the path of the innermost module that runs, such as
    `layers.3.attn.q_proj`; the model itself is named by its class. Phases nest as the calls do.
    Wrappers, such as DistributedDataParallel, have no phase and are not in paths.
    What backward allocates belongs to no module's phase, except what checkpointing computes again;
    with `forward_stacks`, the snapshot has the module of its forward call.

    The tensors that calls of the model take and return are noted, if no other module called the
    model: the snapshot then has the category of their blocks, "input" or "output". So annotate the
    wrapper, such as DistributedDataParallel, where there is one.

    Phases are marked from the construction until `remove()`, or the end of the `with` statement.
    Each call of a module takes some 7 µs of host time more. Copies of the model, also those that
    are pickled, have no phases.

    Args:
        model: A `torch.nn.Module`.
        depth: How many levels of submodules get a phase; None: all.

    Raises:
        ConfigError: `model` is not a module, or `depth` is not an integer from 0.
    """

    def __init__(self, model: Any, depth: int | None = None) -> None:
        if not callable(getattr(model, "named_modules", None)):
            raise ConfigError(f"{model!r:.80} is not a torch.nn.Module: give the model itself")
        if depth is not None and (type(depth) is not int or depth < 0):
            raise ConfigError(f"depth={depth!r}: give an integer from 0, or None for all levels")
        self._handles = [
            model.register_forward_pre_hook(_Hook(_note_arguments), prepend=True, with_kwargs=True),
            model.register_forward_hook(_Hook(_note_results)),
        ]
        for path, module in submodules(model):
            is_wrapper = wrapped_module(module) is not None
            if not is_wrapper and (depth is None or path.count(".") + bool(path) <= depth):
                name = path or type(module).__name__
                MODULE_PHASES.add(path, name, module)
                begins, ends = _Hook(_begins, annotate(name)), _Hook(_ends)
                self._handles += [
                    module.register_forward_pre_hook(begins, prepend=True),
                    module.register_forward_hook(ends, always_call=True),
                ]

    def remove(self) -> None:
        """Mark no more phases."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> "annotate_modules":
        """Return itself: phases are marked already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Mark no more phases."""
        self.remove()
