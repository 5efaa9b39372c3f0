"""Phases: names for the parts of a program, which are recorded with its allocations."""

import functools
import inspect
import os
from collections.abc import AsyncGenerator, Callable, Generator
from threading import get_ident
from typing import Any, Protocol, TypeVar, cast

from pytracer import _core
from pytracer.backends.running_torch import is_compiled
from pytracer.errors import ConfigError
from pytracer.log import warn_once

Function = TypeVar("Function", bound=Callable[..., Any])


class Listener(Protocol):
    """Called on the threads that enter and leave phases; its methods never raise."""

    def entered(self, entry: int, phase: int) -> None:
        """Take note that the calling thread entered a phase; `entry` identifies this occurrence."""

    def left(self, entry: int) -> None:
        """Take note that the occurrence is over; on any thread."""


listeners: set[Listener] = set()
os.register_at_fork(after_in_child=listeners.clear)


def path_of(phase: int) -> tuple[str, ...]:
    """Return the names of the phases around a phase, outermost first, and its own; () for 0."""
    return tuple(name.decode("utf-8", "replace") for name in _core.phase_path(phase))


class annotate:  # noqa: N801
    """A phase, as a context manager or a decorator: `with pytracer.annotate("rollout"):`.

    Phases nest. An event belongs to the innermost phase of its thread. An event of a thread that is
    in no phase and runs no Python code belongs to the phase that was entered last on any thread and
    not left yet, so that the work of autograd's threads belongs to the phase that started it. In a
    snapshot the `user_metadata` of an event is its phase, unless torch's own metadata was set for
    the event.

    A decorated coroutine function or generator function, async or not, is in the phase while its
    body runs, but not while it awaits or after it has yielded, when others run on its thread. A
    `with` stays entered when its body awaits or yields, for everything that runs on the thread.
    Decorated functions of these kinds get no discrete windows, because several calls may
    interleave; a `with` gets them.

    In code that `torch.compile` compiles, `annotate` does nothing. A `with` in such code must not
    use an `annotate` object that was made outside of it, which torch does not compile.

    Args:
        name: The name that viewers show. A process can have 65,535 different names; phases with
            further names are not recorded.

    Raises:
        ConfigError: `name` is empty or not a string.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f'annotate({name!r}) has no name: give it one, as in annotate("a")')
        self._name = name
        # By thread: several threads may be in the phase, and a thread may enter it again.
        self._entered: dict[int, list[int]] = {}

    def __enter__(self) -> None:
        """Enter the phase on the calling thread."""
        if is_compiled():
            return
        entry, phase = self._enter()
        try:
            for listener in list(listeners) if listeners else ():
                listener.entered(entry, phase)
        except BaseException:  # such as Ctrl-C: the body does not run
            self._leave()
            raise

    def _enter(self) -> tuple[int, int]:
        entry, phase = _core.enter_phase(self._name.encode("utf-8", "replace"))
        if phase == 0:
            warn_once(
                "there are too many phase names: phases with new names are no longer recorded. "
                "Use fewer different names"
            )
        self._entered.setdefault(get_ident(), []).append(entry)
        return entry, phase

    def __exit__(self, *_: object) -> None:
        """Leave the phase."""
        if is_compiled():
            return
        entry = self._leave()
        if listeners:
            for listener in list(listeners):
                if listener in listeners:  # not in a child that another listener forked
                    listener.left(entry)

    def _leave(self) -> int:
        entries = self._entered.get(get_ident())
        if not entries:  # another thread entered it: a generator may be resumed on any
            entries = next(filter(None, list(self._entered.values())))
        entry = entries.pop()
        _core.leave_phase(entry)
        return entry

    def __call__(self, function: Function) -> Function:
        """Return a function that runs in the phase; a decorator."""
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
                        # `pop`, because this frame must not keep the value alive.
                        step = body.asend((yield value.pop()))
                    except BaseException as error:  # for the body to handle, GeneratorExit too
                        step = body.athrow(error)

        else:

            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if is_compiled():
                    return function(*args, **kwargs)
                with self:
                    return function(*args, **kwargs)

        return cast(Function, functools.wraps(function)(wrapper))


class _Steps(Generator[Any, Any, Any]):
    """Runs each step of a coroutine or a generator in a phase, without calls of the listeners."""

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
