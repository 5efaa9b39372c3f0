"""The box of this process: what it records outlives it, if it ends without writing.

There is one, for all tracers with an output, from the first one's start on. A tracer that has
written its file at the end needs it no more; without another one, the box says so.

Snapshots of other killed processes of the same run are made when this process begins and when it
ends. So there is a file although nobody asks for one: torchrun's agent writes it, which ends after
its workers, or the process that is started in place of a killed one.
"""

import atexit
import json
import multiprocessing.util
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytracer import _core
from pytracer.boxes import description as _  # noqa: F401 - a fork meanwhile would never end it
from pytracer.boxes import places, restoring
from pytracer.errors import PytracerError
from pytracer.log import harmless, report_once, warn_once
from pytracer.tracing import ranks

_REFRESH_S = 10.0

_path: Path | None = None
_users: dict[object, Callable[[], dict[str, Any]]] = {}  # what each has to say
_known: weakref.WeakSet[Any] = weakref.WeakSet()  # tracers' recordings that have entered
_is_kept = False  # a file at the end could not be written
_described_at = 0.0


def _forget_the_parents() -> None:
    global _path, _known, _is_kept
    _path, _known, _is_kept = None, weakref.WeakSet(), False
    _users.clear()


os.register_at_fork(after_in_child=_forget_the_parents)


def enter(user: Any, output: Path) -> None:
    """Have what a tracer records lie in a box. Before its session starts. Never raises."""
    global _path
    if user not in _known:
        _known.add(user)
        weakref.finalize(user, _remove_unknown).atexit = False
    if _path is not None:
        return
    reasons = []
    for folder in places.folders(output):
        path = None
        try:
            file, path = places.make(folder)
            _core.open_box(file)
        except Exception as error:
            reasons.append(f"{folder}: {error}")
            if path is not None:
                places.remove(path)
            if isinstance(error, PytracerError):
                break
            continue
        _path = path
        if reasons and not ranks.current().rank:  # no rank, or the first
            warn_once(
                f"cannot keep the recording in {reasons[0]}. If this process is killed, it leaves "
                f"it in {folder} on its machine, where `pytracer show {output}` finds it",
                "box is elsewhere",
            )
        restoring.remove_surplus(folder)
        if multiprocessing.parent_process() is not None:
            multiprocessing.util.Finalize(None, remove_unused, exitpriority=-100)
        return
    warn_once(
        "if this process is killed, everything it recorded is lost: " + "; ".join(reasons),
        "no box",
    )


def describe(
    user: object, description: Callable[[], dict[str, Any]], is_urgent: bool = True
) -> None:
    """Say in the box what a snapshot has that only this process knows. Never raises.

    Unless it is urgent, only now and then.
    """
    global _described_at
    if _path is None:
        return
    _warn_if_lost()
    if not is_urgent and time.monotonic() < _described_at + _REFRESH_S:
        return
    _described_at = time.monotonic()
    _users[user] = description
    with harmless("if this process is killed, its recording may be outdated: {error}", "box"):
        described = description()
        text = json.dumps(described, default=repr).encode()
        if len(text) > _core.MAX_DESCRIPTION:
            described["metadata"]["metadata"] = {}  # the user's
            text = json.dumps(described, default=repr).encode()
        _core.describe_box(text)


def leave(user: object, has_written: bool) -> None:
    """Say that a tracer has ended, and whether it has written what it has to say. Never raises."""
    global _is_kept
    description = _users.pop(user, None)
    if description is None or _path is None:
        return
    _warn_if_lost()
    _is_kept = _is_kept or not has_written
    if _users:
        describe(*next(iter(_users.items())))
    elif not _is_kept:
        _core.describe_box(b"")


def _warn_if_lost() -> None:
    if _core.box_was_lost():
        warn_once(
            f"{_path} was truncated or cannot be read: nothing is recorded any more. The job "
            "continues",
            "box was lost",
        )


def _remove_unknown() -> None:
    """Remove the box once no tracer is left that has entered it."""
    if not _known:
        remove_unused()


def remove_unused() -> None:
    """Remove the box if no tracer has anything to write any more."""
    global _path
    if _path is not None and not _users and not _is_kept:
        path, _path = _path, None
        places.remove(path)


atexit.register(remove_unused)  # early, so that it runs after the tracers' last files


_AT_START_S = 60.0  # beside the job
_AT_EXIT_S = 10.0
_MOST_OUTPUTS = 8
_NOT_RESTORED = "recordings of killed processes cannot be restored: {error}", "left boxes"

_threads: dict[Path, threading.Thread | None] = {}  # of this process, by the output
_pid: int | None = None


def look_after(output: Path) -> None:
    """Restore what processes with this output have left, now and at the end. Never raises."""
    global _pid
    with harmless(*_NOT_RESTORED):
        if _pid != os.getpid():
            _pid = os.getpid()
            _threads.clear()
            atexit.register(_at_exit, _pid)
        if output in _threads or len(_threads) >= _MOST_OUTPUTS:
            return
        _threads[output] = None
        if any(restoring.left_in(output, also_below=False)):
            thread = threading.Thread(target=_restore, args=(output, _AT_START_S), daemon=True)
            _threads[output] = thread
            thread.start()


def _restore(output: Path, within_s: float) -> None:
    with harmless(*_NOT_RESTORED):
        for line in restoring.restore(output, within_s):
            report_once(line)


def _at_exit(pid: int) -> None:
    if pid != os.getpid():
        return
    end = time.monotonic() + _AT_EXIT_S
    for output, thread in _threads.items():
        if thread is not None:
            thread.join(max(end - time.monotonic(), 0.0))
        _restore(output, end - time.monotonic())
