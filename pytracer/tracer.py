"""The tracer: what people use."""

import os
import pickle
import platform
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import pytracer
from pytracer import _core, lifetime, on_demand, oom, phases, ranks, step_sources
from pytracer.config import OPTIONS, UNSET, Device, Options, Output, Unset, switched_off
from pytracer.config_checks import OnSnapshot
from pytracer.discrete import DiscreteWindows, Occurrence
from pytracer.notices import say_once
from pytracer.output import Files
from pytracer.recording import Indices, Recording
from pytracer.windows import Schedule, Steps, Window

FORMAT_VERSION = (1, 4)
"""Of a snapshot's `pytracer` dict. Minor: keys were added. Major: a key's meaning changed."""


class Tracer:
    """Records what the allocator does, and which Python code asked for it, in a bounded ring.

    Use it as a context manager, or call `start()` and `stop()`. Several tracers, nested or at the
    same time, share one recorder and do not disturb each other. A tracer that is still recording
    when the process exits writes its snapshot then. In a forked child the parent's tracers do
    nothing; the child can make its own.

    An option that is not given is taken from its variable, `PYTRACER_` and its name in capitals, or
    else is the default named here. `PYTRACER=0` switches every tracer off.

    Args:
        output: where the snapshot is written at the end: None (nowhere, the default), a file name
            ending in `.pickle`, or a directory (see `pytracer.output`).
        device: "auto" (the default: the accelerator that is there, else the CPU), "cpu", "cuda" or
            "npu" (all devices of the process), one of them as in "cuda:1", or a list of these. A
            device that torch has not initialised yet is recorded from its initialisation on;
            which ones there are is looked at again then.
        trace_alloc_max_entries: how many events are kept for each device (100,000); 64 bytes each,
            committed as the ring fills. The oldest are overwritten, and counted.
        stack_depth: how many Python frames are kept of a stack, innermost first (32).
        context: which stacks are kept. "all" (the default): every event has the stack of the thread
            that caused it. "alloc": events have the stack of the allocation they belong to.
            "state": only the blocks alive have one, that of their allocation. None: no stacks.
        max_stack_bytes: bound of the table that holds every distinct stack once (32 MiB); stacks
            beyond it are left out, and counted. While several tracers are alive, the first one's
            bound holds.
        metadata: plain values (dicts, lists, strings, numbers) to be kept in the snapshot.
        steps: the steps that are recorded and written, from 1 (see `step()`), instead of one
            snapshot at the end of all. Outside of them the live blocks alone go on being known,
            with their stacks. Empty: all is recorded and nothing is written at the end. None (the
            default): one snapshot at the end.
        memory_snapshot_num_steps: how many of these share a file: a window, which has all from the
            begin of the first one to the end of the last one (1).
        schedule: what `torch.profiler.schedule()` returns: it selects the steps instead. A window
            is what is recorded without interruption, up to RECORD_AND_SAVE. It may be asked of a
            step more than once (None).
        step_from: who tells that a step is over, beside `step()`. "framework": verl, of the steps
            that it profiles. "optimizer": the first optimizer of torch's that steps;
            "optimizer:AdamW": the first one of this class. None (the default): nobody.
        discrete: phases (`pytracer.annotate`) that have a snapshot of their own for each time they
            occur in a step that is recorded: a list of names, or True: those that are in no other
            one. False (the default): none.
        ranks: which ranks write the snapshots at the end and of steps; empty (the default): rank 0.
            A process that has no rank writes.
        all_ranks: all ranks write them (False).
        oom_ranks: which ranks write snapshots of an out-of-memory; None (the default): all.
        role: stands in the file's name where there is no rank (None).
        on_oom: write a snapshot when memory runs out, before the exception is raised (True). Needs
            an output.
        max_oom_snapshots: how many of those at most (3).
        keep_last: how many of the snapshots on demand are kept; None (the default): all.
        on_snapshot: called with the path of each file this tracer has written by itself, in the
            thread that wrote it; "module:function" is imported then (None).
        dump_signal: a signal, by name or number, on which a snapshot is written (None). Its handler
            is replaced.
        trigger_file: a file; whenever it is made or touched, a snapshot is written (None).

    Raises:
        ConfigError: an option cannot be used; the message names its value and the remedy.
    """

    # For subclasses: options' defaults, in place of the documented ones, and whether a process
    # that used no device leaves nothing on the disk.
    _defaults: ClassVar[dict[str, object]] = {}
    _only_if_used: ClassVar[bool] = False

    def __init__(
        self,
        output: Output | Unset = UNSET,
        *,
        device: Device | Unset = UNSET,
        trace_alloc_max_entries: int | Unset = UNSET,
        stack_depth: int | Unset = UNSET,
        context: str | Unset | None = UNSET,
        max_stack_bytes: int | Unset = UNSET,
        metadata: dict[str, Any] | Unset | None = UNSET,
        steps: Sequence[int] | Unset | None = UNSET,
        memory_snapshot_num_steps: int | Unset = UNSET,
        schedule: Schedule | Unset | None = UNSET,
        step_from: str | Unset | None = UNSET,
        discrete: bool | Sequence[str] | Unset = UNSET,
        ranks: Sequence[int] | Unset = UNSET,
        all_ranks: bool | Unset = UNSET,
        oom_ranks: Sequence[int] | Unset | None = UNSET,
        role: str | Unset | None = UNSET,
        on_oom: bool | Unset = UNSET,
        max_oom_snapshots: int | Unset = UNSET,
        keep_last: int | Unset | None = UNSET,
        on_snapshot: OnSnapshot | Unset = UNSET,
        dump_signal: str | int | Unset | None = UNSET,
        trigger_file: Output | Unset = UNSET,
    ) -> None:
        """Checks the options; records nothing yet."""
        given = {name: value for name, value in locals().items() if name in OPTIONS}
        self._options = Options.checked(given, **self._defaults)
        self._failures = 0
        self._files: Files | None = None  # once started
        self._recording = Recording(self._options)
        self._stepping = threading.RLock()  # all below, and the owner's window
        self._started = False
        self._steps = Steps()
        self._source = step_sources.Source()
        self._discrete: DiscreteWindows | None = None

    @property
    def _owner(self) -> _core.Owner:
        return self._recording.owner

    def start(self) -> "Tracer":
        """Begins to record; does nothing while recording. After `stop()`: begins anew.

        Where recording is impossible (no hook for the running torch, say) that is said once, in the
        log, and the job runs on untraced.

        Raises:
            ConfigError: the output cannot be written to, or there is no room for the ring.
        """
        if self._owner.recording or not self._owner.is_ours:
            return self
        if self._options.dump_signal is not None and not switched_off():
            on_demand.defuse(self._options.dump_signal)
        if self._recording.is_forbidden():
            self._begin_steps(None)
            return self
        if self._options.output is not None:
            self._files = self._files or Files(self._options)
            self._files.prepare(make=not self._only_if_used)
        self._begin_steps(self._options.step_from)
        if indices := self._recording.attach():
            self._record(indices)
        else:
            lifetime.waiting.add(self)
        return self

    def _record(self, indices: Indices) -> None:
        lifetime.prepare_process()
        with self._stepping:
            try:
                self._recording.start(indices, self._steps.current, self._steps.are_recorded)
            except Exception:
                self._end_steps()
                raise
        lifetime.waiting.discard(self)
        if self in lifetime.recording:  # on other devices
            return
        lifetime.recording.add(self)
        if self._files is not None:
            if self._options.on_oom:
                oom.listeners.add(self._on_oom)
            on_demand.watch(self._on_demand, self._options.dump_signal, self._options.trigger_file)

    def _follow_devices(self) -> None:
        """Begins anew if by now there are devices to record that it does not record.

        Nothing is lost: no accelerator has allocated yet, and "auto" meant the CPU for want of one.
        What fails is said, not raised.
        """
        if not self._owner.is_ours:
            return
        try:
            if indices := self._recording.attach_to_new():
                with self._stepping:
                    if not self._started:  # stopped meanwhile
                        return
                    self._owner.stop()
                    self._record(indices)
                    if self._discrete is not None:
                        self._discrete.follow_devices()
        except Exception as error:
            self._recording.leave_out("all", error)

    def stop(self) -> None:
        """Ends the recording; what was recorded stays readable as long as this tracer lives."""
        lifetime.waiting.discard(self)
        lifetime.recording.discard(self)
        oom.listeners.discard(self._on_oom)
        on_demand.unwatch(self._on_demand)
        if not self._owner.is_ours:  # nor the lock, which another thread of the parent may hold
            return
        with self._stepping:
            self._end_steps()
            if self._owner.recording:
                self._recording.stop()

    def step(self) -> None:
        """Ends a step, and begins the next; `start()` begins the first, which is 1.

        Where the options select steps, the file of a window is written when its last step ends. A
        failure to write is said and counted, not raised. Any thread may call it; what other threads
        do counts to the step that began last. With a `step_from`, it counts on from the step told
        last. Where nothing can be recorded it counts all the same; in a forked child, and while not
        started, it does nothing.
        """
        self._enter_step(None)

    @property
    def current_step(self) -> int:
        """The number of the step it is in, or was in when it stopped; 0: none."""
        return self._steps.current

    def _begin_steps(self, step_from: str | None) -> None:
        options = self._options
        with self._stepping:
            self._end_steps()  # it was started before, and found nothing to record
            number = options.memory_snapshot_num_steps
            self._steps = Steps(options.steps, number, options.schedule)
            if options.discrete and self._files is not None:
                self._discrete = DiscreteWindows(
                    options.discrete, self._occurrence_owner, self._save_occurrence, self._fail
                )
                phases.listeners.add(self._discrete)
            self._source = step_sources.follow(step_from, self._enter_step)
            self._started = True
            self._move_to(self._source.first_step)

    def _end_steps(self) -> None:
        self._started = False
        self._source.close()
        if self._discrete is not None:
            phases.listeners.discard(self._discrete)
            self._discrete = None

    def _enter_step(self, step: int | None) -> None:
        """Ends the step it is in, and begins this one; 0: none, None: the next. Raises nothing."""
        if not self._owner.is_ours:
            return
        with self._stepping:
            if not self._started:
                return
            before = self._steps.current
            try:
                ended = self._move_to(before + 1 if step is None else step)
                view = self._turn(ended)
            except Exception as failure:
                self._fail(f"step {self._steps.current}: {failure!r}")
                return
        if ended is not None and view is not None:
            self._save_window(ended, before, view)

    def _move_to(self, step: int) -> Window | None:
        """The window that ends."""
        ended = self._steps.enter(step)
        if self._discrete is not None:
            self._discrete.begin_step(step, self._steps.are_recorded)
        return ended

    def _turn(self, ended: Window | None) -> _core.View | None:
        """Has the owner follow; the view of the window that ends, if that is to be written."""
        if not self._owner.recording:
            return None
        if ended is not None and self._writes_steps():
            return self._owner.turn(self._steps.are_recorded, self._steps.current)
        self._owner.begin_step(self._steps.current)
        self._owner.start(self._steps.are_recorded)
        if ended is not None:
            self._owner.clear()
        return None

    def _writes_steps(self) -> bool:
        return self._files is not None and self._files.are_wanted()

    def _save_window(self, window: Window, step: int, view: _core.View | None) -> None:
        assert self._files is not None
        if self._is_of_use(view):
            if view is not None and view.overwritten:
                say_once(
                    f"{window.name} has more events than trace_alloc_max_entries="
                    f"{self._options.trace_alloc_max_entries}: of such a window the last are kept",
                    "overwritten",
                )
            about = {**asdict(window), "phase": None, "occurrence": None}
            more = {"window": about, "current_step": step, "waiting": False}
            self._save(self._files.of_window(window), more, view)

    def _occurrence_owner(self) -> _core.Owner | None:
        return self._recording.new_owner() if self._owner.recording else None

    def _save_occurrence(self, occurrence: Occurrence, complete: bool) -> None:
        """On the thread that leaves the phase."""
        assert self._files is not None
        if not self._writes_steps():  # the rank may have come later
            return
        view = occurrence.owner.view(phase=occurrence.phase)
        if self._is_of_use(view):
            first, last = occurrence.step, max(occurrence.step, self._steps.current)
            about = {
                **asdict(Window(first, last, complete)),
                "phase": "/".join(occurrence.path),
                "occurrence": occurrence.number,
            }
            path = self._files.of_phase(first, occurrence.path[-1], occurrence.number)
            self._save(path, {"window": about, "waiting": False}, view)

    def _is_of_use(self, view: _core.View | None) -> bool:
        return view is None or not self._only_if_used or bool(view.used_devices)

    def __enter__(self) -> "Tracer":
        """Starts."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Writes the snapshot, whether the body raised or not, and stops."""
        self._finish()

    def _finish(self) -> None:
        """Stops and writes; a failure is said and counted, not raised: the training goes on."""
        if not self._owner.is_ours:
            return
        discrete = self._discrete
        try:
            if discrete is not None:
                discrete.finish()
                if self._steps.windows and not discrete.total and self._writes_steps():
                    say_once(f"no phase of discrete={self._options.discrete!r} began in a window")
            self.stop()
            view = self._owner.view()
        except Exception as failure:
            self._fail(f"no memory for the blocks alive at the end: {failure}")
            view = None
        if self._files is None or not self._is_of_use(view):
            return
        if self._steps.are_selected:
            self._finish_window(view)
        elif self._options.steps is None and (path := self._files.at_the_end()) is not None:
            self._save(path, {})

    def _finish_window(self, view: _core.View | None) -> None:
        """Writes the one that is open; says so if steps were awaited in vain."""
        window = self._steps.cut_short()
        if window is not None and (view is None or view.has_events) and self._writes_steps():
            self._save_window(window, self._steps.current, view)
        if view is None or not view.used_devices:
            return
        if self._steps.entered <= self._source.first_step:
            say_once(f"no step was told, of those that were to be recorded: {self._source.remedy}")
        elif not self._steps.windows:
            say_once(f"no step that was to be recorded came: it ended in {self._steps.current}")

    def _save(self, path: Path, more: dict[str, Any], view: _core.View | None = None) -> bool:
        """Writes a file by itself, for which no caller can be told of a failure."""
        assert self._files is not None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(path, more, view)
        except Exception as failure:
            kind = f"not written: {getattr(failure, 'strerror', None) or failure!r}"
            self._fail(f"the snapshot {path} was not written: {failure}", kind)
            return False
        try:
            self._files.written(path)
        except (Exception, SystemExit) as failure:  # the user's function's
            self._fail(f"on_snapshot failed: {failure!r}")
        return True

    def _fail(self, message: str, kind: str | None = None) -> None:
        self._failures += 1
        say_once(message, kind)

    def clear(self) -> None:
        """Forgets the events so far, for this tracer alone; live blocks keep their stacks."""
        self._owner.clear()

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Writes a PyTorch memory snapshot of what is recorded, now or at `stop()`.

        The file is written under a temporary name and renamed: it is there whole or not at all.
        Format: `torch.cuda.memory._snapshot()`, and the key `pytracer` (docs/design.md).

        Raises:
            OSError: the file cannot be written.
        """
        self._write(path, {})

    def snapshot(self) -> dict[str, Any]:
        """The same as a dict. Frames and lists of frames are shared objects: do not change them."""
        view = self._owner.view()
        snapshot: dict[str, Any] = pickle.loads(view.to_bytes(*self._beside(view)))
        return snapshot

    def _write(
        self, path: str | os.PathLike[str], more: dict[str, Any], view: _core.View | None = None
    ) -> None:
        view = self._owner.view() if view is None else view
        about, memory = self._beside(view)
        view.write(os.fsencode(path), {**about, **more}, memory)

    def _beside(self, view: _core.View) -> tuple[dict[str, Any], dict[int, dict[str, int | None]]]:
        """What the core does not write by itself: about us, and about each device."""
        if view.problem:
            self._fail(
                f"a snapshot without segments: the allocator did not tell them: {view.problem}"
            )
        return self._about(), self._recording.memory(view)

    def _on_oom(self, event: oom.OutOfMemory) -> None:
        """On the thread that ran out."""
        if not self._owner.recording or all(
            event.device not in indices for indices in self._recording.indices.values()
        ):
            return
        assert self._files is not None
        path = self._files.out_of_memory(datetime.now())
        if path is not None and self._save(path, {"oom": asdict(event)}):
            say_once(f"out of memory: {path} tells what took it")

    def _on_demand(self, when: datetime) -> None:
        """On the thread that watches for demands."""
        if self._owner.recording and self._files is not None:
            self._save(self._files.on_demand(when), {})

    def events(self) -> npt.NDArray[np.void]:
        """The events that are held, in order of time, as a structured array of shape `(n,)`.

        Fields:
            sequence (u8): number of the event on its device, from 0; gaps never occur.
            time_ns (i8): wall time, nanoseconds since the epoch.
            address (u8): of the block or segment; for `oom` the free bytes of device or system.
            size_bytes (u8): bytes asked for; for a free, those of the allocation.
            stream (u8): the stream's handle; 0: the default one.
            autograd_sequence (u8): autograd's sequence number; 0: not known (on the CPU always).
            stack (u4): of the event, for `frames()`; 0: none.
            alloc_stack (u4): for a free, the stack of the allocation; 0: none.
            pool_high, pool_low (u8): the memory pool's id, as in a snapshot's `pool_id`.
            step (u4): the step it fell into; 0: none.
            phase (u2): the phase it fell into, for `phase()`; 0: none.
            action (u1): index into `pytracer.ACTIONS`. The CPU has `alloc`, `free_completed` and
                `oom`.
            device (i1): index of the accelerator; -1: the CPU.
        """
        return self._owner.events()

    def frames(self, stack: int) -> list[dict[str, Any]]:
        """The frames of a `stack` of `events()`, innermost first: dicts as in a snapshot."""
        return [
            {"filename": filename, "name": name, "line": line}
            for filename, name, line in self._owner.frames(stack)
        ]

    def phase(self, number: int) -> tuple[str, ...]:
        """The names of a `phase` of `events()`: those it is nested in, outermost first, its own."""
        return phases.path_of(number)

    def stats(self) -> dict[str, Any]:
        """Counts, and bytes held against their bounds.

        Returns:
            `recording`: whether it is. `waiting`: whether it records live blocks alone, between
            windows. `untraced`: why a device, or all, are not recorded, or None.
            `failures`: snapshots that could not be written, or lack their segments.
            `oom_snapshots`: how many were tried.
            `devices`: a dict for each: events `recorded`, `held` and `overwritten`;
            `unknown_frees`: frees of blocks not known (older than the recording, say), left out on
            the CPU; `live_dropped`: allocations that found the live table full, left out on the
            CPU, without a stack for their block on others; `labels_dropped`: memory pools and
            metadata that found their table full, shown as none; `live_blocks` and
            `live_block_bytes`: alive now; `ring_bytes` of `max_ring_bytes`, `live_table_bytes` of
            `max_live_table_bytes`.
            `stacks`: distinct `stacks`, `frames` and `codes`; `truncated`: stacks cut at
            stack_depth; `dropped`: events whose stack found the table full, left without one;
            `bytes` of `max_bytes`.
        """
        return {
            "recording": self._recording.is_going_on,
            "waiting": not self._steps.are_recorded,
            "untraced": self._recording.why_untraced,
            "failures": self._failures,
            "oom_snapshots": self._files.oom_snapshots if self._files is not None else 0,
            **self._owner.stats(),
        }

    def _about(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "version": pytracer.__version__,
            "written_ns": time.time_ns(),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "rank": ranks.current().rank,
            "role": self._options.role,
            "current_step": self._steps.current,
            "step_from": self._source.name,
            "window": None,
            "waiting": not self._steps.are_recorded,
            "torch": getattr(sys.modules.get("torch"), "__version__", None),
            "torch_npu": getattr(sys.modules.get("torch_npu"), "__version__", None),
            "python": platform.python_version(),
            "backends": [*self._recording.indices],
            "trace_alloc_max_entries": self._options.trace_alloc_max_entries,
            "stack_depth": self._options.stack_depth,
            "context": self._options.context,
            "max_stack_bytes": self._options.max_stack_bytes,
            "untraced": self._recording.why_untraced,
            "settings": self._recording.settings,
            "metadata": self._options.metadata,
        }
