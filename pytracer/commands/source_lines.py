"""The source of the lines that an answer names, of snapshots that lack it."""

import contextlib
from pathlib import Path

from pytracer.analysis.answer import Line
from pytracer.analysis.answered_files import AnsweredFile
from pytracer.reading.files import read_source

_MOST_FILES = 8


class SourceLines:
    """Returns the source of the call site of a line of an answer, as in "h = self.mlp(h)".

    A few files on this machine are read, and none that was changed after the snapshot was written.
    """

    def __init__(self, file: AnsweredFile) -> None:
        """Find the time of a snapshot, after which sources must not have changed."""
        self._written_ns = file.written_ns
        if self._written_ns is None:
            with contextlib.suppress(OSError):
                self._written_ns = Path(file.path).stat().st_mtime_ns
        self._files: dict[str, list[str]] = {}

    def __call__(self, line: Line) -> str:
        """Return the source of a line's call site; "" if it is unknown."""
        frame = line.frame
        if line.role != "lines" or frame is None:
            return ""
        if frame.filename not in self._files and len(self._files) < _MOST_FILES:
            self._files[frame.filename] = read_source(frame.filename, self._written_ns or 0)
        lines = self._files.get(frame.filename, [])
        return lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""
