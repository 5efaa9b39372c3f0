"""Discrete windows: a phase's own snapshot of each time it occurs, beside that of its step."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident

from pytracer import _core
from pytracer.phases import path_of

MAX_OCCURRENCES = 100
"""That have files, in each step; each file has all blocks alive."""


@dataclass(frozen=True)
class Occurrence:
    """One time that a phase was entered, and not left yet.

    Attributes:
        owner: Records from then on.
        phase: Its number.
        path: Names of the phases it is nested in, outermost first, and its own.
        step: In which it was entered.
        number: From 1, among those of the name in the step.
        thread: That entered it.
    """

    owner: _core.Owner
    phase: int
    path: tuple[str, ...]
    step: int
    number: int
    thread: int


class DiscreteWindows:
    """A listener of `phases`, for one tracer. Any thread; raises nothing.

    An occurrence is recorded if it begins in a step that is, and written when it ends.

    Attributes:
        total: How many were recorded.
    """

    def __init__(
        self,
        wanted: bool | tuple[str, ...],
        new_owner: Callable[[], _core.Owner | None],
        write: Callable[[Occurrence, bool], None],
        fail: Callable[[str], None],
    ) -> None:
        """`new_owner` may give none; `write` gets what ended and whether it is complete."""
        self._wanted = wanted
        self._new_owner = new_owner
        self._write = write
        self._fail = fail
        self.total = 0
        self._of_thread = threading.local()
        self._changing = threading.RLock()  # all below
        self._step = 0
        self._is_recorded = False
        self._counts: Counter[str] = Counter()  # by name, in this step
        self._open: dict[int, Occurrence] = {}  # by entry

    def begin_step(self, step: int, is_recorded: bool) -> None:
        """Occurrences that are open go on, but for those that the core knows to be over."""
        with self._changing:
            self._step = step
            self._is_recorded = is_recorded and step > 0
            self._counts.clear()
            for entry, occurrence in [*self._open.items()]:
                if _core.is_entered(entry):
                    occurrence.owner.begin_step(step)
                else:  # its thread ended within
                    del self._open[entry]

    def follow_devices(self) -> None:
        """Occurrences that are open have no files: they began on other devices."""
        with self._changing:
            self._open.clear()

    def entered(self, entry: int, phase: int) -> None:
        """As `phases` tells it, of the calling thread."""
        if not self._is_recorded or getattr(self._of_thread, "is_ours", False):
            return
        name = ""
        try:
            path = path_of(phase)
            if not self._is_wanted(path):
                return
            name = path[-1]
            with self._changing:
                self._open_one(entry, phase, path)
        except Exception as failure:
            self._fail(f"the phase {name} has no file: {failure!r}")

    def _open_one(self, entry: int, phase: int, path: tuple[str, ...]) -> None:
        thread = get_ident()
        if any((each.phase, each.thread) == (phase, thread) for each in [*self._open.values()]):
            return  # within itself: it belongs to the outer one
        if self._counts.total() >= MAX_OCCURRENCES:
            self._fail(f"discrete: no files of more than {MAX_OCCURRENCES} phases a step")
            return
        owner = self._new_owner()
        if owner is None:
            return
        owner.begin_step(self._step)
        owner.start()
        self.total += 1
        self._counts[path[-1]] += 1
        number = self._counts[path[-1]]
        self._open[entry] = Occurrence(owner, phase, path, self._step, number, thread)

    def _is_wanted(self, path: tuple[str, ...]) -> bool:
        if isinstance(self._wanted, bool):
            return self._wanted and len(path) == 1
        return len(path) > 0 and path[-1] in self._wanted

    def left(self, entry: int) -> None:
        """As `phases` tells it; on any thread."""
        with self._changing:
            occurrence = self._open.pop(entry, None)
        if occurrence is not None:
            self._save(occurrence, True)

    def finish(self) -> None:
        """Writes those that are open, as far as they are."""
        with self._changing:
            occurrences = [*self._open.values()]
            self._open.clear()
        for occurrence in occurrences:
            self._save(occurrence, False)

    def _save(self, occurrence: Occurrence, complete: bool) -> None:
        """The user's `on_snapshot` may enter phases, whose files it would get."""
        self._of_thread.is_ours = True
        try:
            self._write(occurrence, complete)
        except Exception as failure:
            self._fail(f"no file of the phase {occurrence.path[-1]}: {failure!r}")
        finally:
            self._of_thread.is_ours = False
