"""A page: one HTML file with the data of snapshots, which needs no network."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from pytracer import __version__
from pytracer.atomic_file import open_output
from pytracer.errors import PytracerError
from pytracer.page.file_data import file_data
from pytracer.page.open_file import OpenFile, Summary, Verdict, summarised, verdict_of
from pytracer.page.tables import MOST_OF_LINE, shortened
from pytracer.text import brief, printable

FORMAT = 1

MOST_EVENTS = 1_000_000  # the most events in a page by default

MOST_FILES = 256  # the most files that a page describes

_PLACE = b"<!-- pytracer:data -->"
_PAGE_ID = "pytracer-page"
_HEAD_BYTES = 2**22  # more than the template has
_FRAME = "width:100%;height:90vh;min-height:600px;border:0"


@dataclass(frozen=True, eq=False)
class Page:
    """The content of a page. A notebook shows the page in the output of the cell."""

    title: str
    verdict: Verdict
    files: Sequence[Summary]  # the files, the one that matters first
    # The data of files (`file_data`) by their index in `files`; the first file has data.
    data: Mapping[int, bytes]
    left_out: Sequence[str]  # what the page does not show, and how to have it, as sentences
    # The difference of the first file to the second, the baseline.
    difference: Mapping[str, Any] | None = None

    def html(self) -> bytes:
        """Return the page as HTML."""
        parts = [
            f'<script type="application/json" id="{_PAGE_ID}">{self._json()}</script>'.encode()
        ]
        for index, packed in self.data.items():
            tag = f'<script type="application/octet-stream" id="{_data_id(index)}">'
            parts.append(tag.encode() + base64.b64encode(packed) + b"</script>")
        before, after = (
            resources.files("pytracer.page").joinpath("template.html").read_bytes().split(_PLACE)
        )
        return b"\n".join([before.rstrip(b"\n"), *parts, after.lstrip(b"\n")])

    def save(self, path: str | Path) -> int:
        """Write the page to a file and return its size in bytes.

        The file appears when it is complete. Only an earlier page of pytracer is overwritten.

        Raises:
            PytracerError: The file cannot be written, or exists and is not a page of pytracer.
        """
        content, path = self.html(), Path(path)
        try:
            if path.is_file():
                with open(path, "rb") as file:
                    if f'id="{_PAGE_ID}"'.encode() not in file.read(_HEAD_BYTES):
                        raise PytracerError(
                            f"{path} exists and is not a page of pytracer: give another name, or "
                            "remove it"
                        )
        except OSError as error:
            raise PytracerError(f"cannot write {path}: {error.strerror}") from error
        with open_output(path) as file:
            file.write(content)
        return len(content)

    def __repr__(self) -> str:
        """Return a line: a notebook stores it next to the page."""
        return f"<pytracer page {brief(self.title)}>"

    def _repr_html_(self) -> str:
        content = escape(self.html().decode())
        return f'<iframe title="{escape(self.title)}" style="{_FRAME}" srcdoc="{content}"></iframe>'

    def _json(self) -> str:
        """Return what the page reads first: JSON that cannot end the element around it."""
        files = [
            {
                "name": shortened(summary.name),
                "rank": summary.file.rank,
                "verdict": shortened(_headline(summary)),
                **summary.figures,
                "ooms": summary.ooms,
                "curve": summary.curve,
                "data": _data_id(index) if index in self.data else None,
            }
            for index, summary in enumerate(self.files)
        ]
        content = {
            "format": FORMAT,
            "title": shortened(self.title),
            "pytracer": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "left_out": [shortened(sentence, MOST_OF_LINE) for sentence in self.left_out],
            "verdict": {
                **vars(self.verdict),
                "heading": _line(self.verdict.heading),
                "lines": [*map(_line, self.verdict.lines)],
                "commands": [*map(printable, self.verdict.commands)],
            },
            "files": files,
            "difference": self.difference,
        }
        return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


EMPTY = Page("pytracer", Verdict("Drop a page of pytracer or a snapshot here", [], []), [], {}, [])


def page_of(file: OpenFile, most_events: int = MOST_EVENTS, *, is_saved: bool = True) -> Page:
    """Return the page of one file; the other arguments are those of `file_data`."""
    data, left_out = file_data(file.snapshot, file.devices, most_events, is_saved=is_saved)
    summary = summarised(file)
    return Page(
        summary.name, verdict_of(summary.file, is_saved=is_saved), [summary], {0: data}, left_out
    )


def _headline(summary: Summary) -> str:
    answers = summary.file.answers()
    return printable(answers[0].headline) if answers else ""


def _line(text: str) -> str:
    return shortened(printable(text), MOST_OF_LINE)


def _data_id(index: int) -> str:
    return f"pytracer-data-{index}"
