"""Stand in for torch's own memory recorder: programs that use it record with pytracer instead.

`patch_torch()` replaces, on `torch.cuda.memory` and `torch.npu.memory` and wherever else torch
holds the same functions, `_record_memory_history` (with torch's signature and a `stack_depth`),
`_snapshot`, `_dump_snapshot`, `memory_snapshot` and `_allocation_traceback`; and, on `torch._C` and
`torch_npu._C`, `_{device}_isHistoryEnabled` and `_{device}_attach_out_of_memory_observer`.

Each owner (see `calling_owner`) enables, changes and ends only its own session. A caller reads its
own session, else the program's, else any that is enabled (`ReplacedFunctions._readable`).
docs/how-to/torch-recorder.md lists what callers may notice, and docs/explanation/hooks.md has the
reasons.
"""

import functools
import inspect
import operator
import os
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytracer.atomic_file import open_atomically
from pytracer.backends import oom
from pytracer.backends.running_torch import torch_build, torch_module
from pytracer.log import harmless, warn_once
from pytracer.torch_recorder.sessions import RecordArguments, TorchSession
from pytracer.tracing import verl
from pytracer.tracing.options import switched_off

_lock = threading.RLock()  # reentrant, because a signal handler may patch in the middle of a change

RECORD = "_record_memory_history"
SNAPSHOT = "_snapshot"
DUMP = "_dump_snapshot"
SEGMENTS = "memory_snapshot"
TRACEBACK = "_allocation_traceback"

ONLY_IN_TORCH = ("external_annotations", "host_segments", "host_traces")
"""The keys of a snapshot that only torch's own recorder fills."""

PROGRAM = "user"  # the owner of the session of everything that is not torch's own code

_FORWARDING_MODULES = (
    __name__,
    "torch.accelerator.memory",
    "torch.cuda.memory",
    "torch_npu.contrib.transfer_to_npu",
    "torch_npu.npu.memory",
)
"""Modules that only forward calls of others."""

Function = Callable[..., Any]
Snapshot = dict[str, Any]


