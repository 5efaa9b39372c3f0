"""Phases: names for what a program is doing, which its allocations then carry."""

from contextlib import ContextDecorator
from types import TracebackType

from pytracer import _core


class annotate(ContextDecorator):  # noqa: N801
    """A phase, as a context manager or a decorator: `with pytracer.annotate("rollout"):`.

    Phases nest. An event is of its own thread's innermost phase; a thread that is in none counts to
    the one that was entered last, on any thread, and not left yet: so what autograd's threads do is
    of the phase that started them. In a snapshot an event's `user_metadata` is its phase, unless
    torch's own metadata was set for it.

    Args:
        name: as viewers show it; 65,535 different ones a process, others are left out.
    """

    def __init__(self, name: str) -> None:
        """Enters nothing yet."""
        self._name = name
        self._entered: list[int] = []  # one may be entered again while it is

    def __enter__(self) -> None:
        """The calling thread enters the phase."""
        self._entered.append(_core.enter_phase(str(self._name).encode("utf-8", "replace")))

    def _recreate_cm(self) -> "annotate":
        return annotate(self._name)  # each call of a decorated function enters by itself

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leaves it."""
        _core.leave_phase(self._entered.pop())
