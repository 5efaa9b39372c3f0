"""Discrete windows: a phase's own snapshot of each time it occurs, beside that of its step."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pytracer import _core
from pytracer.phases import path_of


@dataclass(frozen=True)
class Occurrence:
    """One time that a phase was entered, and not left yet.

    Attributes:
        owner: Records from then on.
        phase: Its number.
        path: Names of the phases it is nested in, outermost first, and its own.
        step: In which it was entered.
        number: From 1, among those of the name in the step.
    """

    owner: _core.Owner
    phase: int
    path: tuple[str, ...]
    step: int
    number: int


class DiscreteWindows:
    """A listener of `phases`, for one tracer. Any thread; raises nothing.

    An occurrence is recorded if it begins in a step that is, and written when it ends.
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
        self._changing = threading.RLock()  # all below
        self._step = 0
        self._is_recorded = False
        self._counts: Counter[str] = Counter()  # by name, in this step
        self._open: dict[int, Occurrence] = {}  # by entry

    def begin_step(self, step: int, is_recorded: bool) -> None:
        """Occurrences that are open go on."""
        with self._changing:
            self._step = step
            self._is_recorded = is_recorded
            self._counts.clear()
            for occurrence in self._open.values():
                occurrence.owner.begin_step(step)

    def entered(self, entry: int, phase: int) -> None:
        """As `phases` tells it, of the calling thread."""
        if not self._is_recorded:
            return
        path = path_of(phase)
        if not self._is_wanted(path):
            return
        try:
            with self._changing:
                owner = self._new_owner()
                if owner is None:
                    return
                owner.begin_step(self._step)
                owner.start()
                self._counts[path[-1]] += 1
                number = self._counts[path[-1]]
                self._open[entry] = Occurrence(owner, phase, path, self._step, number)
        except Exception as failure:
            self._fail(f"the phase {path[-1]} has no file: {failure!r}")

    def _is_wanted(self, path: tuple[str, ...]) -> bool:
        """A phase within itself belongs to the outer one."""
        if isinstance(self._wanted, bool):
            return self._wanted and len(path) == 1
        return len(path) > 0 and path[-1] in self._wanted and path[-1] not in path[:-1]

    def left(self, entry: int) -> None:
        """As `phases` tells it; on any thread."""
        with self._changing:
            occurrence = self._open.pop(entry, None)
        if occurrence is not None:
            self._write(occurrence, True)

    def finish(self) -> None:
        """Writes those that are open, as far as they are."""
        with self._changing:
            occurrences = [*self._open.values()]
            self._open.clear()
        for occurrence in occurrences:
            self._write(occurrence, False)
