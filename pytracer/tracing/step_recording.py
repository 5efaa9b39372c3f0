"""The steps of one tracer: which step it is in, what is recorded, and the files of windows."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import get_ident

from pytracer import _core
from pytracer.log import harmless, warn_once
from pytracer.tracing import phases, step_sources
from pytracer.tracing.device_recording import DeviceRecording, Indices
from pytracer.tracing.host_memory import HostMemory
from pytracer.tracing.kept_at_steps import KeptAtSteps
from pytracer.tracing.phases import path_of
from pytracer.tracing.snapshot_writer import Metadata, SnapshotWriter
from pytracer.tracing.step_windows import Steps, Window

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


class StepRecording:
    """Has the session of a tracer follow the steps, and writes a file when a window ends.

    Any thread may call the methods. `changing` guards all attributes and the session's window.
    """

    def __init__(self, recording: DeviceRecording, writer: SnapshotWriter) -> None:
        self._recording = recording
        self._writer = writer
        self.changing = threading.RLock()
        self.started = False  # also if there is nothing to record yet
        self.steps = Steps()
        self._host = HostMemory()
        self._kept = KeptAtSteps(recording)
        self._source = step_sources.Source()
        self._discrete: DiscreteWindows | None = None
        self._late_steps: threading.Timer | None = None

    @property
    def may_leak(self) -> bool:
        """Whether memory had grown when that was looked at last."""
        return self._kept.may_leak

    def described(self) -> Metadata:
        """Return what a snapshot of the present has about the steps."""
        return {
            "current_step": self.steps.current,
            "step_from": self._source.name,
            "host_memory": [[step, size_bytes] for step, size_bytes in self._host.samples],
            "kept_at_steps": self._kept.seen,
            "unsearched_at_steps": self._kept.unsearched,
            "waiting": not self.steps.are_recorded,
        }

    def begin(self, step_from: str | None) -> None:
        """Begin the first step."""
        options = self._recording.options
        with self.changing:
            self._end()  # the tracer may have been started before, with nothing to record
            self.steps = self._new_steps()
            if options.discrete and self._writer.files is not None:
                self._discrete = DiscreteWindows(
                    self._recording, self._save_occurrence, self._writer.fail
                )
                phases.listeners.add(self._discrete)
            if step_from is None and not self.steps.are_selected:
                step_from = "framework"
            self._source = step_sources.follow(step_from, self.enter, self._restart)
            self.started = True
            self._move_to(self._source.first_step)

    def _new_steps(self) -> Steps:
        options = self._recording.options
        return Steps(options.steps, options.memory_snapshot_num_steps, options.schedule)

    def _restart(self, step: int = 0) -> None:
        """Be in this step, as if no other had begun. Never raises."""
        session = self._recording.session
        with self.changing:
            if not session.is_ours or not self.started:
                return
            with harmless(
                "steps are not recorded: {error}", "a restart of steps", self._writer.fail
            ):
                self.steps = self._new_steps()
                self._move_to(step)
                if session.recording:
                    session.begin_step(step, replaces=True)
                    session.start(self.steps.are_recorded)

    def record(self, indices: Indices) -> None:
        """Record these devices in the current step; see `DeviceRecording.start`."""
        with self.changing:
            try:
                self._recording.start(indices, self.steps.current, self.steps.are_recorded)
            except Exception:
                self._end()
                raise

    def drop_phases(self) -> None:
        """Drop open windows of phases, which began on other devices."""
        with self.changing:
            if self._discrete is not None:
                self._discrete.clear()

    def stop(self) -> None:
        """End the steps and the recording."""
        with self.changing:
            self._end()
            if self._recording.session.recording:
                self._recording.stop()

    def _end(self) -> None:
        self.started = False
        self._source.close()
        self._end_warning()
        if self._discrete is not None:
            phases.listeners.discard(self._discrete)
            self._discrete = None

    def await_first_step(self) -> None:
        """Warn later, if no step has come by then."""
        with self.changing:
            if self.steps.are_selected and self.steps.entered <= self._source.first_step:
                self._late_steps = step_sources.warn_late(self._report_late_steps)

    def _end_warning(self) -> None:
        if self._late_steps is not None:
            self._late_steps.cancel()
            self._late_steps = None

    def _report_late_steps(self) -> None:
        """Warn, on a thread of its own, that the steps to be recorded may never come."""
        with self.changing:
            if self._late_steps is None:  # a step came
                return
            devices = self._recording.session.stats()["devices"]
            if not any(device["recorded"] or device["live_blocks"] for device in devices):
                self._late_steps = step_sources.warn_late(self._report_late_steps)
                return
        if self._writer.writes_steps and not self._source.may_be_late:
            warn_once(
                f"no step has been reported for {step_sources.NO_STEP_SECONDS:g} s, so no snapshot "
                f"of the selected steps has been written: {self._source.remedy}. Steps that come "
                "later are recorded as usual",
                "late steps",
            )

    def enter(self, step: int | None, by_program: bool = False) -> None:
        """End the current step and begin another: `step`; 0: none; None: the next. Never raises.

        `by_program`: the program calls, and not a framework or an optimizer.
        """
        if not self._recording.session.is_ours:
            return
        with self.changing:
            if not self.started:
                return
            self._end_warning()
            if by_program:
                self._yield_to_program()
            before = self.steps.current
            try:
                ended = self._move_to(before + 1 if step is None else step)
                view = self._end_window(ended)
            except Exception as failure:
                message = f"step {self.steps.current} is not recorded: {failure!r}"
                self._writer.fail(message, f"a step: {type(failure)}")
                return
        has_looked = self._kept.look(self.steps.current)
        self._writer.keep_in_box(self.described, is_urgent=has_looked)
        if ended is not None and view is not None:
            self._save_window(ended, before, view)

    def _yield_to_program(self) -> None:
        """Forget steps that nobody asked for, now that the program calls `step()`."""
        if not self._source.yields or self.steps.are_selected:  # then files may be written
            self._source.program_steps()
            return
        self._source.close()
        self._source = step_sources.Source()
        self._restart(self._source.first_step)

    def _move_to(self, step: int) -> Window | None:
        """Begin a step; return the window that ends."""
        ended = self.steps.enter(step)
        self._host.note(step)
        if self._discrete is not None:
            self._discrete.begin_step(step, self.steps.are_recorded)
        return ended

    def _end_window(self, ended: Window | None) -> _core.View | None:
        """Move the session to the new step; return the view of the window to be written, if any."""
        session = self._recording.session
        if not session.recording:
            return None
        if ended is not None and self._writer.writes_steps:
            return self._recording.end_window(self.steps.are_recorded, self.steps.current)
        session.begin_step(self.steps.current)
        session.start(self.steps.are_recorded)
        if ended is not None:
            session.clear()
        return None

    def _save_window(self, window: Window, step: int, view: _core.View | None) -> None:
        if not self._writer.is_worth_writing(view):
            return
        if view is not None and view.overwritten:
            entries = self._recording.options.trace_alloc_max_entries
            warn_once(
                f"{window.name} has more events than trace_alloc_max_entries={entries}: its "
                "file has only the latest events. Raise trace_alloc_max_entries to keep all",
                "overwritten",
            )
        assert self._writer.files is not None
        self._save(self._writer.files.of_window(window), window, view, current_step=step)

    def _save(self, path: Path, window: Window, view: _core.View | None, **more: object) -> None:
        described = {**self.described(), "window": asdict(window), "waiting": False, **more}
        if self._writer.save(path, described, view):
            self._writer.report_steps(path)

    def _save_occurrence(self, occurrence: Occurrence, complete: bool) -> None:
        """Write a phase's file, on the thread that leaves the phase."""
        assert self._writer.files is not None
        if not self._writer.writes_steps:
            return
        view = self._recording.view(occurrence.session, occurrence.phase)
        if self._writer.is_worth_writing(view):
            first, path, number = occurrence.step, occurrence.path, occurrence.number
            last = max(first, self.steps.current)
            window = Window(first, last, complete, "/".join(path), number)
            self._save(self._writer.files.of_phase(first, path[-1], number), window, view)

    def finish_phases(self) -> None:
        """Write the files of phases that are not over yet."""
        if (discrete := self._discrete) is None:
            return
        discrete.finish()
        if self.steps.windows and not discrete.total and self._writer.writes_steps:
            wanted = self._recording.options.discrete
            warn_once(f"discrete={wanted!r} wrote no file: no such phase began in a recorded step")

    def finish_window(self, view: _core.View | None) -> None:
        """Write the window that is open at the end; warn if no selected step came."""
        window = self.steps.cut_short()
        if window is not None and (view is None or view.has_events) and self._writer.writes_steps:
            self._save_window(window, self.steps.current, view)
        if view is None or not view.used_devices:
            return
        if self.steps.entered <= self._source.first_step:
            written = "no snapshot of the selected steps was written"
            if window is not None:
                written = f"the file of {window.name} has everything that was recorded"
            warn_once(f"no step was reported, so {written}: {self._source.remedy}", "no step")
        elif not self.steps.windows:
            warn_once(
                "no snapshot of the selected steps was written: none of them was reached before "
                f"the recording ended in step {self.steps.current}",
                "no selected step",
            )
        elif (
            not isinstance(self._recording.options.steps, range)  # which may mean every step
            and self.steps.last_selected > max(self.steps.current, self.steps.last)
            and self._writer.writes_steps
        ):
            warn_once(
                f"step {self.steps.last_selected} was selected, but never reached: the recording "
                f"ended in step {self.steps.current}",
                "not all selected steps",
            )
