"""The order of the files of `pytracer explain`, and a line for each."""

from dataclasses import dataclass

from pytracer.analysis.explanation import Explanation
from pytracer.analysis.frame_text import call_site_text
from pytracer.text import size, utc_time

RUN_NS = 600 * 10**9
"""Ranks of one run that run out of memory do so within this time, as far as is assumed here."""


@dataclass(frozen=True)
class ExplainedFile:
    """A file with the explanations of its devices.

    Attributes:
        path: The file's path.
        rank, pid: The process that wrote the file; None if unknown.
        written_ns: When the file was written; None if unknown.
        devices: The explanations; devices that ran out of memory come first.
    """

    path: str
    rank: int | None
    pid: int | None
    written_ns: int | None
    devices: list[Explanation]

    @property
    def is_oom(self) -> bool:
        """Whether an out-of-memory was the reason of the file."""
        return any(explanation.is_oom_file for explanation in self.devices)

    def summary(self) -> str:
        """Return the file in one line."""
        parts = [self.path]
        if self.rank is not None:
            parts.append(f"rank {self.rank}")
        if self.written_ns is not None:
            parts.append(utc_time(self.written_ns // 1000).partition(".")[0] + " UTC")
        for explanation in self.devices[:1]:
            oom = explanation.oom
            if oom is None:
                parts.append("no out-of-memory")
                if explanation.leak == "leak":
                    parts.append(explanation.leak_answer.rstrip("."))
            else:
                where = call_site_text(oom.call_site)
                parts.append(f"out of memory: {size(oom.requested_bytes)} at {where}")
                parts.append(explanation.verdicts[0].kind)
        return ", ".join(parts)


def in_order(files: list[ExplainedFile]) -> list[ExplainedFile]:
    """Return the files, the one that matters first, then the others by time, the newest last.

    The file that matters is that of the first rank that ran out of memory in the latest run. A
    process may survive earlier out-of-memory errors, so only the last file of each rank counts.
    The latest run is assumed to be the processes whose last file is at most `RUN_NS` older than the
    newest one. Without an out-of-memory, the file with the highest peak matters.
    """
    by_time = sorted(files, key=lambda file: (file.written_ns or 0, file.path))
    if not by_time:
        return []
    # A later process of the same rank is of a later run.
    last_of_process = {file.rank: file for file in by_time if file.is_oom}
    if last_of_process:
        deadly = list(last_of_process.values())
        newest = max(file.written_ns or 0 for file in deadly)
        first = min(
            (file for file in deadly if (file.written_ns or 0) >= newest - RUN_NS),
            key=lambda file: file.written_ns or 0,
        )
    else:
        first = max(by_time, key=_held_bytes)
    return [first, *(file for file in by_time if file is not first)]


def _held_bytes(file: ExplainedFile) -> tuple[bool, int]:
    """Return how much a file matters if it was not written because of an out-of-memory."""
    has_oom = any(explanation.oom is not None for explanation in file.devices)
    return has_oom, max((explanation.held_bytes for explanation in file.devices), default=0)
