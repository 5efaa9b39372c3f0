"""Phases: names for what a program is doing, which its allocations then carry."""

import functools
import inspect
import os
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from threading import get_ident
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from pytracer import _core
from pytracer.errors import ConfigError
from pytracer.notices import say_once

Function = TypeVar("Function", bound=Callable[..., Any])


class Listener(Protocol):
    """Told of phases on the threads that enter and leave them; it raises nothing."""

    def entered(self, entry: int, phase: int) -> None:
        """The calling thread entered it; `entry` is of this one time."""

    def left(self, entry: int) -> None:
        """It is over."""


listeners: set[Listener] = set()
os.register_at_fork(after_in_child=listeners.clear)


def _is_compiled() -> bool:
    """Whether `torch.compile` is asking, which takes the answer for a constant."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)  # torch may be half imported
    return compiler is not None and compiler.is_compiling()


def path_of(phase: int) -> tuple[str, ...]:
    """The names of the phases that it is nested in, outermost first, and its own; () of 0."""
    return tuple(name.decode("utf-8", "replace") for name in _core.phase_path(phase))


class annotate:  # noqa: N801
    """A phase, as a context manager or a decorator: `with pytracer.annotate("rollout"):`.

    Phases nest. An event is of its own thread's innermost phase; a thread that is in none counts to
    the one that was entered last, on any thread, and not left yet: so what autograd's threads do is
    of the phase that started them. In a snapshot an event's `user_metadata` is its phase, unless
    torch's own metadata was set for it.

    A decorated coroutine function or generator function, async or not, is in the phase while its
    body runs: not while it awaits or has yielded, when others run on its thread. A `with` that
    awaits or yields within stays entered meanwhile, for all that runs on the thread. Such functions
    have no discrete windows, since others of the same phase may take turns with them; a `with` has.

    What `torch.compile` compiles enters no phase: in it, `annotate` does nothing. Nor may a `with`
    there take one that was made outside, which torch does not compile.

    Args:
        name: as viewers show it; 65,535 different ones a process, others are left out.

    Raises:
        ConfigError: there is no name.
    """

    def __init__(self, name: str) -> None:
        """Enters nothing yet."""
        if not isinstance(name, str) or not name:
            raise ConfigError(f'annotate({name!r}) has no name: give it one, as in annotate("a")')
        self._name = name
        # By thread: several may be in it at once, and one may enter it again while it is.
        self._entered: dict[int, list[int]] = {}

    def __enter__(self) -> None:
        """The calling thread enters the phase."""
        if _is_compiled():
            return
        entry, phase = self._enter()
        try:
            for listener in list(listeners) if listeners else ():
                listener.entered(entry, phase)
        except BaseException:  # Ctrl-C: the body does not run
            self._leave()
            raise

    def _enter(self) -> tuple[int, int]:
        entry, phase = _core.enter_phase(self._name.encode("utf-8", "replace"))
        if phase == 0:
            say_once("there are too many names of phases; give fewer: others are left out")
        self._entered.setdefault(get_ident(), []).append(entry)
        return entry, phase

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leaves it."""
        if _is_compiled():
            return
        entry = self._leave()
        if listeners:
            for listener in list(listeners):
                listener.left(entry)

    def _leave(self) -> int:
        entries = self._entered.get(get_ident())
        if not entries:  # another thread entered it: a generator may be resumed on any
            entries = next(each for each in list(self._entered.values()) if each)
        entry = entries.pop()
        _core.leave_phase(entry)
        return entry

    def __call__(self, function: Function) -> Function:
        """Decorates it."""
        wrapper: Callable[..., Any]
        if inspect.iscoroutinefunction(function):

            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                return await _Steps(self, function(*args, **kwargs))

        elif inspect.isgeneratorfunction(function):

            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return (yield from _Steps(self, function(*args, **kwargs)))

        elif inspect.isasyncgenfunction(function):

            async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
                body = function(*args, **kwargs)
                step = body.asend(None)
                while True:
                    try:
                        value = [await _Steps(self, step)]
                    except StopAsyncIteration:
                        return
                    try:
                        # Popped, for this frame must not keep it alive.
                        step = body.asend((yield value.pop()))
                    except BaseException as error:  # for the body to handle, GeneratorExit too
                        step = body.athrow(error)

        else:

            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if _is_compiled():
                    return function(*args, **kwargs)
                with self:
                    return function(*args, **kwargs)

        return cast(Function, functools.wraps(function)(wrapper))


class _Steps(Generator[Any, Any, Any]):
    """Runs each step of a coroutine or a generator in a phase, of which listeners are not told."""

    def __init__(self, phase: annotate, body: Any) -> None:
        self._phase, self._body = phase, body

    def send(self, value: Any) -> Any:
        self._phase._enter()
        try:
            return self._body.send(value)
        finally:
            self._phase._leave()

    def throw(self, *error: Any) -> Any:
        self._phase._enter()
        try:
            return self._body.throw(*error)
        finally:
            self._phase._leave()

    def __await__(self) -> "_Steps":
        return self
