"""The tracer: what people use."""

import atexit
import multiprocessing.util
import os
import pickle
import platform
import socket
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import pytracer
from pytracer import _core, devices, hooks, on_demand, oom, ranks
from pytracer.config import OPTIONS, UNSET, Device, Options, Output, Unset, switched_off
from pytracer.config_checks import CONTEXTS, OnSnapshot
from pytracer.errors import ConfigError, HookError, PytracerError
from pytracer.notices import say_once
from pytracer.output import Files

FORMAT_VERSION = (1, 2)
"""Of a snapshot's `pytracer` dict. Minor: keys were added. Major: a key's meaning changed."""

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "workspace_snapshot",
    "annotate",
)
"""Names of the values of the `action` field of `Tracer.events()`, by value."""


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
        ranks: which ranks write the snapshot at the end; empty (the default): rank 0. A process
            that has no rank writes.
        all_ranks: all ranks write it (False).
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
        self._untraced: dict[str, str] = {}  # reasons, by backend, or of all
        self._failures = 0
        self._files: Files | None = None  # once started
        self._indices: dict[str, list[int]] = {}  # by backend; empty until started
        self._final_memory: dict[int, dict[str, int | None]] = {}  # of when it stopped
        self._owner = self._new_owner()

    def _new_owner(self) -> _core.Owner:
        return _core.Owner(
            [index for indices in self._indices.values() for index in indices],
            self._options.trace_alloc_max_entries,
            self._options.stack_depth,
            self._options.max_stack_bytes,
            CONTEXTS.index(self._options.context),
        )

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
        if self._is_forbidden():
            return self
        if self._options.output is not None:
            self._files = self._files or Files(self._options)
            self._files.prepare(make=not self._only_if_used)
        if indices := self._attach():
            self._record(indices)
        else:
            _waiting.add(self)
        return self

    def _record(self, indices: dict[str, list[int]]) -> None:
        if self._indices != indices:
            self._indices = indices
            self._owner = self._new_owner()
        _prepare_process()
        try:
            self._owner.start()
        except PytracerError as error:
            entries = self._options.trace_alloc_max_entries
            raise ConfigError(
                f"trace_alloc_max_entries={entries}: {error}; give a smaller number"
            ) from None
        _waiting.discard(self)
        if self in _recording:  # on other devices
            return
        _recording.add(self)
        if self._files is not None:
            if self._options.on_oom:
                oom.listeners.add(self._on_oom)
            on_demand.watch(self._on_demand, self._options.dump_signal, self._options.trigger_file)

    def _is_forbidden(self) -> bool:
        """By `PYTRACER=0`, or by a wrong variable, which is said."""
        self._untraced = {}
        if switched_off():
            self._untraced = {"all": "PYTRACER=0"}
        elif self._options.problem is not None:
            self._untraced = {"all": self._options.problem}
            say_once(f"not recording: {self._options.problem}")
        return bool(self._untraced)

    def _attach(self) -> dict[str, list[int]]:
        """Attaches to what can be recorded; the indices by backend. Says what cannot be."""
        self._untraced = {}
        attached = {}
        for backend, wanted in devices.resolve(self._options.device).items():
            try:
                attached[backend] = (
                    [_core.CPU_DEVICE] if backend == "cpu" else devices.indices(backend, wanted)
                )
                hooks.attach(backend)
            except Exception as error:  # a HookError, or one from torch itself
                attached.pop(backend, None)
                self._leave_out(backend, error)
        if {*self._options.device} != {"cpu"}:
            _await_devices()
        return attached

    def _leave_out(self, what: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, PytracerError) else repr(error)
        self._untraced[what] = reason
        say_once(f"not recording {what}: {reason}")

    def _follow_devices(self) -> None:
        """Begins anew if by now there are devices to record that it does not record.

        Nothing is lost: no accelerator has allocated yet, and "auto" meant the CPU for want of one.
        """
        indices = self._attach()
        before = self._indices if self in _recording else {}
        new = [
            f"{backend}:{index}"
            for backend, there in indices.items()
            for index in there
            if index not in before.get(backend, [])
        ]
        if new and before and "cpu" in self._options.device:
            error = HookError(
                "it came when the CPU was already being recorded, and would end that; make all "
                "devices visible before the tracer starts, or give the CPU a tracer of its own"
            )
            self._leave_out(", ".join(new), error)
        elif new:
            self._owner.stop()
            self._record(indices)

    def stop(self) -> None:
        """Ends the recording; what was recorded stays readable as long as this tracer lives."""
        _waiting.discard(self)
        _recording.discard(self)
        oom.listeners.discard(self._on_oom)
        on_demand.unwatch(self._on_demand)
        if self._owner.recording:
            self._owner.stop()
            if any(backend != "cpu" for backend in self._indices):
                self._final_memory = self._memory(self._owner.view())

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
        try:
            self.stop()
            wanted = not self._only_if_used or bool(self._owner.view().used_devices)
        except Exception as failure:
            self._failures += 1
            say_once(f"no memory for the blocks alive at the end: {failure}")
            wanted = True
        path = self._files.at_the_end() if self._files is not None else None
        if path is not None and wanted:
            self._save(path, {})

    def _save(self, path: Path, more: dict[str, Any]) -> bool:
        """Writes a file by itself, for which no caller can be told of a failure."""
        assert self._files is not None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(path, more)
        except Exception as failure:
            self._failures += 1
            say_once(f"the snapshot {path} was not written: {failure}")
            return False
        try:
            self._files.written(path)
        except (Exception, SystemExit) as failure:  # the user's function's
            self._failures += 1
            say_once(f"on_snapshot failed: {failure!r}")
        return True

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

    def _write(self, path: str | os.PathLike[str], more: dict[str, Any]) -> None:
        view = self._owner.view()
        about, memory = self._beside(view)
        view.write(os.fsencode(path), {**about, **more}, memory)

    def _beside(self, view: _core.View) -> tuple[dict[str, Any], dict[int, dict[str, int | None]]]:
        """What the core does not write by itself: about us, and about each device."""
        if view.problem:
            self._failures += 1
            say_once(
                f"a snapshot without segments: the allocator did not tell them: {view.problem}"
            )
        memory = self._memory(view) if self._owner.recording else self._final_memory
        return self._about(), memory

    def _memory(self, view: _core.View) -> dict[int, dict[str, int | None]]:
        """How full the devices are, by index. Those not in use are not asked: it would use them."""
        return {
            index: devices.memory(backend, index)
            for backend, indices in self._indices.items()
            for index in indices
            if backend != "cpu" and index in view.used_devices
        }

    def _on_oom(self, event: oom.OutOfMemory) -> None:
        """On the thread that ran out."""
        if not self._owner.recording or all(
            event.device not in indices for indices in self._indices.values()
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
            step (u4): the step it fell into; 0: before the first.
            phase (u2): the phase it fell into; 0: none.
            action (u1): index into `ACTIONS`. The CPU has `alloc`, `free_completed` and `oom`.
            device (i1): index of the accelerator; -1: the CPU.
        """
        return self._owner.events()

    def frames(self, stack: int) -> list[dict[str, Any]]:
        """The frames of a `stack` of `events()`, innermost first: dicts as in a snapshot."""
        return [
            {"filename": filename, "name": name, "line": line}
            for filename, name, line in self._owner.frames(stack)
        ]

    def stats(self) -> dict[str, Any]:
        """Counts, and bytes held against their bounds.

        Returns:
            `recording`: whether it is. `untraced`: why a device, or all, are not recorded, or None.
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
            "recording": self._owner.recording
            and not all(hooks.late_problem(backend) for backend in self._indices),
            "untraced": self._why_untraced(),
            "failures": self._failures,
            "oom_snapshots": self._files.oom_snapshots if self._files is not None else 0,
            **self._owner.stats(),
        }

    def _why_untraced(self) -> str | None:
        reasons = [*self._untraced.values()]
        reasons += [late for backend in self._indices if (late := hooks.late_problem(backend))]
        return "; ".join(dict.fromkeys(reasons)) or None  # some are told twice

    def _about(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "version": pytracer.__version__,
            "written_ns": time.time_ns(),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "rank": ranks.current().rank,
            "role": self._options.role,
            "torch": getattr(sys.modules.get("torch"), "__version__", None),
            "torch_npu": getattr(sys.modules.get("torch_npu"), "__version__", None),
            "python": platform.python_version(),
            "backends": [*self._indices],
            "trace_alloc_max_entries": self._options.trace_alloc_max_entries,
            "stack_depth": self._options.stack_depth,
            "context": self._options.context,
            "max_stack_bytes": self._options.max_stack_bytes,
            "untraced": self._why_untraced(),
            "metadata": self._options.metadata,
        }


