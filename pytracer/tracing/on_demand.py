"""Snapshots on demand: on a signal, or when a file is touched.

One thread of the process waits for both while there is any watch. It needs nothing of the main
thread, which may be stuck in C for ever, and it never dumps inside of an allocator.
docs/explanation/processes.md has the reasons.
"""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from pytracer import _core
from pytracer.log import harmless, warn_once
from pytracer.tracing import process

LOOK_SECONDS = 1.0  # the time between two looks at the files
DUMP_SECONDS = 60.0  # how long the end of a watch waits for a dump; a file system may hang
END_SECONDS = 1.0  # how long it waits for the thread, which may be looking at such a file

Dump = Callable[[datetime], None]
"""Called with the time of the demand, which is the same for all that watch a file."""


@dataclass
class _Watch:
    dump: Dump
    number: signal.Signals | None
    file: str | None
    touched_ns: int | None  # the file's time at the last look; None: there was no file

    def due(self, signals: Collection[int]) -> datetime | None:
        """Return when the file was touched since the last look, or the time now if the signal came.

        None: nothing is due.
        """
        before, self.touched_ns = self.touched_ns, _touched_ns(self.file)
        if self.touched_ns is not None and self.touched_ns != before:
            try:
                return datetime.fromtimestamp(self.touched_ns / 1e9)
            except (ValueError, OverflowError, OSError):  # a time that no date can express
                return datetime.now()
        return datetime.now() if self.number in signals else None


class _Watcher:
    """All watches of a process, and the thread, which exists while there are watches.

    `_changing` guards the attributes; `_dumping` is held while a dump runs. Any thread may call the
    methods, and so may the watching thread.
    """

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all: a forked child lacks the thread, and its parent may have held the locks."""
        self._watches: dict[Dump, _Watch] = {}
        self._thread: threading.Thread | None = None
        self._changing = threading.RLock()
        self._dumping = threading.RLock()

    def add(self, dump: Dump, number: signal.Signals | None, file: str | None) -> None:
        """Have `dump` called on the signal, and when the file is created or touched.

        The calls are on another thread. Without a signal and a file it does nothing. A failure is
        logged, not raised.
        """
        if number is None and file is None:
            return
        file = None if file is None else os.path.abspath(file)
        try:
            with self._changing:
                self._watches[dump] = _Watch(dump, number, file, _touched_ns(file))
                if number is not None:
                    _core.watch_signal(number)
                if self._thread is None:
                    event = _core.wake_event()
                    thread = threading.Thread(
                        target=self._run, args=(event,), name="pytracer", daemon=True
                    )
                    thread.start()
                    self._thread = thread
                _core.wake()  # there may be a file to look at now
        except Exception as error:
            self.remove(dump)
            warn_once(f"no snapshots on demand: {error}")

    def defuse(self, number: signal.Signals) -> None:
        """Replace the signal's default action, which would end the job, even if nothing records."""
        failed = f"{number.name} still has its former action, which may end the job: {{error}}"
        with harmless(failed), self._changing:
            if not self._has(number):
                _core.watch_signal(number)
                _core.unwatch_signal(number)  # a handler that does nothing stays

    def remove(self, dump: Dump) -> None:
        """End a watch, if there is one; then `dump` no longer runs, and no thread is left over."""
        with self._changing:
            watch = self._watches.pop(dump, None)
            if watch is None:
                return
            if watch.number is not None and not self._has(watch.number):
                _core.unwatch_signal(watch.number)
            thread = None if self._watches else self._thread
            _core.wake()
        dumping = self._dumping  # a child that is forked meanwhile has another one
        if dumping.acquire(timeout=DUMP_SECONDS):
            dumping.release()
        if thread is not None and thread is not threading.current_thread():
            thread.join(END_SECONDS)

    def _has(self, number: int) -> bool:
        return any(watch.number == number for watch in list(self._watches.values()))

    def _run(self, event: int) -> None:
        # CPython's own wait: the interpreter can finalise during it, and end the thread.
        poll = select.poll()
        poll.register(event, select.POLLIN)
        while not self._is_over():
            poll.poll(LOOK_SECONDS * 1000)
            signals = _core.take_signals()
            for watch in list(self._watches.values()):
                self._look(watch, signals)
                self._notice_another_handler(watch)

    def _notice_another_handler(self, watch: _Watch) -> None:
        if watch.number is None or _core.has_signal_handler(watch.number):
            return
        with self._changing:  # the end of a watch restores the program's handler
            is_over = self._watches.get(watch.dump) is not watch
            if is_over or _core.has_signal_handler(watch.number):
                return
        name = signal.Signals(watch.number).name
        warn_once(
            f"the program installed its own handler for {name} after the tracer had started: the "
            "signal writes a snapshot only if that handler calls the tracer's. The job and its "
            "recording continue. To run both handlers, install the program's before the tracer "
            "starts, or choose another signal",
            f"another handler of {name}",
        )

    def _is_over(self) -> bool:
        with self._changing:
            is_gone = not _core.has_wake_event()
            if is_gone:
                warn_once(
                    "no more snapshots on demand: the program closed a file descriptor of "
                    "pytracer's; the job and its recording continue. Close only descriptors that "
                    "the program has opened"
                )
            if is_gone or not self._watches:
                self._thread = None  # the next watch starts another
            return self._thread is None

    def _look(self, watch: _Watch, signals: Collection[int]) -> None:
        """Dump if a dump is due. A failure is logged, and the thread continues to watch."""
        pid = os.getpid()
        try:
            with harmless("a snapshot on demand failed: {error}"):
                when = watch.due(signals)
                if when is not None:
                    with self._dumping:
                        if self._watches.get(watch.dump) is watch:
                            watch.dump(when)
        finally:
            if os.getpid() != pid:
                # This is a child that an `on_snapshot` forked on this thread. The child has no
                # other thread, and the watches are its parent's.
                process.end_forked_child()


def _touched_ns(file: str | None) -> int | None:
    with contextlib.suppress(OSError):
        return None if file is None else os.stat(file).st_mtime_ns
    return None


WATCHER = _Watcher()
os.register_at_fork(after_in_child=WATCHER.begin_anew)
