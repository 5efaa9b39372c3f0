"""The answer of `pytracer show` and of `pytracer.show`, from files."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytracer.analysis.advice import Trial
from pytracer.analysis.answer import Answer
from pytracer.analysis.answered_files import (
    AnsweredFile,
    answer_of_files,
    answered_file,
    in_order,
)
from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data
from pytracer.analysis.explanation import explain_device
from pytracer.errors import PytracerError
from pytracer.reading.files import find
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Snapshot

if TYPE_CHECKING:
    from pytracer.analysis.leaks import FileLeaks
    from pytracer.analysis.pinned_segments import Fragmentation
    from pytracer.analysis.report import Report


@dataclass(frozen=True)
class ReadFile:
    """What is kept of a file.

    Attributes:
        file: The explanations of its devices.
        leaks: What the search for leaks in several files needs; None of a file that ran out of
            memory, or of the only file.
        report: The report in numbers; None if it was not asked for.
        fragments: The free memory of its accelerators; [] if it was not asked for.
        is_only: Whether it was read as the only file, with simulated settings.
    """

    file: AnsweredFile
    leaks: "FileLeaks | None"
    report: "Report | None"
    fragments: "list[Fragmentation]"
    is_only: bool


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
        path: The file.
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
        from pytracer.analysis.report import stats  # not needed for the answer
        from pytracer.export.texts import check_stack_texts

        check_stack_texts(snapshot)
        report = stats(snapshot, device, try_settings=_try_settings)
    if has_all:
        from pytracer.analysis.pinned_segments import fragmentation  # not needed for the answer

        with contextlib.suppress(PytracerError):  # there is no accelerator
            fragments = fragmentation(snapshot, device)
    file = _answered(snapshot, device, is_simulated=is_only)
    if not is_only and not file.is_oom:
        from pytracer.analysis.leaks import examine  # not needed for one file

        leaks = examine(snapshot, device)
    return ReadFile(file, leaks, report, fragments, is_only)


def _answered(snapshot: Snapshot, device: int | None, *, is_simulated: bool) -> AnsweredFile:
    try_settings = _try_settings if is_simulated else None
    data = (device_data(snapshot, index) for index in chosen_devices(snapshot, device))
    return answered_file(snapshot, [explain_device(each, try_settings) for each in data])


def _try_settings(data: DeviceData) -> list[Trial] | None:
    from pytracer.simulator.trials import try_settings  # not needed without an out-of-memory

    return try_settings(data)


def answered(results: Sequence[ReadFile], device: int | None) -> tuple[Answer, list[AnsweredFile]]:
    """Return the answer about files, and the files, the one that matters first.

    The requests of that file are simulated, so it is read again if it is one of several.
    """
    files = in_order(result.file for result in results)
    is_oom = any(each.oom is not None for each in files[0].devices)
    if is_oom and not results[0].is_only:
        files[0] = _answered(load(files[0].path), device, is_simulated=True)
    leaks = [result.leaks for result in results if result.leaks is not None]
    if not leaks:
        return answer_of_files(files), files
    from pytracer.analysis.leaks import combine  # not needed for one file

    return answer_of_files(files, combine(leaks)), files


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
    return answered(results, device)[0]
