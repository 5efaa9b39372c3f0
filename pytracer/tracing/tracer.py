"""The tracer: the class that people use."""

import os
import sys
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from pytracer import _core
from pytracer.backends import oom
from pytracer.tracing import box, description, on_demand, phases, process
from pytracer.tracing.cell_names import cell_names, earlier_of_cell
from pytracer.tracing.device_recording import DeviceRecording, Indices
from pytracer.tracing.options import (
    Options,
    TracerOptions,
    switched_off,
    takes_options,
    with_options,
)
from pytracer.tracing.snapshot_writer import SnapshotWriter
from pytracer.tracing.step_recording import StepRecording
from pytracer.tracing.training_phases import TRAINING_PHASES

if TYPE_CHECKING:
    from pytracer.analysis.explanation import Explanation
    from pytracer.analysis.groups import Held
    from pytracer.page.page import Page
    from pytracer.reading.snapshot import Snapshot


@dataclass(frozen=True, repr=False)
class LiveReport:
    """The answer of `pytracer show` about the recording. A notebook shows it as text."""

    explanations: "list[Explanation]"  # of each device; those that ran out of memory come first

    def __str__(self) -> str:
        """Return the answer about each device, without commands that read a file."""
        from pytracer.analysis.answer_words import answer_of

        devices = [str(answer_of(one, is_saved=False)) for one in self.explanations]
        return "\n\n".join(devices) or "Nothing was recorded."

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


