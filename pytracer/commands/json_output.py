"""Write a report as JSON, to standard output or to a file."""

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pytracer.errors import PytracerError
from pytracer.reading.files import SUFFIXES


@dataclass(frozen=True)
class JsonOutput:
    """Where a command writes its report as JSON: to a file ("-": stdout), or as the only output."""

    is_only: bool = False
    path: str | None = None

    @property
    def is_asked(self) -> bool:
        """Whether the report is written as JSON at all."""
        return self.is_only or self.path is not None

    def write(self, content: Mapping[str, Any], results: Iterable[object] | None = None) -> None:
        """Write a report. A file is replaced only when its new content is complete.

        Args:
            content: The keys of the document other than `schema_version` and `errors`, with any
                values that `to_json` takes.
            results: What was found in several files, as returned by `in_parallel`: the document has
                each `PytracerError` among them.

        Raises:
            PytracerError: The file cannot be written.
        """
        if not self.is_asked:
            return
        from pytracer.atomic_file import open_output  # not needed without JSON
        from pytracer.reading.to_json import SCHEMA_VERSION, to_json

        document = {"schema_version": SCHEMA_VERSION, **content}
        if results is not None:
            errors = (result for result in results if isinstance(result, PytracerError))
            document["errors"] = list(map(str, errors))
        text = json.dumps(to_json(document), indent=2)
        if self.is_only or self.path == "-":
            click.echo(text)
        if self.path not in (None, "-"):
            with open_output(Path(self.path)) as file:
                file.write(f"{text}\n".encode())


def json_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--json` and `--json-output`, as the argument `json_output`."""

    @click.option(
        "--json", "as_json", is_flag=True, help="Print the report as JSON, and nothing else."
    )
    @click.option(
        "--json-output",
        "json_path",
        metavar="PATH",
        callback=_check_path,
        help="Also write the report as JSON to PATH; '-' is standard output.",
    )
    @functools.wraps(command)
    def with_output(*args: Any, as_json: bool, json_path: str | None, **options: Any) -> Any:
        return command(*args, json_output=JsonOutput(as_json, json_path), **options)

    return with_output


def _check_path(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
    if path is not None and path.endswith(SUFFIXES):
        raise click.BadParameter(
            f"{path!r} is named like a snapshot, which the report would overwrite: give a name "
            "such as report.json"
        )
    return path
