"""Read several files at the same time, with progress and errors on standard error."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pytracer.errors import PytracerError
from pytracer.reading.files import find
from pytracer.reading.reader import estimated_bytes
from pytracer.text import printable

Result = TypeVar("Result")

MANY_FILES = 16
"""From so many files on, commands that can read in processes do."""

PATIENCE_S = 2.0
"""Work that takes longer than this shows its progress."""


def find_files(paths: Iterable[Path]) -> tuple[list[Path], list[PytracerError]]:
    """Return the snapshots that files and directories have, each once, and why others have none."""
    found: list[Path] = []
    errors: list[PytracerError] = []
    for path in paths:
        try:
            found += find([path], errors.append)
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
    in_processes: bool = False,
) -> list[Result | PytracerError]:
    """Call a function with each path, in one thread per core, as far as memory allows.

    Control-C ends the process at once, so files written by `function` need temporary names until
    they are complete.

    Args:
        function: Called in any thread.
        description: The name of the work in the progress bar, such as "Reading". A bar is shown
            for work that takes longer than `PATIENCE_S`, if standard error is a terminal.
        memory_bytes: The memory that all calls may use at a time, as estimated by
            `estimated_bytes`. None: a quarter of the free memory.
        on_interrupt: Called when Control-C ends the process, to remove temporary files.
        in_processes: Whether processes, which do not wait for each other, call the function for
            `MANY_FILES` or more. The function and its results have to be picklable.

    Returns:
        The results, in the order of `paths`, or the `PytracerError` that a call raised.
    """
    if in_processes and len(paths) >= MANY_FILES:
        return _in_processes(function, paths, description, memory_bytes)
    budget, threads = None, 1
    if len(paths) > 1:
        from pytracer.fleet.memory_budget import MemoryBudget, cores

        budget, threads = MemoryBudget(memory_bytes), min(cores(), len(paths))

    def result_or_error(path: Path) -> Result | PytracerError:
        try:
            if budget is None:
                return function(path)
            with budget.taken(estimated_bytes(path)):
                return function(path)
        except PytracerError as error:
            return error

    with ThreadPoolExecutor(threads) as pool:
        try:
            futures = [pool.submit(result_or_error, path) for path in paths]
            if wait(futures, timeout=PATIENCE_S).not_done:
                with progress_bar() as progress:
                    ended = as_completed(futures)
                    list(progress.track(ended, len(futures), description=description))
        except KeyboardInterrupt:
            # A thread cannot be stopped in the middle of a file, and the interpreter would wait
            # for it: only the signal's default action ends the process now.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            on_interrupt()
            os.kill(os.getpid(), signal.SIGINT)
            raise
        return [future.result() for future in futures]


def _in_processes(
    function: Callable[[Path], Result],
    paths: Sequence[Path],
    description: str,
    memory_bytes: int | None,
) -> list[Result | PytracerError]:
    from pytracer.fleet.pool import Pool, ProcessEndedError

    pool: Pool[Path, Result] = Pool(function, memory_bytes)
    found: dict[Path, Result | PytracerError] = {}
    begin = time.monotonic()
    with progress_bar() as progress:
        task = progress.add_task(description, total=len(paths), visible=False)
        try:
            for path, result in pool.results((path, estimated_bytes(path)) for path in paths):
                if isinstance(result, ProcessEndedError):
                    result = PytracerError(f"{path}: {result}")
                if isinstance(result, Exception) and not isinstance(result, PytracerError):
                    raise result
                found[path] = result
                is_long = time.monotonic() - begin > PATIENCE_S
                progress.update(task, advance=1, visible=is_long)
        finally:
            pool.close()
    return [found[path] for path in paths]


def progress_bar() -> Progress:
    """Return a progress bar on standard error; it is shown only on a terminal."""
    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}", markup=False),  # a name may have brackets
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def print_errors(results: Iterable[object]) -> bool:
    """Print each error among the results to standard error, and return whether there is one."""
    errors = [result for result in results if isinstance(result, PytracerError)]
    for error in errors:
        click.echo(f"Error: {printable(str(error))}", err=True)
    return bool(errors)
