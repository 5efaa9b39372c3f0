"""A pool of processes that read files, bounded by a memory budget."""

import contextlib
import math
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from pytracer.atomic_file import remove_unfinished
from pytracer.errors import PytracerError
from pytracer.fleet.memory_budget import SHARE_OF_FREE, cores, free_bytes

Job = TypeVar("Job")
Result = TypeVar("Result")

PROCESS_BYTES = 128 * 2**20
"""The memory of a process that reads no file: the interpreter, numpy and pyarrow."""


class ProcessEndedError(PytracerError):
    """The process that read a file ended before it was done."""


class Pool(Generic[Job, Result]):
    """Processes that call a function, as many at a time as memory allows.

    Attributes:
        workers: How many processes there are at most.
        limit_bytes: The memory that the processes may take together: a share of the free memory. A
            job that alone needs more runs while no other does.
    """

    def __init__(self, function: Callable[[Job], Result], workers: int | None = None) -> None:
        """Make a pool; its processes start when they are needed.

        Args:
            function: A function of a module, which the processes import.
            workers: How many processes there are at most. None: one for each core.
        """
        self.limit_bytes = free_bytes() // SHARE_OF_FREE
        most = max(self.limit_bytes // PROCESS_BYTES, 1)
        self.workers = min(cores() if workers is None else workers, most)
        self._function = function
        self._processes: dict[Connection, BaseProcess] = {}

    def results(self, jobs: Iterable[tuple[Job, int]]) -> Iterator[tuple[Job, Result | Exception]]:
        """Yield each job with its result, or with the exception that it raised, as they end.

        Args:
            jobs: Each job, and the memory that it needs.
        """
        waiting: deque[tuple[Job, float]] = deque(jobs)
        running: dict[Connection, tuple[Job, float]] = {}
        free = self.limit_bytes - self.workers * PROCESS_BYTES
        while waiting or running:
            while waiting and len(running) < self.workers:
                if running and sum(needed for _, needed in [*running.values(), waiting[0]]) > free:
                    break
                idle = self._processes.keys() - running.keys()
                connection = idle.pop() if idle else self._start()
                running[connection] = waiting.popleft()
                with contextlib.suppress(OSError):  # an idle process was killed
                    connection.send(running[connection][0])
            for ready in wait([*running]):
                assert isinstance(ready, Connection)
                job, needed = running.pop(ready)
                try:
                    outcome: Result | Exception = ready.recv()
                except (EOFError, OSError):  # the process was killed
                    self._processes.pop(ready).join()
                    if needed < math.inf:
                        waiting.appendleft((job, math.inf))  # alone: memory may have run out
                        continue
                    outcome = ProcessEndedError(
                        "the process that read the file died twice: the kernel may have killed it "
                        "because memory ran out. Read the file on a larger machine"
                    )
                yield job, outcome

    def close(self) -> None:
        """End the processes at once."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join()
        self._processes.clear()

    def _start(self) -> Connection:
        """Start a process, and return the connection to it."""
        # A process that is forked from this one could inherit locks that threads hold. The fork
        # server imports nothing: before Python 3.13 it looks in the working directory first.
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self._function), daemon=True)
        process.start()
        theirs.close()
        self._processes[ours] = process
        return ours


def _work(connection: Connection, function: Callable[[Any], Any]) -> None:
    """Call a function for each job, until the parent ends, which may be killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent keeps what is complete
    signal.signal(signal.SIGTERM, _end)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            connection.send(_outcome(function, connection.recv()))


def _outcome(function: Callable[[Any], Any], job: Any) -> Any:
    try:
        return function(job)
    except PytracerError as error:
        return error
    except Exception as error:  # a defect: where it is would be lost with the process
        traceback.print_exc()
        return error


def _end(*_: object) -> None:
    remove_unfinished()
    os._exit(1)
