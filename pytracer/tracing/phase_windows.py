"""Discrete windows: a snapshot for each time a phase occurs, next to the one of its step."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident

from pytracer import _core
from pytracer.log import harmless
from pytracer.tracing.device_recording import DeviceRecording
from pytracer.tracing.phases import path_of

MAX_OCCURRENCES = 100  # of phases that get a file in a step; each file has all live blocks


@dataclass(frozen=True)
class Occurrence:
    """An occurrence of a phase that was entered and not left yet."""

    session: _core.Session  # started when the phase was entered
    phase: int
    path: tuple[str, ...]  # the names of the phases around it, outermost first, and its own
    step: int  # when the phase was entered
    number: int  # counts the occurrences of the name in the step, from 1
    thread: int


class DiscreteWindows:
    """A listener of `phases`, for one tracer. Any thread may call it; it never raises.

    An occurrence is recorded if it begins in a recorded step, and written when it ends: `write`
    gets it, and whether it is complete. `fail` counts a failure; it gets a message, and a kind of
    which one message is logged.
    """

    def __init__(
        self,
        recording: DeviceRecording,
        write: Callable[[Occurrence, bool], None],
        fail: Callable[[str, str | None], None],
    ) -> None:
        self._wanted = recording.options.discrete
        self._recording = recording
        self._write = write
        self._fail = fail
        self.total = 0  # occurrences in recorded steps, whether there was room for them or not
        self._writing = threading.local()
        self._changing = threading.RLock()  # guards all below
        self._step = 0
        self._is_recorded = False
        self._counts: Counter[str] = Counter()  # occurrences by name, in this step
        self._open: dict[int, Occurrence] = {}  # by number of the entry

    def begin_step(self, step: int, is_recorded: bool) -> None:
        """Begin a step. Open occurrences continue, unless the core knows that they are over."""
        with self._changing:
            self._step = step
            self._is_recorded = is_recorded and step > 0
            self._counts.clear()
            for entry, occurrence in [*self._open.items()]:
                if _core.is_entered(entry):
                    occurrence.session.begin_step(step)
                else:  # its thread ended inside of the phase
                    del self._open[entry]

    def clear(self) -> None:
        """Drop the open occurrences."""
        with self._changing:
            self._open.clear()

    def entered(self, entry: int, phase: int) -> None:
        """Open an occurrence, on the thread that entered the phase; called by `phases`."""
        if not self._is_recorded or getattr(self._writing, "is_active", False):
            return
        name = ""
        try:
            path = path_of(phase)
            name = path[-1] if path else ""
            wanted = self._wanted
            is_wanted = len(path) == 1 if isinstance(wanted, bool) else name in wanted
            if is_wanted:
                with self._changing:
                    self._open_occurrence(entry, phase, path)
        except Exception as failure:
            self._fail(f"the phase {name} gets no file: {failure!r}", f"entered: {type(failure)}")

    def _open_occurrence(self, entry: int, phase: int, path: tuple[str, ...]) -> None:
        thread = get_ident()
        open_ones = [*self._open.values()]
        if any((outer.phase, outer.thread) == (phase, thread) for outer in open_ones):
            return  # nested in itself: it belongs to the outer occurrence
        if self._counts.total() >= MAX_OCCURRENCES:
            message = (
                f"discrete: more than {MAX_OCCURRENCES} phases occurred in a step; the later ones "
                "get no file of their own. Name fewer phases"
            )
            self._fail(message, message)
            return
        self.total += 1
        if not self._recording.session.recording:
            return
        session = self._recording.new_session()
        session.begin_step(self._step)
        session.start()
        self._counts[path[-1]] += 1
        number = self._counts[path[-1]]
        self._open[entry] = Occurrence(session, phase, path, self._step, number, thread)

    def left(self, entry: int) -> None:
        """Write the occurrence, on the thread that left the phase; called by `phases`."""
        with self._changing:
            occurrence = self._open.pop(entry, None)
        if occurrence is not None:
            self._save(occurrence, True)

    def finish(self) -> None:
        """Write the open occurrences, which are incomplete."""
        with self._changing:
            occurrences = [*self._open.values()]
            self._open.clear()
        for occurrence in occurrences:
            self._save(occurrence, False)

    def _save(self, occurrence: Occurrence, complete: bool) -> None:
        """Write an occurrence. Phases that the user's `on_snapshot` enters get no file."""
        self._writing.is_active = True
        try:
            failed = f"the phase {occurrence.path[-1]} gets no file: {{error}}"
            with harmless(failed, "left", self._fail):
                self._write(occurrence, complete)
        finally:
            self._writing.is_active = False
