"""Stands in for torch's own memory recorder: programs that use it record with pytracer instead.

`patch_torch()` replaces, on `torch.cuda.memory` and `torch.npu.memory` and wherever else torch
holds the same functions, `_record_memory_history` (with torch's signature and a `stack_depth`),
`_snapshot`, `_dump_snapshot` and `memory_snapshot`; and, on `torch._C` and `torch_npu._C`,
`_{device}_isHistoryEnabled` and `_{device}_attach_out_of_memory_observer`.

Sessions are counted by owner. Each module of torch's own that records (inductor's, say) is one,
the program is another. An owner enables, changes and ends its own session alone. What an owner
reads is its own session; else the program's; else any that is enabled; without one, torch's.

As in torch, a session that is disabled has no events any more, the blocks alive keep their stacks,
and those allocated until it is enabled again have none. For that the live blocks go on being known,
without stack walks and without a ring. In the mode "state" there are no events at all (torch shows
the last one). `max_entries` beyond pytracer's limit (torch's default is) means
`trace_alloc_max_entries`' own default.

Stacks are of Python frames. What only torch's C++ recorder has (`compile_context`,
`global_record_annotations`, `record_pinned_host_memory`) is asked of it, with no events of its own
kept for the device, and what it has then is put into our snapshots. Where pytracer cannot record,
and for arguments it does not know, torch's own functions answer.

Out of reach: calls of `torch._C._cuda_record_memory_history` and the like, names imported from
these modules before (`from torch.cuda.memory import _snapshot`), and observers attached before.

`torch.npu.memory._dump_snapshot` runs no profiler, which torch_npu's own may, and writes no CSV.
"""

import contextlib
import functools
import inspect
import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

from pytracer import oom, verl
from pytracer.config import switched_off
from pytracer.devices import torch_module
from pytracer.notices import say_once
from pytracer.torch_sessions import Asked, Session, Snapshot

PROGRAM = "user"
"""The owner of the session of all that is not torch's own."""

DOORS = (
    __name__,
    "torch.accelerator.memory",
    "torch.cuda.memory",
    "torch_npu.contrib.transfer_to_npu",
    "torch_npu.npu.memory",
)
"""Modules that only pass calls on."""

TORCHS_ALONE = ("external_annotations", "host_segments", "host_traces")
"""Of a snapshot: what only torch's own recorder has."""

RECORD = "_record_memory_history"
SNAPSHOT = "_snapshot"
DUMP = "_dump_snapshot"
SEGMENTS = "memory_snapshot"

Function = Callable[..., Any]

_lock = threading.RLock()  # of changes; not plain: a signal's handler may come in between
_patches: dict[str, "_Patch"] = {}  # by backend


def patch_torch() -> None:
    """Replaces torch's recorder functions, for each backend that is there; idempotent.

    torch_npu's are there once it is imported: call this again then. Under `PYTRACER=0` it does
    nothing.
    """
    if switched_off():
        return
    with _lock:
        for backend in _backends():
            if backend not in _patches:
                try:
                    _patches[backend] = _Patch(backend)
                except Exception as error:  # a torch that lacks one of them
                    say_once(f"the recorder of torch.{backend} stays as it is: {error!r}")


def unpatch_torch() -> None:
    """Ends all sessions and puts torch's functions back, wherever ours still are."""
    with _lock:
        while _patches:
            _patches.popitem()[1].undo()
        verl.remove_annotate()


def _backends() -> list[str]:
    import torch

    cuda = ["cuda"] if torch.version.cuda is not None else []
    npu = ["npu"] if "torch_npu" in sys.modules and hasattr(torch, "npu") else []
    return [*cuda, *npu]


def _forget_the_parents() -> None:
    global _lock
    _lock = threading.RLock()
    for patch in _patches.values():
        patch.forget_sessions()


os.register_at_fork(after_in_child=_forget_the_parents)


def _caller() -> str:
    """The owner that calls us: a module of torch's own, or the program."""
    frame = sys._getframe(1)
    name = __name__
    while name in DOORS and frame.f_back is not None:
        frame = frame.f_back
        name = str(frame.f_globals.get("__name__"))
    return name if name.partition(".")[0] in ("torch", "torch_npu") else PROGRAM


