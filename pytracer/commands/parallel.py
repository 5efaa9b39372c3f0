"""Read several files at the same time, with progress and errors on standard error."""

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pytracer.errors import PytracerError
from pytracer.reading.files import find
from pytracer.reading.reader import estimated_bytes
from pytracer.text import printable

Result = TypeVar("Result")

PATIENCE_S = 2.0
"""Work that takes longer than this shows its progress."""


def find_files(paths: Iterable[Path]) -> tuple[list[Path], list[PytracerError]]:
    """Return the snapshot files that the paths name, each once, and why others name none.

    Args:
        paths: Files, and directories of them.
    """
    found: list[Path] = []
    errors: list[PytracerError] = []
    for path in paths:
        try:
            found += find([path])
        except PytracerError as error:
            errors.append(error)
    return list(dict.fromkeys(found)), errors


def in_parallel(
    function: Callable[[Path], Result],
    paths: Sequence[Path],
    description: str,
    memory_bytes: int | None = None,
    *,
    on_interrupt: Callable[[], None] = lambda: None,
) -> list[Result | PytracerError]:
    """Call a function with each path, in one thread per core, as far as memory allows.

    Control-C ends the process at once, so files written by `function` need temporary names until
    they are complete.

    Args:
        function: Called in any thread.
        paths: The arguments of the calls.
        description: The name of the work in the progress bar, such as "Reading". A bar is shown
            for work that takes longer than `PATIENCE_S`, if standard error is a terminal.
        memory_bytes: The memory that all calls may use at a time, as estimated by
            `estimated_bytes`. None: a quarter of the free memory.
        on_interrupt: Called when Control-C ends the process, to remove temporary files.

    Returns:
        The results, in the order of `paths`, or the `PytracerError` that a call raised.
    """
    budget = None
    if len(paths) > 1:
        from pytracer.fleet.memory_budget import MemoryBudget

        budget = MemoryBudget(memory_bytes)

    def result_or_error(path: Path) -> Result | PytracerError:
        try:
            if budget is None:
                return function(path)
            with budget.taken(estimated_bytes(path)):
                return function(path)
        except PytracerError as error:
            return error

    with ThreadPoolExecutor(max(1, min(_cores(), len(paths)))) as pool:
        try:
            futures = [pool.submit(result_or_error, path) for path in paths]
            if wait(futures, timeout=PATIENCE_S).not_done:
                _show_progress(futures, description)
        except KeyboardInterrupt:
            # A thread cannot be stopped in the middle of a file, and the interpreter would wait
            # for it: only the signal's default action ends the process now.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            on_interrupt()
            os.kill(os.getpid(), signal.SIGINT)
            raise
        return [future.result() for future in futures]


def _cores() -> int:
    """Return the cores that this process may use; on macOS, which does not report them, all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _show_progress(futures: Sequence[Future[Any]], description: str) -> None:
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(description, total=len(futures))
        for _ in as_completed(futures):
            progress.advance(task)


def print_errors(results: Iterable[object]) -> bool:
    """Print each error among the results to standard error, and return whether there is one."""
    errors = [result for result in results if isinstance(result, PytracerError)]
    for error in errors:
        click.echo(f"Error: {printable(str(error))}", err=True)
    return bool(errors)
