"""The command `pytracer show`."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from pytracer.analysis.answer import Line
from pytracer.analysis.answer_of_files import AnsweredFile
from pytracer.analysis.blocks import KEYS
from pytracer.commands import shared_options as shared
from pytracer.commands.json_output import json_option, print_json
from pytracer.commands.parallel import find_files, in_parallel, print_errors
from pytracer.commands.show_answer import Answered, answered, echo_answer, read_file
from pytracer.errors import NoMomentError, PytracerError
from pytracer.reading.files import read_source
from pytracer.reading.reader import load
from pytracer.text import printable

_MOST_SOURCES = 8


@dataclass(frozen=True)
class Question:
    """What `pytracer show` is asked.

    `combine` makes the answer from the results of `read`, `content` makes the JSON document of the
    answer, and `show` prints the answer if there are files. `notes` has what `read` leaves out.
    """

    read: Callable[[Path], Any]
    show: Callable[[Any], None]
    combine: Callable[[list[Any]], Any] = list
    content: Callable[[Any], Mapping[str, Any]] = lambda results: {"files": results}
    notes: list[str] = field(default_factory=list)


@click.command("show")
@shared.files_argument
@click.option(
    "--by", type=click.Choice(KEYS), help="Print the memory of one moment, grouped by this."
)
@shared.moment_option
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How many callers distinguish groups.",
)
@click.option("--leaks", is_flag=True, help="Print what is kept from step to step, by call site.")
@click.option(
    "--fragmentation",
    is_flag=True,
    help="Print the free memory in segments, and the call sites that trap it there.",
)
@click.option("--all", "has_all", is_flag=True, help="Print every figure.")
@shared.device_option
@shared.top_option
@json_option
@click.pass_context
def command(
    context: click.Context, /, paths: tuple[Path, ...], as_json: bool, **given: Any
) -> None:
    """What happened, who holds the memory, and what can I do?

    \b
    pytracer show outputs/profile
    pytracer show snapshot.pickle --by line --at peak
    pytracer show snapshot.pickle --all

    Prints the verdict in at most 20 lines: whether memory ran out and why, whether it leaks, the
    call sites that held most, and commands to try. If there are several files, the verdict is on
    the process that ran out of memory first, else on one that leaks, else on the fullest. The
    options ask for one part of each file.

    The exit code is 0 whatever the verdict is, and 1 if a file could not be read.
    """
    found, errors = find_files(paths)
    question = _question(is_only=len(found) == 1, has_json=as_json, **given)
    results = errors + in_parallel(question.read, found, "Reading snapshots")
    files = [result for result in results if not isinstance(result, PytracerError)]
    if files:  # a file without the moment that others have is no error
        question.notes.extend(str(error) for error in results if isinstance(error, NoMomentError))
        results = [result for result in results if not isinstance(result, NoMomentError)]
    combined = question.combine(files)
    notes = [PytracerError(note) for note in sorted(question.notes)]
    if as_json:
        print_json(question.content(combined), [*results, *notes])
    elif files:
        question.show(combined)
        for note in notes:
            click.echo(f"{printable(str(note))}.")
    if print_errors(results):
        context.exit(1)


def _question(
    *,
    is_only: bool,
    has_json: bool,
    device: int | None,
    moment: str | None,
    by: str | None,
    depth: int,
    leaks: bool,
    fragmentation: bool,
    has_all: bool,
    top: int,
) -> Question:
    """Return the question that the options ask.

    Raises:
        UsageError: The options ask several questions.
    """
    asks_who = by is not None or depth > 0 or (moment is not None and not fragmentation)
    questions = {
        "--by, --at or --depth": asks_who,
        "--leaks": leaks,
        "--fragmentation": fragmentation,
        "--all": has_all,
    }
    names = [name for name, is_asked in questions.items() if is_asked]
    if len(names) > 1:
        raise click.UsageError(f"give one of {' and '.join(names)}")
    parts: Callable[..., Iterable[Any]]

    def show(combined: Any) -> None:
        from pytracer.commands.table import echo  # not needed for the answer

        echo(parts(combined, top))

    if leaks:
        from pytracer.analysis.leaks.several_files import combine, examine
        from pytracer.commands.show_leaks import parts

        read = partial(_loaded, examine, device=device, is_only=is_only)
        return Question(read, show, combine, vars)
    if not (asks_who or fragmentation):
        read = partial(read_file, device=device, is_only=is_only, has_report=has_json or has_all)
        answer = partial(answered, device=device)
        if not has_all:
            return Question(read, _show_verdict, answer, _content)
        from pytracer.commands.show_all import parts

        return Question(partial(read, has_all=True), show, answer, _content)
    if asks_who:
        from pytracer.commands.show_held import held, parts

        read = partial(_noted, held, by=by or "line", depth=depth, at=moment)
    else:
        from pytracer.analysis.pinned_segments import fragmentation as free_memory
        from pytracer.commands.show_fragmentation import parts

        read = partial(_noted, free_memory, at=moment)
    notes: list[str] = []
    combined = partial(_without_notes, notes)
    return Question(partial(read, device=device), show, combined, notes=notes)


def _loaded(function: Callable[..., Any], path: Path, **question: Any) -> Any:
    return function(load(path), **question)


def _noted(function: Callable[..., Any], path: Path, **question: Any) -> tuple[Any, list[str]]:
    """Return the answer for a file, and what the function notes about parts that it left out."""
    notes: list[str] = []
    return function(load(path), note=notes.append, **question), notes


def _without_notes(notes: list[str], results: list[tuple[Any, list[str]]]) -> list[Any]:
    for _, noted in results:
        notes += noted
    return [answer for answer, _ in results]


def _content(found: Answered) -> Mapping[str, Any]:
    reports = [result.report for result in found.results]
    return {"answer": found.answer, "explained": found.files, "files": reports}


def _show_verdict(found: Answered) -> None:
    assert found.answer is not None
    echo_answer(found.answer, _source_of(found.files[0]))


def _source_of(file: AnsweredFile) -> Callable[[Line], str]:
    """Return a function that returns the source of a line's call site; "" if it is unknown.

    A few files on this machine are read, and none that was changed after the snapshot was written.
    """
    written_ns = file.written_ns
    if written_ns is None:
        with contextlib.suppress(OSError):
            written_ns = Path(file.path).stat().st_mtime_ns
    files: dict[str, list[str]] = {}

    def source(line: Line) -> str:
        frame = line.frame
        if line.role != "lines" or frame is None:
            return ""
        if frame.filename not in files and len(files) < _MOST_SOURCES:
            files[frame.filename] = read_source(frame.filename, written_ns or 0)
        lines = files.get(frame.filename, [])
        return lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""

    return source
