"""Write a report as JSON, to standard output or to a file."""

import json
from pathlib import Path
from typing import Any

import click

from pytracer.atomic_file import open_atomically
from pytracer.reading.to_json import to_json
from pytracer.text import printable


def write_json(report: Any, *, to_stdout: bool = False, path: str | None = None) -> None:
    """Write a report as JSON. A file is replaced only when its new content is complete.

    Args:
        report: Any value that `to_json` takes.
        to_stdout: Whether to print the report.
        path: The file to write the report to; "-": standard output.

    Raises:
        ClickException: The file cannot be written.
    """
    if not to_stdout and path is None:
        return
    text = json.dumps(to_json(report), indent=2)
    if to_stdout or path == "-":
        click.echo(text)
    if path is None or path == "-":
        return
    try:
        with open_atomically(Path(path)) as file:
            file.write(f"{text}\n".encode())
    except OSError as error:
        raise click.ClickException(f"cannot write {printable(path)}: {error.strerror}") from error
