"""Rows as Arrow tables, and as bytes that travel between processes."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from pytracer.export import parquet
from pytracer.fleet.schema import SCHEMA_VERSION, TABLES

Row = dict[str, Any]
Rows = dict[str, list[Row]]
"""The rows of each table. A column that a row lacks is null."""

Encoded = dict[str, bytes]
"""The rows of each table that has any, in Arrow's IPC format."""


def pyarrow() -> Any:
    """Return the package, which is optional.

    Raises:
        PytracerError: It is not installed.
    """
    return parquet.pyarrow("pytracer fleet needs")


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
    """Return rows as bytes, which processes exchange faster than Arrow tables."""
    pa = pyarrow()
    encoded = {}
    for table, found in rows.items():
        if found:
            schema, sink = arrow_schema(table), pa.BufferOutputStream()
            arrays = [pa.array(_column(found, field.name), field.type) for field in schema]
            with pa.ipc.new_stream(sink, schema) as writer:
                writer.write_batch(pa.record_batch(arrays, schema=schema))
            encoded[table] = sink.getvalue().to_pybytes()
    return encoded


def decode(contents: Iterable[bytes]) -> Any:
    """Return one Arrow table from bytes of `encode`, all of one table."""
    pa = pyarrow()
    return pa.concat_tables(pa.ipc.open_stream(content).read_all() for content in contents)


def _column(rows: list[Row], name: str) -> list[Any]:
    # Arrow has no lone surrogates, which names in files may contain.
    return [
        value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
        for value in (row.get(name) for row in rows)
    ]