class ReplacedFunctions:
    """The replaced functions of one backend, and the sessions behind them, from now to `undo()`.

    Later calls, through a wrapper of another library for example, are answered by torch's own
    functions. `_lock` is held while sessions change. Who constructs or undoes this, holds it.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._module = torch_module(backend)
        self._memory = self._module.memory
        self._core = sys.modules["torch" if backend == "cuda" else "torch_npu"]._C
        self._sessions: dict[str, TorchSession] = {}  # by owner
        self._torchs_owners: set[str] = set()  # owners for whom torch's own recorder is on
        self._torchs: dict[str, Function] = {}  # torch's own functions, by name
        self._placed: list[tuple[Any, str, Function]] = []  # pytracer's functions
        self._is_enabled_name = f"_{backend}_isHistoryEnabled"
        self._attach_name = f"_{backend}_attach_out_of_memory_observer"
        self.active = True
        self._modern = inspect.signature(self._memory._record_memory_history_impl)
        legacy = getattr(self._memory, "_record_memory_history_legacy", None)
        self._legacy = None if legacy is None else inspect.signature(legacy)
        kind = inspect.Parameter.KEYWORD_ONLY
        depth = inspect.Parameter("stack_depth", kind, default=32, annotation=int)
        parameters = [*self._modern.parameters.values(), depth]
        record = self._prepare(self._memory, RECORD, self._record)
        record.__signature__ = self._modern.replace(parameters=parameters)
        self._prepare(self._memory, SNAPSHOT, self._snapshot)
        self._prepare(self._memory, DUMP, self._dump)
        self._prepare(self._memory, SEGMENTS, self._segments)
        if hasattr(self._memory, TRACEBACK):  # torch 2.12 and newer
            self._prepare(self._memory, TRACEBACK, self._traceback)
        self._prepare(self._core, self._is_enabled_name, self._is_enabled)
        self._prepare(self._core, self._attach_name, self._attach)
        for holder, name, ours in self._placed:
            setattr(holder, name, ours)

    def _prepare(self, home: Any, name: str, answer: Function) -> Any:
        """Make the function that replaces torch's, wherever torch or transfer_to_npu holds it."""
        import torch

        original = self._torchs[name] = getattr(home, name)

        @functools.wraps(original, assigned=("__name__", "__qualname__", "__doc__"))
        def ours(*args: Any, **kwargs: Any) -> Any:
            if self.active:
                return answer(*args, **kwargs)
            kwargs.pop("stack_depth", None)  # torch's own function has none
            return original(*args, **kwargs)

        for holder in dict.fromkeys((home, self._module, torch.cuda, torch.cuda.memory)):
            if getattr(holder, name, None) is original:
                self._placed.append((holder, name, ours))
        return ours

    def undo(self) -> None:
        """Restore torch's functions and end all sessions."""
        self.active = False
        for holder, name, ours in self._placed:
            if getattr(holder, name, None) is ours:
                setattr(holder, name, self._torchs[name])
        for session in self._sessions.values():
            session.stop()
        if self._torchs_owners:
            self._torchs[RECORD](None)
        self.forget_sessions()

    def forget_sessions(self) -> None:
        """Forget the sessions, in a forked child those of the parent."""
        self._sessions.clear()
        self._torchs_owners.clear()

    # The functions that replace torch's.

    def _record(self, *args: Any, **kwargs: Any) -> None:
        verl.add_annotate()  # verl's profiler is imported if it is the caller
        depth = {"stack_depth": kwargs.pop("stack_depth")} if "stack_depth" in kwargs else {}
        torchs = functools.partial(self._torchs[RECORD], *args, **kwargs)
        owner = calling_owner()
        arguments = self._checked_arguments(args, kwargs)
        with _lock:
            if arguments is None:
                torchs()
                self._end_ours(owner)
                if self._torchs[self._is_enabled_name]():
                    self._torchs_owners.add(owner)
                else:
                    self._torchs_owners.discard(owner)
            elif arguments.enabled is None:
                # torch's own recording may have begun before the patch.
                if not self._end_ours(owner) and not self._torchs_owners:
                    torchs()
                self._end_torchs(owner)
            elif not arguments.record_cuda:
                self._end_ours(owner)
                torchs()
                self._torchs_owners.add(owner)
            elif problem := self._begin(owner, arguments, depth):
                torchs()
                self._torchs_owners.add(owner)
                warn_once(f"torch's own recorder is used for torch.{self.backend}: {problem}")
            elif arguments.needs_torch:
                part = arguments.torchs_part(self._sessions[owner].max_entries)
                known = self._modern.parameters
                self._torchs[RECORD](**{name: part[name] for name in part if name in known})
                self._torchs_owners.add(owner)
            else:
                self._end_torchs(owner)

    def _checked_arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RecordArguments | None:
        """Return the arguments of a call; None where torch's own function refuses or serves it."""
        is_legacy = isinstance(args[0] if args else kwargs.get("enabled"), bool)
        signature = self._legacy if is_legacy else self._modern
        if signature is None:
            return None
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return None
        bound.apply_defaults()
        of_call = RecordArguments.of_legacy_call if is_legacy else RecordArguments.of_call
        return of_call(bound.arguments)

    def _begin(self, owner: str, arguments: RecordArguments, depth: dict[str, Any]) -> str | None:
        """Begin or change the owner's session, or end it and return why it cannot record."""
        try:
            self._module.init()  # torch's own function initialises the device too
            session = self._sessions.get(owner) or TorchSession(self.backend, owner)
            problem = session.begin(arguments, depth)
        except Exception as error:
            problem = str(error) or repr(error)
        if problem is not None:
            if failed := self._sessions.pop(owner, None):
                failed.stop()
            return problem
        self._sessions[owner] = session
        return None

    def _end_ours(self, owner: str) -> bool:
        session = self._sessions.get(owner)
        if session is None or not session.enabled:
            return False
        session.end()
        return True

    def _end_torchs(self, owner: str) -> None:
        if owner in self._torchs_owners:
            self._torchs_owners.discard(owner)
            if not self._torchs_owners:
                self._torchs[RECORD](None)

    def _readable(self) -> TorchSession | None:
        """Return the session that the caller reads; None: torch's own recorder answers.

        The lock is not taken, because an observer may read in the middle of a change.
        """
        sessions = dict(self._sessions)
        enabled = next((session for session in sessions.values() if session.enabled), None)
        if enabled is None and self._torchs[self._is_enabled_name]():
            return None  # a recording that pytracer does not know, or cannot serve
        return sessions.get(calling_owner()) or sessions.get(PROGRAM) or enabled

    def _snapshot(self, device: Any = None, augment_with_fx_traces: bool = False) -> Snapshot:
        import torch

        oom.mark_snapshot()
        session = self._readable()
        snapshot: Snapshot
        if session is None:  # not every torch has the argument
            more = {"augment_with_fx_traces": True} if augment_with_fx_traces else {}
            snapshot = self._torchs[SNAPSHOT](**more)
            return snapshot
        snapshot = session.snapshot()
        if self._torchs_owners:
            torchs = self._torchs[SNAPSHOT]()
            snapshot.update({key: torchs[key] for key in ONLY_IN_TORCH if key in torchs})
        if augment_with_fx_traces:
            name = "_augment_memory_snapshot_stack_traces"
            augment = getattr(self._memory, name, None) or getattr(torch._utils, name)
            snapshot = augment(snapshot)
        return snapshot

    def _dump(
        self,
        filename: str | os.PathLike[str] | int = "dump_snapshot.pickle",
        augment_with_fx_traces: bool = False,
    ) -> None:
        oom.mark_snapshot()
        session = self._readable()
        is_changed = augment_with_fx_traces or (session and session.skipped) or self._torchs_owners
        if session is not None and not is_changed:
            session.dump(filename)
            return
        # torch_npu's own dump may run a profiler. Viewers read no pickle protocol later than 4.
        snapshot = self._snapshot(augment_with_fx_traces=augment_with_fx_traces)
        path = filename if isinstance(filename, int) else Path(os.fsdecode(filename))
        with open_atomically(path) as file:
            pickle.dump(snapshot, file, protocol=4)

    def _segments(
        self, mempool_id: Sequence[int] | None = None, include_traces: bool = True
    ) -> list[dict[str, Any]]:
        session = self._readable()
        if session is not None:
            # torch's own function drops references of the id's numbers (2.12.1, torch_npu 2.13.0).
            pool = (0, 0) if mempool_id is None else (mempool_id[0], mempool_id[1])
            return [
                segment
                for segment in session.segments()
                if pool in ((0, 0), segment["segment_pool_id"])
            ]
        # Not every torch has the argument.
        more = {} if include_traces else {"include_traces": False}
        segments: list[dict[str, Any]] = self._torchs[SEGMENTS](mempool_id, **more)
        return segments

    def _traceback(self, data_ptr: int) -> list[dict[str, Any]] | None:
        session = self._readable()
        if session is not None:
            return session.traceback(operator.index(data_ptr))
        frames: list[dict[str, Any]] | None = self._torchs[TRACEBACK](data_ptr)
        return frames

    def _is_enabled(self) -> bool:
        enabled = any(session.enabled for session in dict(self._sessions).values())
        return enabled or bool(self._torchs[self._is_enabled_name]())

    def _attach(self, observer: Any) -> None:
        if isinstance(observer, oom.Watch):
            self._torchs[self._attach_name](observer)
        else:
            oom.adopt(self.backend, observer)


