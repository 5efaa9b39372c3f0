"""The fleet report as one HTML file that needs no network and no scripts."""

import io
from collections.abc import Callable
from html import escape
from pathlib import Path

from rich.console import Console

from pytracer import __version__
from pytracer.atomic_file import open_atomically
from pytracer.errors import PytracerError
from pytracer.text import printable

_MARK = '<meta name="generator" content="pytracer fleet report'
_HEAD_BYTES = 1024
_COLUMNS = 120

# Rich fills in the style sheet and the text.
_FORMAT = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{_MARK} {escape(__version__)}">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TITLE</title>
<style>
:root {{{{ color-scheme: light dark; }}}}
pre {{{{ width: {_COLUMNS + 2}ch; margin: 2rem auto; white-space: pre-wrap; }}}}
{{stylesheet}}
</style>
</head>
<body>
<pre>{{code}}</pre>
</body>
</html>
"""


def write_page(title: str, show: Callable[[Console], None], path: Path) -> None:
    """Write what a report prints as a page. Only an earlier page of this kind is overwritten.

    Args:
        title: The title of the page.
        show: Prints the report.
        path: The file.

    Raises:
        PytracerError: The file cannot be written, or exists and is no such page.
    """
    console = Console(record=True, file=io.StringIO(), width=_COLUMNS, highlight=False)
    show(console)
    shown = escape(printable(title)).replace("{", "{{").replace("}", "}}")
    page = console.export_html(code_format=_FORMAT.replace("TITLE", shown))
    try:
        if path.is_file() and not _is_page(path):
            raise PytracerError(
                f"{path} exists and is not a page of pytracer fleet report: give another name, or "
                "remove it"
            )
        with open_atomically(path) as file:
            file.write(page.encode(errors="replace"))
    except OSError as error:
        raise PytracerError(f"cannot write {path}: {error.strerror}") from error


def _is_page(path: Path) -> bool:
    with open(path, "rb") as file:
        return _MARK.encode() in file.read(_HEAD_BYTES)
