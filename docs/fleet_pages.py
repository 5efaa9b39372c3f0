"""The page of the tables that `pytracer fleet` makes: of the dataset, and of the report."""

import re
import tempfile
from pathlib import Path

import duckdb

from pytracer.fleet.dataset import Dataset
from pytracer.fleet.report import BASE, COMPARISONS, QUERIES, query
from pytracer.fleet.schema import SCHEMA_VERSION, TABLES, Field

HEAD = f"""`pytracer fleet collect PATHS... --output TABLE` writes a dataset of Parquet files,
`TABLE/{{table}}/{{number}}.parquet`, each with the rows of several files, sorted by run, step and
rank. This is version {SCHEMA_VERSION} of the schema, as in `TABLE/_pytracer_fleet.json`. A new
minor version adds columns. A new major version changes the meaning of a column, and is written to a
new folder.

Null means that the value is unknown, or does not apply. Bytes are integers. Columns without a type
here are int64. [What the numbers mean](report.md) describes the figures. While the file
`TABLE/_unfinished` exists, rows of rewritten files may be missing or doubled, until the next
collection has repaired the dataset.
"""

SQL_HEAD = """
## Tables of the report

`pytracer fleet report TABLE --sql` prints the SQL for DuckDB that answers the questions of the
report, with the variables that it reads and comments on each column and rule ([use the
tables](../how-to/many-ranks.md#use-the-tables)). It makes these tables, each from the dataset and
from the tables before it: """


def tables_page() -> str:
    """Return docs/reference/fleet-tables.md without its title."""
    peaks, sites = TABLES["peaks"].fields, TABLES["sites"].fields
    keys = {name: TABLES["files"].fields[name] for name in ("run", "step", "rank", "source")}
    device = {name: peaks[name] for name in ("device", "device_name")}
    site = {name: sites[name] for name in ("site", "filename", "line", "function")}
    callers = {"callers": sites["callers"]}
    shared = keys | device | site | callers
    parts = [HEAD, "\n## Columns of several tables\n\nIn every table:\n\n", columns(keys)]
    parts += ["\nIn tables with a row for each device:\n\n", columns(device)]
    parts += ["\nIn tables of call sites:\n\n", columns(site), columns(callers)]
    for name, table in TABLES.items():
        own = {column: f for column, f in table.fields.items() if shared.get(column) != f}
        has = [
            ", ".join(f"`{column}`" for column in group)
            for group in (device, site, callers)
            if group.items() <= table.fields.items()
        ]
        also = f" Also has {', '.join(has)}." if has else ""
        parts += [f"\n## {name}\n\n{table.meaning}{also}\n\n", columns(own)]
    names = (BASE, *QUERIES, *COMPARISONS)
    return "".join([*parts, SQL_HEAD, ", ".join(f"`{name}`" for name in names), ".\n"])


def columns(fields: dict[str, Field]) -> str:
    """Return a list of columns, with the types that are not int64."""
    return "".join(
        f"- `{name}`{'' if field.kind == 'int64' else f' ({field.kind})'}: {field.meaning}\n"
        for name, field in fields.items()
    )


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
        with Dataset(Path(folder, "table")):
            pass
        for schema in ("baseline", "main"):
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}; USE memory.{schema}")
            connection.execute(f"SET VARIABLE dataset = '{folder}/table'")
            for name in (BASE, *QUERIES):
                connection.execute(query(name))
        for name in COMPARISONS:
            connection.execute(query(name))
        for name in (*QUERIES, *COMPARISONS):
            types = dict(row[:2] for row in connection.execute(f"DESCRIBE {name}").fetchall())
            meanings = sql_comment(name)
            assert set(types) == set(meanings), f"{name}: {set(types) ^ set(meanings)}"
            found[name] = {each: (kinds[types[each]], meanings[each]) for each in types}
    return found
