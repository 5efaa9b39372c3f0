"""The fleet report as one HTML file that needs no network and no scripts."""

import io
from collections.abc import Callable
from html import escape
from pathlib import Path

from rich.console import Console

from pytracer import __version__
from pytracer.page.page import write_page as write_html
from pytracer.text import printable

_MARK = '<meta name="generator" content="pytracer fleet report'
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
    """Write what `show` prints as a page. Only an earlier page of this kind is overwritten.

    Raises:
        PytracerError: The file cannot be written, or exists and is no such page.
    """
    console = Console(record=True, file=io.StringIO(), width=_COLUMNS, highlight=False)
    show(console)
    shown = escape(printable(title)).replace("{", "{{").replace("}", "}}")
    text = console.export_html(code_format=_FORMAT.replace("TITLE", shown))
    write_html(path, text.encode(errors="replace"), _MARK, "pytracer fleet report")