@with_options
class Tracer:
    """Records what the allocator does, and which Python code asked for it, in a bounded ring.

    Use it as a context manager, or call `start()` and `stop()`. Several tracers, nested or at the
    same time, share one recorder and do not disturb each other. A tracer that is still recording
    when the process exits writes its snapshot then. In a forked child the parent's tracers do
    nothing; the child can make its own.

    An option that is not given is taken from its variable, `PYTRACER_` and the option's name in
    capitals; without a variable it has its default. `PYTRACER=0` switches every tracer off.

    Args:
        ...: see `pytracer.tracing.options.TracerOptions`.

    Raises:
        ConfigError: An option cannot be used; the message names its value and the remedy.
    """

    # For subclasses: defaults of options that replace the documented ones, and whether a process
    # that used no device writes no file.
    _defaults: ClassVar[dict[str, object]] = {}
    _only_if_used: ClassVar[bool] = False

    @takes_options(TracerOptions)
    def __init__(self, given: dict[str, Any]) -> None:
        self._recording = DeviceRecording(Options.checked(given, **self._defaults))
        default_output = self._defaults.get("output")
        assert default_output is None or isinstance(default_output, str)
        self._writer = SnapshotWriter(self._recording, default_output, self._only_if_used)
        self._step_recording = StepRecording(self._recording, self._writer)
        self._bodies = 0  # `with` statements whose body runs
        self._is_cleared = False

    @property
    def _options(self) -> Options:
        return self._recording.options

    def __repr__(self) -> str:
        """Return a line that says whether the tracer records."""
        recording = getattr(self, "_recording", None)  # None: the constructor raised
        doing = "recording" if recording is not None and recording.is_going_on else "not recording"
        return f"<pytracer.Tracer, {doing}>"

    @property
    def _session(self) -> _core.Session:
        return self._recording.session

    def start(self) -> "Tracer":
        """Begin to record. After `stop()`, begin anew; while recording, do nothing.

        Where recording is impossible, for example because there is no hook for the running torch,
        a warning is logged once, and the job continues untraced.

        Raises:
            ConfigError: The output cannot be written to, `on_snapshot` names no function, or there
                is no room for the ring.
        """
        if self._session.recording or not self._session.is_ours:
            return self
        earlier = earlier_of_cell(self)
        if earlier is not None and not earlier._bodies:
            earlier.stop()
        self._is_cleared = False
        if self._options.dump_signal is not None and not switched_off():
            on_demand.WATCHER.defuse(self._options.dump_signal)
        if self._recording.is_forbidden():
            self._step_recording.begin("none")
            return self
        self._writer.open()
        self._step_recording.begin(self._options.step_from)
        if indices := self._recording.attach():
            self._record(indices)
        else:
            process.waiting.add(self)
        if self._writer.files is not None:
            box.look_after(self._writer.files.folder)
        return self

    def _record(self, indices: Indices) -> None:
        process.prepare_process()
        if self._writer.files is not None:
            box.enter(self._recording, self._writer.files.folder)
        self._step_recording.record(indices)
        self._writer.keep_in_box(self._metadata)
        process.waiting.discard(self)
        if "cuda" in indices:
            process.watch_threads()
        if self in process.recording:  # it recorded other devices until now
            return
        process.recording.add(self)
        if self._options.phases == "auto":
            TRAINING_PHASES.begin()
        if self._writer.files is not None:
            if self._options.max_oom_snapshots:
                oom.listeners.add(self._on_oom)
            signal, file = self._options.dump_signal, self._options.trigger_file
            on_demand.WATCHER.add(self._on_demand, signal, file)
            self._step_recording.await_first_step()

    def _follow_devices(self) -> None:
        """Begin anew if there are devices to record by now that are not recorded. Never raises.

        Nothing is lost: no accelerator has allocated yet, and "auto" meant the CPU only because
        there was no accelerator.
        """
        if not self._session.is_ours:
            return
        try:
            if indices := self._recording.attach_to_new():
                with self._step_recording.changing:
                    if self._step_recording.started:  # else it was stopped meanwhile
                        self._session.stop()
                        self._record(indices)
                        self._step_recording.drop_phases()
        except Exception as error:
            self._recording.leave_out("all", error)

    def stop(self) -> None:
        """End the recording; what was recorded stays readable as long as this tracer lives.

        With an output, it writes the snapshot, as the end of a `with` statement does. In the body
        of a `with` statement, the end of the statement writes it.
        """
        if self._session.recording and not self._bodies:
            self._finish(sys.exc_info()[1])  # it may be called because of an exception
        else:
            self._stop()

    def _stop(self) -> None:
        process.waiting.discard(self)
        if self in process.recording and self._options.phases == "auto":
            TRAINING_PHASES.end()
        process.recording.discard(self)
        oom.listeners.discard(self._on_oom)
        on_demand.WATCHER.remove(self._on_demand)
        if self._session.is_ours:  # in a forked child another thread of the parent may have locks
            self._step_recording.stop()

    def step(self) -> None:
        """End a step, and begin the next; `start()` begins step 1.

        Where the options select steps, the file of a window is written when its last step ends. A
        failure to write is logged and counted, not raised. Any thread may call it; what other
        threads do counts to the step that began last. With a `step_from`, it counts on from the
        step that was reported last. Steps are counted even where nothing can be recorded; in a
        forked child, and while the tracer is not started, it does nothing.
        """
        self._step_recording.enter(None, by_program=True)

    @property
    def current_step(self) -> int:
        """The number of the current step, or of the last one before `stop()`; 0: none."""
        return self._step_recording.steps.current

    def __enter__(self) -> "Tracer":
        """Begin to record; see `start()`."""
        self.start()
        self._bodies += 1
        return self

    def __exit__(self, _kind: object = None, error: Any = None, _traceback: object = None) -> None:
        """Stop and write the snapshot, whether the body raised or not."""
        self._bodies -= 1
        self._finish(error)

    def _finish(self, error: BaseException | None = None) -> None:
        """Stop and write. A failure is logged and counted, not raised; `error`: what ended it."""
        if not self._session.is_ours:
            return
        before = self._writer.written, self._writer.unwritten
        is_over = False
        try:
            self._write_end(error)
            is_over = True
        finally:  # `on_snapshot` may raise a KeyboardInterrupt, and so may a user before it
            written, unwritten = self._writer.written, self._writer.unwritten
            has_written = unwritten == before[1] and (is_over or written > before[0])
            box.leave(self._recording, has_written)

    def _write_end(self, error: BaseException | None) -> None:
        view: _core.View | None = None
        try:
            self._notify_hidden_oom(error)
            self._step_recording.finish_phases()
            self._stop()
            view = self._recording.view()
        except Exception as failure:
            self._writer.fail(
                f"cannot list the blocks alive at the end: {failure}", "no memory at the end"
            )
        self._writer.report_ooms()
        files = self._writer.files
        if files is None or not self._writer.is_worth_writing(view):
            return
        if self._step_recording.steps.are_selected:
            self._step_recording.finish_window(view)
        elif self._options.steps is None:
            path = files.at_the_end()
            if path is None or not self._writer.save(path, self._metadata()):
                return
            if files.is_of_first_process:
                description.report_file(
                    path,
                    self._recording,
                    view,
                    is_cleared=self._is_cleared,
                    may_leak=self._step_recording.may_leak,
                )

    def _notify_hidden_oom(self, error: BaseException | None) -> None:
        if error is not None and "cuda" in self._recording.indices and self._session.recording:
            used = self._session.view(history=False).used_devices
            oom.notify_hidden(error, {*self._recording.indices["cuda"]} & {*used})

    def clear(self) -> None:
        """Forget the events so far, for this tracer only; live blocks keep their stacks."""
        self._session.clear()
        self._is_cleared = True

    def dump(self, path: str | os.PathLike[str] | int) -> None:
        """Write a PyTorch memory snapshot of what is recorded now, or was recorded at `stop()`.

        The file is written under a temporary name and renamed, so that it is complete or missing.
        If that is impossible, the file is written in place. A pipe or a device is written to. A
        descriptor is written to and closed.
        Format: `torch.cuda.memory._snapshot()`, and the key `pytracer`
        (docs/reference/snapshot-format.md).

        Raises:
            OSError: The file cannot be written.
        """
        self._writer.write(path, self._metadata())

    def snapshot(self) -> dict[str, Any]:
        """Return what `dump()` would write, as a dict.

        Frames and lists of frames are shared objects: do not change them.
        """
        return self._writer.as_dict(self._metadata())

    def events(self) -> npt.NDArray[np.void]:
        """Return the events that are held, in order of time: a structured array of shape `(n,)`.

        Fields:
            sequence (u8): The number of the ring event on its device, from 0, without gaps.
            time_ns (i8): The wall time, in nanoseconds since the epoch.
            address (u8): The address of the block or segment; for `oom`, the free bytes of the
                device or system.
            size_bytes (u8): The bytes that were requested; for a free, those of the allocation.
            stream (u8): The handle of the stream; 0: the default stream.
            stack (u4): The stack of the event, for `frames()`; 0: none.
            alloc_stack (u4): For a free, the stack of the allocation; 0: none.
            pool_high, pool_low (u8): The id of the memory pool, as in a snapshot's `pool_id`.
            step (u4): The step of the event; 0: none.
            phase (u2): The phase of the event, for `phase()`; 0: none.
            action (u1): An index into `pytracer.ACTIONS`. The CPU has `alloc`, `free_completed`
                and `oom`. On an accelerator, a free that was completed at once is one ring event,
                and has two rows: `free_requested` and `free_completed`.
            device (i1): The index of the accelerator; -1: the CPU; 64: pinned host memory.
        """
        return self._session.events()

    def frames(self, stack: int) -> list[dict[str, Any]]:
        """Return the frames of a `stack` of `events()`, innermost first: dicts as in a snapshot.

        The number belongs to the last call of `events()`, or to an earlier array that still exists.
        A deep stack, of more than `stack_depth` frames, may have several numbers.

        Raises:
            IndexError: This tracer has no such stack. Stack 0 means no stack, and has no frames.
        """
        cells = cell_names()
        return [
            {"filename": cells.get(filename, filename), "name": name, "line": line}
            for filename, name, line in self._session.frames(stack)
        ]

    def phase(self, number: int) -> tuple[str, ...]:
        """Return the names of a `phase` of `events()` and of the phases around it, outermost first.

        Raises:
            IndexError: This process has no such phase. Phase 0 means no phase, and has no names.
        """
        return phases.path_of(number)

    def stats(self) -> dict[str, Any]:
        """Return counts, and the bytes held against their bounds.

        Returns:
            `recording`: whether anything is recorded. `waiting`: whether only live blocks are
            tracked, between windows. `untraced`: why a device, or all devices, are not recorded, or
            None. `failures`: snapshots that could not be written, or lack their segments.
            `oom_snapshots`: out-of-memory snapshots that were tried, replaced ones included.
            `devices`: a dict per device: ring events `recorded`, `held` and `overwritten`;
            `unknown_frees`: frees of unknown blocks, for example of blocks older than the
            recording, which the CPU's events leave out; `live_dropped`: allocations that found the
            live table full: the CPU's events leave them out, on other devices their blocks have no
            stack; `labels_dropped`: memory pools and metadata that found their table full and are
            shown as none; `live_blocks` and `live_block_bytes`: what is live now; `ring_bytes` of
            `max_ring_bytes`, `live_table_bytes` of `max_live_table_bytes`.
            `stacks`: distinct `stacks`, `frames` and `codes`; `truncated`: stacks cut at
            `stack_depth`; `dropped`: events that have no stack because the table was full; `bytes`
            of `max_bytes`.
        """
        files = self._writer.files
        return {
            "recording": self._recording.is_going_on,
            "waiting": not self._step_recording.steps.are_recorded,
            "untraced": self._recording.why_untraced,
            "failures": self._writer.failures,
            "oom_snapshots": 0 if files is None else files.oom_snapshots,
            **self._session.stats(),
        }

    def report(self) -> LiveReport:
        """Return the answer of `pytracer show` about the recording so far."""
        from pytracer.analysis.explanation import explain
        from pytracer.simulator.trials import try_settings

        return LiveReport(explain(self._loaded(), None, try_settings))

    def view(self, max_events: int = 1_000_000) -> "Page":
        """Return the recording so far as a page, as `pytracer view` would write it.

        A notebook shows the page. `save("report.html")` writes it to a file.

        Args:
            max_events: The most events in the page; the newest are kept.
        """
        from pytracer.errors import PytracerError
        from pytracer.page.open_file import open_file
        from pytracer.page.page import page_of

        if max_events < 1:
            raise PytracerError(f"max_events is {max_events}: give at least 1")
        return page_of(open_file(self._loaded()), max_events, is_saved=False)

    def who_holds(self, by: str = "line", *, at: str = "end", depth: int = 0) -> "list[Held]":
        """Return who holds memory now, or at another moment, for each device.

        Args:
            by: What to group by: "line", "caller", "stack", "category", "owner", "holder",
                "module", "phase", "step", "age", "stream" or "pool".
            at: "end" (now), "peak", "oom", the index of an event, or "+SECONDS" after the first.
            depth: How many callers distinguish groups by "line" and "caller".

        Raises:
            PytracerError: There is no such moment, or `by` is unknown.
        """
        from pytracer.analysis.groups import who_holds

        return who_holds(self._loaded(), at=at, by=by, depth=depth)

    def _loaded(self) -> "Snapshot":
        from pytracer.reading.reader import load

        return load(self._writer.as_bytes(self._metadata()))

    def _metadata(self) -> dict[str, Any]:
        """Return what a snapshot of the present says in addition to `snapshot_writer.metadata`."""
        return self._step_recording.described()

    def _on_oom(self, event: oom.OutOfMemory) -> None:
        self._writer.on_oom(event, self._metadata())

    def _on_demand(self, when: datetime) -> None:
        self._writer.on_demand(when, self._metadata())