def _bound(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any] | None:
    """All arguments by name; None where torch's own function refuses them."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    return bound.arguments


def _write(snapshot: Snapshot, filename: str | os.PathLike[str]) -> None:
    """A file that is there whole or not at all. Protocol 4: viewers read no later one."""
    path = os.path.abspath(os.fsdecode(filename))
    directory = os.path.dirname(path)
    hidden = os.path.join(directory, f".pytracer-{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with open(hidden, "wb") as file:
            pickle.dump(snapshot, file, protocol=4)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(hidden)
        raise


class _Patch:
    """The replaced functions of one backend, and the sessions behind them.

    Attributes:
        active: Until `undo()`. Calls that still come then, through a wrapper of someone's, say,
            are answered by torch's own functions.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._module = torch_module(backend)
        self._memory = self._module.memory
        self._core = sys.modules["torch" if backend == "cuda" else "torch_npu"]._C
        self._sessions: dict[str, Session] = {}  # by owner
        self._torchs_owners: set[str] = set()  # for whom torch's own recorder is on
        self._torchs: dict[str, Function] = {}  # its own functions, by name
        self._placed: list[tuple[Any, str, Function]] = []  # ours
        self._is_enabled_name = f"_{backend}_isHistoryEnabled"
        self._attach_name = f"_{backend}_attach_out_of_memory_observer"
        self.active = True
        self._modern = inspect.signature(self._memory._record_memory_history_impl)
        legacy = getattr(self._memory, "_record_memory_history_legacy", None)
        self._legacy = None if legacy is None else inspect.signature(legacy)
        self._prepare(self._memory, RECORD, self._record).__signature__ = self._with_depth()
        self._prepare(self._memory, SNAPSHOT, self._snapshot)
        self._prepare(self._memory, DUMP, self._dump)
        self._prepare(self._memory, SEGMENTS, self._segments)
        self._prepare(self._core, self._is_enabled_name, self._is_enabled)
        self._prepare(self._core, self._attach_name, self._attach)
        for holder, name, ours in self._placed:
            setattr(holder, name, ours)

    def _prepare(self, home: Any, name: str, answer: Function) -> Any:
        """Our function, to be placed wherever torch has its own: transfer_to_npu spreads some."""
        import torch

        original = self._torchs[name] = getattr(home, name)

        @functools.wraps(original, assigned=("__name__", "__qualname__", "__doc__"))
        def ours(*args: Any, **kwargs: Any) -> Any:
            if self.active:
                return answer(*args, **kwargs)
            kwargs.pop("stack_depth", None)  # torch's own has none
            return original(*args, **kwargs)

        for holder in dict.fromkeys((home, self._module, torch.cuda, torch.cuda.memory)):
            if getattr(holder, name, None) is original:
                self._placed.append((holder, name, ours))
        return ours

    def _with_depth(self) -> inspect.Signature:
        depth = inspect.Parameter(
            "stack_depth", inspect.Parameter.KEYWORD_ONLY, default=32, annotation=int
        )
        return self._modern.replace(parameters=[*self._modern.parameters.values(), depth])

    def undo(self) -> None:
        """Under the lock."""
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
        self._sessions.clear()
        self._torchs_owners.clear()

    # What stands in for torch's functions.

    def _record(self, *args: Any, **kwargs: Any) -> None:
        verl.add_annotate()  # its profiler is there, if it is what calls
        depth = {"stack_depth": kwargs.pop("stack_depth")} if "stack_depth" in kwargs else {}
        torchs = functools.partial(self._torchs[RECORD], *args, **kwargs)
        owner = _caller()
        asked = self._asked(args, kwargs)
        with _lock:
            if asked is None:  # torch's to refuse, or to serve
                torchs()
                self._torchs_owners.add(owner)
            elif asked.enabled is None:
                self._end(owner, torchs)
            elif not asked.record_cuda:
                self._end_ours(owner)
                torchs()
                self._torchs_owners.add(owner)
            elif problem := self._begin(owner, asked, depth):
                torchs()
                self._torchs_owners.add(owner)
                say_once(f"torch's own recorder is used for torch.{self._backend}: {problem}")
            else:
                self._begin_torchs_part(owner, asked)

    def _asked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked | None:
        enabled = args[0] if args else kwargs.get("enabled")
        if isinstance(enabled, bool):
            given = None if self._legacy is None else _bound(self._legacy, args, kwargs)
            return None if given is None else Asked.of_legacy(given)
        given = _bound(self._modern, args, kwargs)
        return None if given is None else Asked.of(given)

    def _begin(self, owner: str, asked: Asked, depth: dict[str, Any]) -> str | None:
        """Begins or changes the owner's session, or says why it cannot, and then there is none."""
        try:
            self._module.init()  # as torch's own does
            session = self._sessions.get(owner) or Session(self._backend, owner)
            problem = session.begin(asked, depth)
        except Exception as error:
            problem = str(error) or repr(error)
        if problem is not None:
            if failed := self._sessions.pop(owner, None):
                failed.stop()
            return problem
        self._sessions[owner] = session
        if asked.stacks == "all":
            say_once('stacks="all": pytracer records the Python frames; it has no C++ frames')
        return None

    def _begin_torchs_part(self, owner: str, asked: Asked) -> None:
        if asked.needs_torchs:
            part = asked.torchs_part(self._sessions[owner].max_entries)
            known = self._modern.parameters
            self._torchs[RECORD](**{name: part[name] for name in part if name in known})
            self._torchs_owners.add(owner)
        else:
            self._end_torchs(owner)

    def _end(self, owner: str, torchs: Function) -> None:
        """`torchs` ends torch's own recording, which someone may have begun before we were here."""
        if not self._end_ours(owner) and not self._torchs_owners:
            torchs()
        self._end_torchs(owner)

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

    def _readable(self) -> Session | None:
        """The session that the caller reads. Without the lock: an observer of torch's may ask."""
        sessions = dict(self._sessions)
        enabled = (session for session in sessions.values() if session.enabled)
        return sessions.get(_caller()) or sessions.get(PROGRAM) or next(enabled, None)

    def _snapshot(self, device: Any = None, augment_with_fx_traces: bool = False) -> Snapshot:
        oom.told_by_observer()
        session = self._readable()
        if session is None:
            return self._torchs_snapshot(augment_with_fx_traces)
        return self._complete(session, augment_with_fx_traces)

    def _torchs_snapshot(self, augmented: bool = False) -> Snapshot:
        more = {"augment_with_fx_traces": True} if augmented else {}  # which not every torch has
        snapshot: Snapshot = self._torchs[SNAPSHOT](**more)
        return snapshot

    def _complete(self, session: Session, augmented: bool) -> Snapshot:
        import torch

        snapshot = session.snapshot()
        if self._torchs_owners:
            torchs = self._torchs_snapshot()
            snapshot.update({key: torchs[key] for key in TORCHS_ALONE if key in torchs})
        if augmented:
            name = "_augment_memory_snapshot_stack_traces"
            augment = getattr(self._memory, name, None) or getattr(torch._utils, name)
            snapshot = augment(snapshot)
        return snapshot

    def _dump(
        self,
        filename: str | os.PathLike[str] = "dump_snapshot.pickle",
        augment_with_fx_traces: bool = False,
    ) -> None:
        oom.told_by_observer()
        session = self._readable()
        if session is None:  # and not torch's own dump, which may run a profiler on an NPU
            _write(self._torchs_snapshot(augment_with_fx_traces), filename)
        elif augment_with_fx_traces or session.skips or self._torchs_owners:
            _write(self._complete(session, augment_with_fx_traces), filename)
        else:
            session.dump(filename)

    def _segments(
        self, mempool_id: tuple[int, int] | None = None, include_traces: bool = True
    ) -> list[dict[str, Any]]:
        session = self._readable()
        if session is not None:
            # torch's own takes references of the id's numbers away (2.12.1, torch_npu 2.13.0).
            of_all = mempool_id is None or tuple(mempool_id) == (0, 0)
            return [
                segment
                for segment in session.segments()
                if of_all or segment["segment_pool_id"] == mempool_id
            ]
        more = {} if include_traces else {"include_traces": False}  # which not every torch has
        segments: list[dict[str, Any]] = self._torchs[SEGMENTS](mempool_id, **more)
        return segments

    def _is_enabled(self) -> bool:
        enabled = any(session.enabled for session in dict(self._sessions).values())
        return enabled or bool(self._torchs[self._is_enabled_name]())

    def _attach(self, observer: Any) -> None:
        if isinstance(observer, oom.Watch):
            self._torchs[self._attach_name](observer)
        else:
            oom.adopt(self._backend, observer)