def calling_owner() -> str:
    """Return the owner that calls the recorder: a module of torch, or the program."""
    frame = sys._getframe(1)
    name = __name__
    while name in _FORWARDING_MODULES and frame.f_back is not None:
        frame = frame.f_back
        name = str(frame.f_globals.get("__name__"))
    return name if name.partition(".")[0] in ("torch", "torch_npu") else PROGRAM


_patches: dict[str, ReplacedFunctions] = {}  # by backend


def patch_torch() -> None:
    """Replace torch's recorder functions for each backend that torch supports; idempotent.

    torch_npu's functions exist once it is imported: call this again then. Under `PYTRACER=0` this
    does nothing.

    Raises:
        HookError: There is no torch, or it is too old to be recorded.
    """
    if switched_off():
        return
    with _lock:
        torch_build()
        torch: Any = sys.modules["torch"]
        exists = {
            "cuda": torch.version.cuda is not None,
            "npu": "torch_npu" in sys.modules and hasattr(torch, "npu"),
        }
        for backend in exists:
            if exists[backend] and backend not in _patches:
                failed = f"the recorder of torch.{backend} is not replaced, and stays in use"
                with harmless(f"{failed}: {{error}}"):  # this torch lacks one of the functions
                    _patches[backend] = ReplacedFunctions(backend)


def unpatch_torch() -> None:
    """End all sessions and restore torch's functions wherever pytracer's are still in place."""
    with _lock:
        while _patches:
            _patches.popitem()[1].undo()
        verl.remove_annotate()


def _reset_in_child() -> None:
    """Replace the lock, which another thread of the parent may hold, and forget its sessions."""
    global _lock
    _lock = threading.RLock()
    for patch in _patches.values():
        patch.forget_sessions()


os.register_at_fork(after_in_child=_reset_in_child)
