"""A pool of processes that read files, bounded by a memory budget."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
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
        workers: The number of processes.
        limit_bytes: The memory that the processes may take together.
    """

    def __init__(
        self,
        function: Callable[[Job], Result],
        limit_bytes: int | None = None,
        workers: int | None = None,
    ) -> None:
        """Make a pool; its processes start when they are needed.

        Args:
            function: A function of a module, which the processes import.
            limit_bytes: The memory that all processes may take together. None: a share of the free
                memory. A job that alone needs more runs while no other does.
            workers: The most processes. None: one for each core.
        """
        self.limit_bytes = free_bytes() // SHARE_OF_FREE if limit_bytes is None else limit_bytes
        most = max(self.limit_bytes // PROCESS_BYTES, 1)
        self.workers = min(cores() if workers is None else workers, most)
        self._function = function
        self._executor: ProcessPoolExecutor | None = None

    def results(self, jobs: Iterable[tuple[Job, int]]) -> Iterator[tuple[Job, Result | Exception]]:
        """Yield each job with its result, or with the exception that it raised, as they end.

        Args:
            jobs: Each job, and the memory that it needs.
        """
        waiting = deque(jobs)
        running: dict[Future[Result], tuple[Job, int]] = {}
        free = self.limit_bytes - self.workers * PROCESS_BYTES
        while waiting or running:
            while waiting and len(running) < 2 * self.workers:
                needed = sum(each for _, each in running.values()) + waiting[0][1]
                if running and needed > free:
                    break
                job = waiting.popleft()
                try:
                    running[self._started().submit(self._function, job[0])] = job
                except BrokenProcessPool:  # noticed below, by the jobs that run
                    waiting.appendleft(job)
                    if running:
                        break
                    self.close()
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            suspects = []
            for future in done:
                job = running.pop(future)
                if isinstance(future.exception(), BrokenProcessPool):
                    suspects.append(job)
                else:
                    yield job[0], _outcome(future)
            if suspects:
                # The job that ended its process is one of these: each is tried alone.
                suspects += running.values()
                running.clear()
                for job in suspects:
                    yield job[0], self._alone(job[0])

    def close(self) -> None:
        """End the processes at once."""
        executor, self._executor = self._executor, None
        if executor is None:
            return
        processes = list((getattr(executor, "_processes", None) or {}).values())
        results: Any = getattr(executor, "_result_queue", None)
        executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                process.terminate()
        for process in processes:
            process.join()
        # A process may have sent half of its result. The executor's thread waits for the other half
        # until the pipe has no writer, and the interpreter's end waits for that thread.
        with contextlib.suppress(AttributeError, OSError):
            results._writer.close()

    def _alone(self, job: Job) -> Result | Exception:
        self.close()
        future = self._started().submit(self._function, job)
        outcome: Result | Exception = _outcome(future)
        if not isinstance(outcome, BrokenProcessPool):
            return outcome
        self.close()
        return ProcessEndedError(
            "the process that read the file ended, twice: the kernel may have killed it because "
            "memory ran out. Give a smaller --memory, or read the file on a larger machine"
        )

    def _started(self) -> ProcessPoolExecutor:
        if self._executor is None:
            # A process that is forked from this one could inherit locks that threads hold. The fork
            # server imports nothing: before Python 3.13 it looks in the working directory first.
            context = multiprocessing.get_context("forkserver")
            self._executor = ProcessPoolExecutor(self.workers, context, _begin_process)
        return self._executor


def _outcome(future: "Future[Any]") -> Any:
    error = future.exception()
    return future.result() if error is None else error


def _begin_process() -> None:
    """Leave Control-C to the parent, which keeps what is complete, and end when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _end())
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # it would wait for work for ever after a parent that was killed
        _end()


def _end() -> None:
    remove_unfinished()
    os._exit(1)
