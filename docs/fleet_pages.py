"""The page and the JSON file of the tables that `pytracer fleet` makes."""

import json
import re
import tempfile
from pathlib import Path

import duckdb
from docstrings import attributes

from pytracer.fleet.dataset import new_dataset
from pytracer.fleet.report import BASE, QUERIES, query
from pytracer.fleet.schema import SCHEMA_VERSION, TABLES

HEAD = f"""`pytracer fleet collect PATHS... --output TABLE` writes a dataset of Parquet files,
`TABLE/{{table}}/{{number}}.parquet`. [`fleet-tables.json`](fleet-tables.json) has the type and the
meaning of every column (version {SCHEMA_VERSION}). A minor version adds columns, a major version
removes a column or changes its meaning. Without `TABLE/_pytracer_fleet.json`, the collection is
still running or was killed.

Null means that the value is unknown, or does not apply. The columns are the keys of [`pytracer show
--json`](json.md), those of nested objects joined by `_`: `peak_allocated_bytes`. Call sites are
texts, `file:line function`. Every table has `run`, `file_step`, `rank` and `source` (the path or
URL of the file), those of devices `device` and `device_name`.

| table | rows |
|---|---|
"""

AS_WRITTEN = "As in the key `pytracer` of the file: see snapshot-format.md."


def tables_page() -> str:
    """Return docs/reference/fleet-tables.md without its title."""
    rows = [f"| `{name}` | {table.meaning} |\n" for name, table in TABLES.items()]
    return "".join([HEAD, *rows])


def columns() -> str:
    """Return docs/reference/fleet-tables.json: the type and the meaning of each column."""
    tables = {
        name: {
            "meaning": table.meaning,
            "columns": {
                column: {"kind": kind, "meaning": attributes(source).get(attribute, AS_WRITTEN)}
                for column, (kind, source, attribute) in table.columns.items()
            },
        }
        for name, table in TABLES.items()
    }
    content = {"schema_version": SCHEMA_VERSION, "tables": tables}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def sql_comment(name: str) -> dict[str, str]:
    """Return the meaning of each column of the table that a file of SQL makes."""
    names = list[str]()
    described: dict[str, str] = {}
    for line in query(name).splitlines():
        if not line.startswith("--"):
            break
        comment = line[2:].removeprefix(" ")
        column = re.fullmatch(r"(\w+(?:, \w+)*) {2,}(.+)", comment)
        if column:
            names = column[1].split(", ")
            described |= dict.fromkeys(names, column[2].strip())
        elif names and comment:
            described |= {each: f"{described[each]} {comment.strip()}" for each in names}
    return described


def sql_columns() -> dict[str, dict[str, tuple[str, str]]]:
    """Return the type and the meaning of each column of the tables that the SQL makes."""
    kinds = {"VARCHAR": "text", "VARCHAR[]": "list of text", "BOOLEAN": "bool"}
    kinds |= {"BIGINT": "int64", "INTEGER": "int32", "DOUBLE": "float64"}
    found = {}
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
        with new_dataset(Path(folder, "table")):
            pass
        connection.execute(f"SET VARIABLE dataset = '{folder}/table'")
        for name in (BASE, *QUERIES):
            connection.execute(query(name))
        for name in QUERIES:
            types = dict(row[:2] for row in connection.execute(f"DESCRIBE {name}").fetchall())
            meanings = sql_comment(name)
            assert set(types) == set(meanings), f"{name}: {set(types) ^ set(meanings)}"
            found[name] = {each: (kinds[types[each]], meanings[each]) for each in types}
    return found
