"""Read several files at the same time, with progress and errors on standard error.

A signal ends a command that runs other processes.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pytracer.errors import PytracerError
from pytracer.reading.files import find
from pytracer.reading.reader import estimated_bytes
from pytracer.text import printable

Result = TypeVar("Result")

SMALL_BYTES = 256 * 2**20
"""Files that take less memory together, by estimate, are read in less time than processes start."""

PATIENCE_S = 2.0  # work that takes longer than this shows its progress


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
    function: Callable[[Path], Result], paths: Sequence[Path], description: str
) -> list[Result | PytracerError]:
    """Call a function with each path, in a process for each core, in a quarter of the free memory.

    A single file, and files that are small together, are read in this process.

    Args:
        function: The function. It and its results have to be picklable.
        description: The name of the work in the progress bar, such as "Reading". A bar is shown
            for work that takes longer than `PATIENCE_S`, if standard error is a terminal.

    Returns:
        The results, in the order of `paths`, or the `PytracerError` that a call raised.
    """
    needed = {path: estimated_bytes(path) for path in paths}
    if len(needed) > 1 and sum(needed.values()) >= SMALL_BYTES:
        results = _in_processes(function, needed)
    else:
        results = _one_by_one(function, needed)
    found: dict[Path, Result | PytracerError] = {}
    begin = time.monotonic()
    with progress_bar() as progress, contextlib.closing(results):
        task = progress.add_task(description, total=len(needed), visible=False)
        for path, result in results:
            found[path] = result
            progress.update(task, advance=1, visible=time.monotonic() - begin > PATIENCE_S)
    return [found[path] for path in paths]


def _one_by_one(
    function: Callable[[Path], Result], paths: Iterable[Path]
) -> Generator[tuple[Path, Result | PytracerError], None, None]:
    for path in paths:
        try:
            yield path, function(path)
        except PytracerError as error:
            yield path, error


def _in_processes(
    function: Callable[[Path], Result], needed: Mapping[Path, int]
) -> Generator[tuple[Path, Result | PytracerError], None, None]:
    from pytracer.fleet.pool import Pool, ProcessEndedError

    with contextlib.closing(Pool(function)) as pool:
        for path, result in pool.results(needed.items()):
            if isinstance(result, ProcessEndedError):
                yield path, PytracerError(f"{path}: {result}")
            elif isinstance(result, Exception) and not isinstance(result, PytracerError):
                raise result
            else:
                yield path, result


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


class Interruption(SystemExit):
    """A signal has asked the command to end; the exit code is that which shells use for it."""


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raise `Interruption` on SIGINT, SIGTERM and SIGHUP, so that child processes end too.

    A signal that the command was started to ignore, as by nohup, stays ignored.
    """

    def interrupt(number: int, _: FrameType | None) -> NoReturn:
        raise Interruption(128 + number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
