"""What the commands that read snapshots share: their options, many files at once, and progress."""

import json
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
from pytracer.reading.export import remove_unfinished
from pytracer.reading.files import SUFFIXES
from pytracer.reading.plain import plain
from pytracer.reading.text import printable

Result = TypeVar("Result")

TOP = 10
"""How many rows of a table are shown."""

PATIENCE_S = 2.0
"""How long something may take before its progress is shown."""


def _is_a_report(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
    """`--json FILE` with the file that was to be read would overwrite it."""
    if path in (None, "-"):
        return path
    named = path.endswith(SUFFIXES)
    if named or not _may_be_json(path):
        raise click.BadParameter(
            f"{path!r} is {'named as a snapshot' if named else 'there, and no JSON'}: give another "
            "name, or, to have JSON on standard output, put --json behind the files or say --json=-"
        )
    return path


def _may_be_json(path: str) -> bool:
    """Whether a file may be a report that is to be replaced: it is not there, empty, or begins so.

    What is no file, as a pipe, is not looked into: that would wait for who writes into it.
    """
    if not os.path.isfile(path):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(1) in b"{[ \t\r\n"
    except OSError:
        return True  # `write_json` says what is wrong


json_option = click.option(
    "--json",
    "json_path",
    metavar="[PATH]",
    is_flag=False,
    flag_value="-",
    callback=_is_a_report,
    help="Write the report as JSON to PATH, or to standard output.",
)

files_argument = click.argument(
    "paths",
    metavar="FILE_OR_DIRECTORY...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)


def write_json(report: Any, path: str) -> None:
    """Writes a report: whole, or not at all.

    Args:
        report: Anything that `plain` takes.
        path: "-" is standard output.

    Raises:
        ClickException: The file cannot be written.
    """
    try:
        text = json.dumps(plain(report), indent=2)
        with click.open_file(path, "w", encoding="utf-8", atomic=True) as file:
            file.write(text + "\n")
    except OSError as error:
        raise click.ClickException(f"cannot write {printable(path)}: {error.strerror}") from error


def in_parallel(
    function: Callable[[Path], Result], paths: Sequence[Path], doing: str
) -> list[Result | PytracerError]:
    """Calls a function with each path, in as many threads as there are cores.

    What takes longer than `PATIENCE_S` shows its progress, if standard error is a terminal.
    Control-C ends the process at once, as the signal does to other programs: what is written then
    must have a temporary name until it is whole.

    Args:
        function: Called in any thread.
        paths: What to call it with.
        doing: What is done, as in "Reading".

    Returns:
        In the order of `paths`, what was returned or the `PytracerError` that was raised.
    """
    with ThreadPoolExecutor(max(1, min(_cores(), len(paths)))) as pool:
        try:
            futures = [pool.submit(_result_or_error, function, path) for path in paths]
            if wait(futures, timeout=PATIENCE_S).not_done:
                _show_progress(futures, doing)
        except KeyboardInterrupt:
            # Nothing can tell a thread to stop in the middle of a file, and Python's end waits for
            # it.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            remove_unfinished()
            os.kill(os.getpid(), signal.SIGINT)
            raise
        return [future.result() for future in futures]


def _cores() -> int:
    """Those that the process may use, or, where the system does not tell (macOS), all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _result_or_error(function: Callable[[Path], Result], path: Path) -> Result | PytracerError:
    try:
        return function(path)
    except PytracerError as error:
        return error


def _show_progress(futures: Sequence[Future[Any]], doing: str) -> None:
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(doing, total=len(futures))
        for _ in as_completed(futures):
            progress.advance(task)


def say_errors(results: Iterable[object]) -> bool:
    """Prints each error among the results as a line on standard error; whether there is one."""
    errors = [result for result in results if isinstance(result, PytracerError)]
    for error in errors:
        click.echo(f"Error: {printable(str(error))}", err=True)
    return bool(errors)
