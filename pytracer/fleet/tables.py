"""Rows as Arrow tables, and as bytes that travel between processes."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pytracer.export.arrow_package import import_pyarrow
from pytracer.fleet.schema import SCHEMA_VERSION, TABLES
from pytracer.fleet.summary import Row, Rows

Encoded = dict[str, bytes]
"""The rows of each table, in Arrow's IPC format."""


def pyarrow() -> Any:
    """Return the package, which is optional.

    Raises:
        PytracerError: It is not installed.
    """
    return import_pyarrow("pytracer fleet needs")


@cache
def arrow_schema(table: str) -> Any:
    """Return the Arrow schema of a table."""
    pa = pyarrow()
    types = {
        "text": pa.string(),
        "int64": pa.int64(),
        "int32": pa.int32(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
    }
    return pa.schema(
        {name: types[field.kind] for name, field in TABLES[table].fields.items()},
        metadata={"pytracer_fleet": SCHEMA_VERSION},
    )


def encode(rows: Rows) -> Encoded:
    """Return rows as bytes."""
    pa = pyarrow()
    encoded = {}
    for table, found in rows.items():
        if not found:
            continue
        schema = arrow_schema(table)
        arrays = [pa.array(_column(found, field.name), field.type) for field in schema]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.record_batch(arrays, schema=schema))
        encoded[table] = sink.getvalue().to_pybytes()
    return encoded


def decode(parts: Mapping[str, list[bytes]]) -> dict[str, Any]:
    """Return one Arrow table for each name, from bytes of `encode`."""
    pa = pyarrow()
    found = {}
    for table, contents in parts.items():
        tables = [pa.ipc.open_stream(content).read_all() for content in contents]
        found[table] = pa.concat_tables(tables)
    return found


def _column(rows: list[Row], name: str) -> list[Any]:
    values = [row.get(name) for row in rows]
    if any(isinstance(value, str) for value in values):
        # Arrow has no lone surrogates, which names in files may contain.
        return [
            value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
            for value in values
        ]
    return values
