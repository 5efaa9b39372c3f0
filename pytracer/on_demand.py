"""Snapshots on demand: at a signal, or when a file is touched.

One thread of the process waits for both, while anybody watches. It needs nothing of the main
thread, which may be stuck in C for ever, as in a collective that hangs: the signal's handler, in
C++, only wakes the thread. The dumps run on the thread, so never inside of an allocator. (A thread
that is stuck in C with the GIL held stops this one too.)

Any number of processes may watch one file: it is looked at about once a second, and nobody deletes
it.
"""

import os
import select
import signal
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from pytracer import _core
from pytracer.notices import say_once

LOOK_SECONDS = 1.0  # between two looks at the files
DUMP_SECONDS = 60.0  # that the end of a watch waits for a dump; a file system may hang
END_SECONDS = 1.0  # that it waits for the thread, which may be looking at such a file

Dump = Callable[[datetime], None]
"""Called with the time of the demand: all that watch a file are told the same."""


@dataclass
class _Watch:
    dump: Dump
    number: signal.Signals | None
    file: str | None
    touched_ns: int | None  # the file's time when it was last looked at; None: it was not there

    def due(self, signals: Collection[int]) -> datetime | None:
        """When the file was touched, if it was since last time; now, if our signal came.

        None: nothing is due.
        """
        before, self.touched_ns = self.touched_ns, _touched_ns(self.file)
        if self.touched_ns is not None and self.touched_ns != before:
            return datetime.fromtimestamp(self.touched_ns / 1e9)
        return datetime.now() if self.number in signals else None


class _Watcher:
    """All watches of a process, and the thread, which is there while there are any.

    `_changing` guards the attributes; `_dumping` is held while a dump runs. Methods are called from
    any thread, the watching one too.
    """

    def __init__(self) -> None:
        self._watches: dict[Dump, _Watch] = {}
        self._thread: threading.Thread | None = None
        self._changing = threading.RLock()
        self._dumping = threading.RLock()

    def add(self, watch: _Watch) -> None:
        with self._changing:
            self._watches[watch.dump] = watch
            if watch.number is not None:
                _core.watch_signal(watch.number)
            if self._thread is None:
                event = _core.wake_event()
                thread = threading.Thread(
                    target=self._run, args=(event,), name="pytracer", daemon=True
                )
                thread.start()
                self._thread = thread
            _core.wake()  # there may be a file to look at from now on

    def defuse(self, number: int) -> None:
        with self._changing:
            if all(watch.number != number for watch in self._all()):
                _core.watch_signal(number)
                _core.unwatch_signal(number)  # a handler that does nothing stays

    def remove(self, dump: Dump) -> None:
        """When it returns `dump` runs no more, and no thread is there for nothing."""
        with self._changing:
            watch = self._watches.pop(dump, None)
            if watch is None:
                return
            number = watch.number
            if number is not None and all(each.number != number for each in self._all()):
                _core.unwatch_signal(number)
            thread = None if self._watches else self._thread
            _core.wake()
        if self._dumping.acquire(timeout=DUMP_SECONDS):
            self._dumping.release()
        if thread is not None and thread is not threading.current_thread():
            thread.join(END_SECONDS)

    def _all(self) -> list[_Watch]:
        return list(self._watches.values())

    def _run(self, event: int) -> None:
        # The wait is CPython's own: the interpreter can finalise under it, and end the thread.
        poll = select.poll()
        poll.register(event, select.POLLIN)
        while not self._is_over():
            looks = any(watch.file is not None for watch in self._all())
            poll.poll(LOOK_SECONDS * 1000 if looks else None)
            signals = _core.take_signals()
            for watch in self._all():
                if (when := watch.due(signals)) is not None:
                    self._dump(watch, when)

    def _is_over(self) -> bool:
        with self._changing:
            if not self._watches:
                self._thread = None  # the next watch starts another
            return not self._watches

    def _dump(self, watch: _Watch, when: datetime) -> None:
        with self._dumping:
            if self._watches.get(watch.dump) is not watch:
                return
            try:
                watch.dump(when)
            except Exception as error:
                say_once(f"a snapshot on demand failed: {error!r}")


def _touched_ns(file: str | None) -> int | None:
    if file is None:
        return None
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return None


_watcher = _Watcher()


def _forget_the_parents() -> None:
    """A forked child has no such thread, and locks that its parent may have held."""
    global _watcher
    _watcher = _Watcher()


os.register_at_fork(after_in_child=_forget_the_parents)


def watch(dump: Dump, number: signal.Signals | None, file: str | None) -> None:
    """Has `dump` called at the signal, and when the file is made or touched; on another thread.

    Without a signal and a file it does nothing. What fails is said.
    """
    if number is None and file is None:
        return
    if file is not None:
        file = os.path.abspath(file)
    try:
        _watcher.add(_Watch(dump, number, file, _touched_ns(file)))
    except Exception as error:
        unwatch(dump)
        say_once(f"no snapshots on demand: {error}")


def defuse(number: signal.Signals) -> None:
    """Sees to it that the signal, to which there may be nothing to write, does not end the job."""
    try:
        _watcher.defuse(number)
    except Exception as error:
        say_once(f"{number.name} does what it did before: {error}")


def unwatch(dump: Dump) -> None:
    """Ends what `watch` began, if it did; a `dump` that runs, on another thread, is waited for."""
    _watcher.remove(dump)
