"""The answer of `pytracer show` and of `pytracer.show`, from files."""

import contextlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytracer.analysis.answer import Answer, Line, text_lines
from pytracer.analysis.answer_of_files import AnsweredFile, answer_of_files, answered_file, in_order
from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data
from pytracer.analysis.explanation import explain_device
from pytracer.analysis.oom.trials import Simulation
from pytracer.errors import PytracerError
from pytracer.reading.files import find
from pytracer.reading.reader import load

if TYPE_CHECKING:
    from pytracer.analysis.leaks.several_files import FileLeaks
    from pytracer.analysis.pinned_segments import Fragmentation
    from pytracer.analysis.report import Report


@dataclass(frozen=True)
class ReadFile:
    """What is kept of a file."""

    file: AnsweredFile
    # What the search for leaks in several files needs; None of a file that ran out of memory, or of
    # the only file.
    leaks: "FileLeaks | None"
    report: "Report | None"
    fragments: "list[Fragmentation]"  # the free memory of its accelerators
    is_only: bool  # whether it was read as the only file, with simulated settings


def read_file(
    path: Path,
    *,
    device: int | None = None,
    is_only: bool = True,
    has_report: bool = False,
    has_all: bool = False,
) -> ReadFile:
    """Read a file for its answer.

    Args:
        device: The index of the only device; None for all devices that were used.
        is_only: Whether it is the only file, so that no other decides and settings are simulated.
        has_report: Whether to make the report in numbers too.
        has_all: Whether to find the free memory of accelerators too.

    Raises:
        PytracerError: The file cannot be read, or has no such device.
    """
    snapshot = load(path)
    report, leaks, fragments = None, None, []
    if has_report:
        from pytracer.analysis.report import report_device, report_file  # not for the answer
        from pytracer.export.texts import check_stack_texts

        check_stack_texts(snapshot)
    explanations, reports = [], []
    for index in chosen_devices(snapshot, device):
        data = device_data(snapshot, index)
        explanations.append(explain_device(data, _try_settings if is_only else None))
        if has_report:
            reports.append(report_device(data))
    file = answered_file(snapshot, explanations)
    if has_report:
        report = report_file(snapshot, reports)
    if has_all:
        from pytracer.analysis.pinned_segments import fragmentation  # not needed for the answer

        with contextlib.suppress(PytracerError):  # there is no accelerator
            fragments = fragmentation(snapshot, device)
    if not is_only and not file.is_oom:
        from pytracer.analysis.leaks.several_files import examine  # not needed for one file

        leaks = examine(snapshot, device)
    return ReadFile(file, leaks, report, fragments, is_only)


def _try_settings(data: DeviceData) -> Simulation | None:
    from pytracer.simulator.trials import try_settings  # not needed without an out-of-memory

    return try_settings(data)


@dataclass(frozen=True)
class Answered:
    """The answer about files."""

    answer: Answer | None  # None if there are no files
    files: list[AnsweredFile]  # the files, the one that matters first
    results: Sequence[ReadFile]  # what was kept of the files, in the order in which they were given


def answered(results: Sequence[ReadFile], device: int | None) -> Answered:
    """Return the answer about files.

    The requests of the file that matters are simulated: of several files, it is read again.
    """
    files = in_order(result.file for result in results)
    if not files:
        return Answered(None, [], results)
    is_oom = any(each.oom is not None for each in files[0].devices)
    if is_oom and not results[0].is_only:
        files[0] = read_file(Path(files[0].path), device=device).file
    leaks = [result.leaks for result in results if result.leaks is not None]
    if not leaks:
        return Answered(answer_of_files(files), files, results)
    from pytracer.analysis.leaks.several_files import combine  # not needed for one file

    return Answered(answer_of_files(files, combine(leaks)), files, results)


def show(*paths: str | Path, device: int | None = None) -> Answer:
    """Return the answer about files, as `pytracer show` prints it.

    Args:
        paths: Snapshot files, and directories of them.
        device: The index of the only device; None for all devices that were used.

    Raises:
        PytracerError: There is no file, a file cannot be read, or a file has no such device.
    """
    found = find(map(Path, paths))
    is_only = len(found) == 1
    results = [read_file(path, device=device, is_only=is_only) for path in found]
    answer = answered(results, device).answer
    assert answer is not None  # `find` raises an error where there is no file
    return answer


_MOST_WIDTH = 120


def echo_answer(answer: Answer, source_of: Callable[[Line], str] = lambda _: "") -> None:
    """Print an answer; `source_of` returns the source of a line's call site."""
    width = min(shutil.get_terminal_size().columns, _MOST_WIDTH)
    for line in text_lines(answer, width, source_of):
        click.echo(line)
