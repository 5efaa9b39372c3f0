"""Write a report as JSON, to standard output or to a file."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from pytracer.atomic_file import open_atomically
from pytracer.errors import PytracerError
from pytracer.reading.to_json import SCHEMA_VERSION, to_json
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


def write_results(
    content: Mapping[str, Any], results: Iterable[object], *, to_stdout: bool, path: str | None
) -> None:
    """Write what was found in several files, with the errors of the others, as `write_json` does.

    Args:
        content: The keys of the document other than `schema_version` and `errors`.
        results: As returned by `in_parallel`: each `PytracerError` among them is listed.
        to_stdout, path: Those of `write_json`.
    """
    errors = [str(result) for result in results if isinstance(result, PytracerError)]
    document = {"schema_version": SCHEMA_VERSION, **content, "errors": errors}
    write_json(document, to_stdout=to_stdout, path=path)