_recording: set[Tracer] = set()
_waiting: "weakref.WeakSet[Tracer]" = weakref.WeakSet()  # started, with nothing to record yet
_awaited: set[str] = set()  # backends
_prepared_pid: int | None = None


def _await_devices() -> None:
    """Has the devices followed as torch initialises them; once for each backend.

    What a process sees may change until then: Ray's workers set `CUDA_VISIBLE_DEVICES` late.
    """
    for backend in devices.to_be_initialised():
        if backend not in _awaited:
            _awaited.add(backend)
            devices.when_initialised(backend, follow_devices)


def follow_devices() -> None:
    """Looks again at which devices there are, for all tracers. What fails is said, not raised.

    In the middle of torch's initialisation, after the hooks that waited for it are attached.
    """
    for tracer in [*_recording, *_waiting]:
        if tracer._owner.is_ours:
            try:
                tracer._follow_devices()
            except Exception as error:
                tracer._leave_out("all", error)


def _prepare_process() -> None:
    """Once in a process: enables stacks, and sees to its end."""
    global _prepared_pid
    if _prepared_pid == os.getpid():
        return
    forked = _prepared_pid is not None  # what follows, but for the last, is inherited
    _prepared_pid = os.getpid()
    if not forked:
        problem = _core.frame_walk_problem()
        if problem is None:
            _core.enable_stacks()
        else:
            say_once(f"recording without stacks: {problem}")
        atexit.register(_at_exit)
    if multiprocessing.parent_process() is not None:
        # Such a process may leave without `atexit`, but not without this.
        multiprocessing.util.Finalize(None, _at_exit, exitpriority=0)


def _at_exit() -> None:
    try:
        for tracer in list(_recording):
            try:
                tracer._finish()
            except Exception as failure:  # and the others are still to write
                say_once(f"no snapshot at the end: {failure!r}")
    finally:
        # Thread states are freed soon: from here on no stack is walked.
        _core.prepare_for_exit()
