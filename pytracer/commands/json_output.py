"""Print a report as JSON."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import click

from pytracer.errors import PytracerError

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the report as JSON, and nothing else."
)


def print_json(content: Mapping[str, Any], results: Iterable[object] | None = None) -> None:
    """Print a report.

    Args:
        content: The keys of the document other than `schema_version` and `errors`, with any values
            that `to_json` takes.
        results: What was found in several files, as returned by `in_parallel`: the document has
            each `PytracerError` among them.
    """
    from pytracer.reading.to_json import SCHEMA_VERSION, to_json  # not needed without JSON

    document = {"schema_version": SCHEMA_VERSION, **content}
    if results is not None:
        errors = (result for result in results if isinstance(result, PytracerError))
        document["errors"] = list(map(str, errors))
    click.echo(json.dumps(to_json(document), indent=2))
