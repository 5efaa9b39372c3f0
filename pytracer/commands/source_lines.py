"""The source of the lines that an answer names, if their files are on this machine."""

import contextlib
import os
import stat
from pathlib import Path

from pytracer.analysis.answer import Line
from pytracer.analysis.answered_files import AnsweredFile

_MOST_BYTES = 2**20
_MOST_FILES = 8


class SourceLines:
    """Returns the source of the call site of a line of an answer, as in "73: h = self.mlp(h)".

    A snapshot's author chooses the names of files in it. So only regular files named `*.py` are
    read, a few of them, and none that was changed after the snapshot was written: its lines may be
    others.
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
            self._files[frame.filename] = self._read(frame.filename)
        lines = self._files.get(frame.filename, [])
        source = lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""
        return f"{frame.line}: {source}" if source else ""

    def _read(self, filename: str) -> list[str]:
        if not os.path.isabs(filename) or not filename.endswith(".py"):
            return []
        try:
            found = os.stat(filename)
            is_usable = stat.S_ISREG(found.st_mode) and found.st_size <= _MOST_BYTES
            if not is_usable or found.st_mtime_ns > (self._written_ns or 0):
                return []
            return Path(filename).read_text(errors="replace").splitlines()
        except (OSError, ValueError):  # a name with a null character
            return []
