"""Write the pages of docs/reference/ that are made from the code, and the pictures of the README.

    python docs/generate.py            # write them
    python docs/generate.py --check    # only report which are out of date; status 1 if any

The options come from `pytracer.tracing.options`, the command line from click, and the JSON
from the dataclasses of the reports. The page on where it runs comes from `where_it_runs`. Whoever
changes one of these runs this script.
"""

import argparse
import dataclasses
import inspect
import re
import sys
import tempfile
import types
import typing
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import duckdb

sys.path.insert(0, str(Path(__file__).parent))

import answer_picture
import where_it_runs

from pytracer.analysis.addresses import AddressedBlock
from pytracer.analysis.answer import Answer
from pytracer.analysis.answered_files import AnsweredFile
from pytracer.analysis.diff.differences import Difference
from pytracer.analysis.diff.limit import LimitCheck
from pytracer.analysis.groups import Held
from pytracer.analysis.leaks.results import LeakReport
from pytracer.analysis.pinned_segments import Fragmentation
from pytracer.analysis.report import Report
from pytracer.backends.doctor import Examination
from pytracer.commands.main import main as command_line
from pytracer.experiments.comparison import Comparison
from pytracer.fitting.results import Fit
from pytracer.fleet.dataset import Dataset
from pytracer.fleet.report import BASE, COMPARISONS, QUERIES, query
from pytracer.fleet.report_results import FleetReport, Row
from pytracer.fleet.schema import SCHEMA_VERSION, TABLES
from pytracer.reading.metadata import FileMetadata
from pytracer.recommendation.answers import Recommendation
from pytracer.tracing.options import OPTIONS

DOCS = Path(__file__).parent
MADE = "<!-- Made by docs/generate.py: change the code that it reads, not this page. -->\n\n"

JSON_ROOTS = {
    "`pytracer show --json`": (
        "The object has `schema_version`, `answer` (an `Answer`; null without a file), `explained` "
        "(an `AnsweredFile` for each file, the file that matters first), `files` (a `Report` for "
        "each file) and `errors` (one message for each file that could not be read). An answer is "
        "an `Answer`:",
        Answer,
    ),
    "`explained` of `pytracer show --json`": ("A file is an `AnsweredFile`:", AnsweredFile),
    "`files` of `pytracer show --json`": ("A report is a `Report`:", Report),
    "`pytracer show --json` with `--at`, `--by` or `--depth`": (
        "The object has `schema_version`, `files` (a list for each file that could be read and has "
        "the moment) and `errors` (one message for each other file, and for each device without "
        "the moment). The list of a file has a `Held` for each device:",
        Held,
    ),
    "`pytracer show --leaks --json`": (
        "The object has `schema_version`, `errors` (one message for each file that could not be "
        "read), and the attributes of `LeakReport`:",
        LeakReport,
    ),
    "`pytracer show --fragmentation --json`": (
        "The object has `schema_version`, `files` (a list for each file that could be read and has "
        "the moment) and `errors` (one message for each other file, and for each device without "
        "the moment). The list of a file has a `Fragmentation` for each device:",
        Fragmentation,
    ),
    "`pytracer show --address --json`": (
        "The object has `schema_version`, `files` (a list for each file that could be read) and "
        "`errors`. The list of a file has an `AddressedBlock` for each block:",
        AddressedBlock,
    ),
    "`pytracer diff --json`": (
        "The object has `schema_version`, and the attributes of `Difference`:",
        Difference,
    ),
    "`pytracer diff --fail-over --json`": (
        "The object has also the key `limit`, a `LimitCheck`:",
        LimitCheck,
    ),
    "`pytracer fleet report --json`": (
        "The object has `schema_version`, and the attributes of `FleetReport`. A row of a table is "
        "an object with a key for each column:",
        FleetReport,
    ),
    "`pytracer recommend --json`": (
        "The object has `schema_version` and `recommendations`, one for each `--capacity`. Each is "
        "a `Recommendation`:",
        Recommendation,
    ),
    "`pytracer fit --json`": (
        "The object has `schema_version`, and the attributes of `Fit`:",
        Fit,
    ),
    "`pytracer experiment --json`": (
        "The object has `schema_version`, `conclusions` (a list of sentences), and the attributes "
        "of `Comparison`. The object has no key `metadata`: each entry of `metadata` is a key of "
        "the object itself:",
        Comparison,
    ),
    "`pytracer doctor --json`": (
        "The object has `schema_version`, `problems` (a list of sentences; it is empty if "
        "everything requested can be recorded), and the attributes of `Examination`:",
        Examination,
    ),
}


def options_page() -> str:
    """Return docs/reference/options.md."""
    head = """`pytracer.Tracer(output=None, *, ...)` takes these options.

Each option also has an environment variable, which is `PYTRACER_` and the option's name in
capitals: `PYTRACER_STACK_DEPTH=64`, `PYTRACER_RANKS=0,3`. Each is also an option of
[`pytracer run`](command-line.md#pytracer-run): `--stack-depth 64`. A value in the code overrides
a variable.

`PYTRACER=1` starts a tracer of its own, without any code. If `PYTRACER=1` is set, the variables of
these options apply only to that tracer, not to tracers in the code: `output`, `dump_signal`,
`trigger_file`, `steps`, `memory_snapshot_num_steps`, `schedule`, `step_from` and `discrete`.

"""
    tail = """
## Other variables

| variable | meaning |
|---|---|
| `PYTRACER` | `1`: record every process that imports torch. `0`: record nothing, whatever the \
code requests |
| `PYTRACER_PATCH_TORCH` | `1`: [replace torch's own recorder](../how-to/torch-recorder.md) |
| `PYTRACER_HOOK_DIR` | a folder of [compiled hooks](../how-to/hooks.md) |
| `PYTRACER_BUILD` | `never` forbids compiling hooks; the default `auto` compiles a missing hook |
| `PYTRACER_UPLOAD_URL` | the folder to which fsspec \
[uploads snapshots](../how-to/frameworks.md#upload-snapshots) |
| `PYTRACER_TENSORBOARD_DIR` | the folder for \
[peaks in TensorBoard](../how-to/frameworks.md#upload-snapshots); default: `runs/pytracer` |
| `CXX` | the compiler for hooks; default: `c++`, `g++` or `clang++` on the `PATH` |

## A wrong value

In the code, a wrong value raises a `pytracer.ConfigError` that names the value and the remedy. If a
variable has a wrong value, one warning is logged, and the option has its default.
"""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for option in OPTIONS.values():
        default = f"`{option.shown_default}`"
        if option.environment_default != option.default:
            default += f"; with `PYTRACER=1`: `{option.shown_environment_default}`"
        rows.append(f"| `{option.name}` | {default} | {option.doc} |")
    return "# Options\n\n" + MADE + head + "\n".join(rows) + "\n" + tail


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def command_page() -> str:
    """Return docs/reference/command-line.md."""
    parts = ["# Command line\n\n", MADE]
    parts += [
        "`python -m pytracer` is the same as `pytracer`. A command exits with 0 if it succeeded, ",
        "with 1 if something failed, and with 2 if its options or arguments are wrong. ",
        "`pytracer run` exits with the exit code of its program.\n",
    ]
    group = click.Context(command_line, info_name="pytracer")
    names = command_line.list_commands(group)
    rows = [(name, command_line.get_command(group, name)) for name in names]
    parts += ["\n| command | what it does |\n|---|---|\n"]
    parts += [
        f"| [`pytracer {name}`](#pytracer-{name}) | {cell(command.get_short_help_str(200))} |\n"
        for name, command in rows
        if command is not None
    ]
    for name, command in rows:
        if command is not None:
            parts += command_section(click.Context(command, group, name), command)
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name)
            for part in command.list_commands(inner):
                if (found := command.get_command(inner, part)) is not None:
                    context = click.Context(found, group, f"{name} {part}")
                    parts += command_section(context, found)
    return "".join(parts)


def command_section(context: click.Context, command: click.Command) -> Iterator[str]:
    """Yield the parts of the section of one command."""
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"\n## pytracer {context.info_name}\n\n```\npytracer {context.info_name} {usage}\n```\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        is_literal = paragraph.startswith("\b")
        text = paragraph.lstrip("\b\n")
        yield (
            f"\n```bash\n{inspect.cleandoc(text)}\n```\n" if is_literal else f"\n{escaped(text)}\n"
        )
    tracer, rows = [], []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record and "--help" not in parameter.opts:
            names, text = record
            is_tracers = context.info_name == "run" and parameter.name in OPTIONS
            names = f"`{names.replace('|', '/')}`"
            tracer.append(names) if is_tracers else rows.append(f"| {names} | {cell(text)} |\n")
    if tracer:
        yield f"\n[Options](options.md) has the meaning of: {', '.join(tracer)}.\n"
    if rows:
        yield f"\n| option | meaning |\n|---|---|\n{''.join(rows)}"


def escaped(text: str) -> str:
    """Return a paragraph in which Markdown sees no HTML."""
    return " ".join(text.split()).replace("<", "&lt;")


def json_page() -> str:
    """Return docs/reference/json.md."""
    parts = ["# JSON\n\n", MADE]
    parts += [
        "`schema_version` is raised when a key is removed or changes its meaning, not when a key ",
        "is added. `null` is an unknown value. Bytes are integers. Times are in microseconds ",
        "(`_us`), nanoseconds (`_ns`) or seconds (`_s`).\n\n",
        "In Python, the same reports are dataclasses, in which `null` is `None`: see ",
        "[Python](python.md#reading).\n",
    ]
    shown: dict[type, None] = {}
    for title, (text, root) in JSON_ROOTS.items():
        parts += [f"\n## {title}\n\n{text}\n\n", table(root, shown)]
    parts += ["\n## Objects in these reports\n"]
    waiting = [
        name for root in (root for _, root in JSON_ROOTS.values()) for name in parts_of(root)
    ]
    while waiting:
        kind = waiting.pop(0)
        if kind not in shown:
            waiting[:0] = parts_of(kind)
            summary = (inspect.getdoc(kind) or "").split("\n\nAttributes:")[0]
            text = as_json(escaped(summary))
            parts += [f"\n### `{kind.__name__}`\n\n{text}\n\n", table(kind, shown)]
    return "".join(parts)


def fleet_tables_page() -> str:
    """Return docs/reference/fleet-tables.md."""
    parts = ["# Tables of many files\n\n", MADE]
    parts += [
        "`pytracer fleet collect PATHS... --output TABLE` writes these tables in Parquet. The ",
        "parts of a table are `TABLE/{table}/{number}.parquet`. A part has the rows of several ",
        "files, sorted by run, step and rank.\n\n",
        f"This is version {SCHEMA_VERSION} of the schema, as in `TABLE/_pytracer_fleet.json`. A ",
        "new minor version adds columns. A new major version changes the meaning of a column, and ",
        "is written to a new folder.\n\n",
        "Null means that the value is unknown, or does not apply. A file has one row in `files`, ",
        "and its rows in the other tables have the same `source`. Bytes are integers. ",
        "[What the numbers mean](report.md) describes them in detail.\n\n",
        "The file `TABLE/_unfinished` exists while a collection runs, and after one was killed. ",
        "Until the next collection has repaired the dataset, rows of files that were rewritten ",
        "may be missing or doubled.\n",
    ]
    for name, of_table in TABLES.items():
        parts += [f"\n## {name}\n\n{of_table.meaning}\n\n"]
        parts += ["| column | type | meaning |\n|---|---|---|\n"]
        parts += [
            f"| `{column}` | {field.kind} | {cell(field.meaning)} |\n"
            for column, field in of_table.fields.items()
        ]
    return "".join(parts)


def as_json(text: str) -> str:
    """Return a text of a docstring with JSON's name for None."""
    return re.sub(r"\bNone\b", "`null`", text)


def parts_of(kind: type) -> list[type]:
    """Return the dataclasses and named tuples that the attributes of one have."""
    found = []
    hints = typing.get_type_hints(kind)
    for field in fields_of(kind):
        found += [part for part in leaves(hints[field]) if is_object(part)]
    return found


def is_object(kind: Any) -> bool:
    """Whether a value of the type is an object with keys of its own in JSON."""
    if kind is FileMetadata:  # the object that is in the file
        return False
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))


def fields_of(kind: Any) -> list[str]:
    """Return the names of the attributes of a dataclass or named tuple."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(kind._fields)


def leaves(hint: Any) -> Iterator[Any]:
    """Yield the types of which a type is made."""
    arguments = typing.get_args(hint)
    if not arguments:
        yield hint
    for argument in arguments:
        yield from leaves(argument)


def table(kind: Any, shown: dict[type, None]) -> str:
    """Return the table of an object's keys."""
    shown[kind] = None
    meanings, hints = attributes(kind), typing.get_type_hints(kind)
    rows = ["| key | type | meaning |", "|---|---|---|"]
    for name in fields_of(kind):
        meaning = as_json(cell(meanings.get(name, "")))
        rows.append(f"| `{name}` | {type_text(hints[name])} | {meaning} |")
    return "\n".join(rows) + "\n"


def attributes(kind: Any) -> dict[str, str]:
    """Return the meaning of each attribute, from the docstrings of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(base.__doc__ or "")
        _, _, block = text.partition("Attributes:\n")
        for match in re.finditer(r"^ {4}([\w, ]+): (.+(?:\n {8}.*|\n(?= *\n {8}))*)", block, re.M):
            found |= dict.fromkeys(match[1].split(", "), match[2])
    return found


def type_text(hint: Any) -> str:
    """Return a type as JSON has it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (list, tuple) or hint in (list, tuple):
        inner = [argument for argument in arguments if argument is not Ellipsis]
        return f"list of {' or '.join(dict.fromkeys(map(type_text, inner)))}" if inner else "list"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(map(type_text, arguments)))
    if origin is dict or hint in (dict, FileMetadata, Row):
        return "object"
    if origin is typing.Literal:
        return " or ".join(f'`"{argument}"`' for argument in arguments)
    if is_object(hint):
        return f"[`{hint.__name__}`](#{hint.__name__.lower()})"
    names = {int: "integer", float: "number", str: "text", bool: "boolean", type(None): "null"}
    return names.get(hint, "any")


def fleet_sql_page() -> str:
    """Return docs/reference/fleet-sql.md."""
    head = """The files in `pytracer/fleet/sql/` answer the questions of `pytracer fleet report` by
DuckDB. Each file makes the table of its name, from the tables of [the
dataset](../how-to/fleet.md) and from the files before it. `pytracer fleet report TABLE --sql`
prints them in their order, with the variables that they read, for DuckDB's own command, a notebook
or a dashboard: [Use the tables](../how-to/fleet.md#use-the-tables).
"""
    types = sql_types()
    sections = [sql_section(name, types.get(name, {})) for name in (BASE, *QUERIES, *COMPARISONS)]
    return "".join(["# SQL of the fleet report\n\n", MADE, head, *sections])


def sql_types() -> dict[str, dict[str, str]]:
    """Return the types of the columns of each table that the SQL makes."""
    words = {"VARCHAR": "text", "VARCHAR[]": "list of text", "BOOLEAN": "bool"}
    words |= {"BIGINT": "int64", "INTEGER": "int32", "DOUBLE": "float64"}
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
        return {
            name: {
                row[0]: words[row[1]] for row in connection.execute(f"DESCRIBE {name}").fetchall()
            }
            for name in (*QUERIES, *COMPARISONS)
        }


def sql_section(name: str, types: dict[str, str]) -> str:
    """Return the section of a file of SQL, from the comment at its beginning.

    Args:
        name: The name of the table.
        types: The type of each of its columns; each is described once.
    """
    question, text, columns, described = "", [], [], []
    for line in query(name).splitlines():
        if not line.startswith("--"):
            break
        comment = line[2:].removeprefix(" ")
        column = re.fullmatch(r"(\w+(?:, \w+)*) {2,}(.+)", comment)
        if not question:
            question = comment
        elif column:
            names = column[1].split(", ")
            described += names
            shown = ", ".join(f"`{each}`" for each in names)
            kinds = [types[each] for each in names]
            kinds = kinds if len(set(kinds)) > 1 else kinds[:1]
            columns.append(f"| {shown} | {', '.join(kinds)} | {cell(column[2])}")
        elif columns and comment:
            columns[-1] += f" {cell(comment)}"
        else:
            text.append(comment)
    assert sorted(described) == sorted(types), f"{name}: {set(types) ^ set(described)}"
    parts = [f"\n## {name}\n\n{question}\n"]
    if paragraph := " ".join(text).strip():
        parts.append(f"\n{paragraph}\n")
    if columns:
        rows = "".join(f"{row} |\n" for row in columns)
        parts.append(f"\n| column | type | meaning |\n|---|---|---|\n{rows}")
    return "".join(parts)


def where_page() -> str:
    """Return docs/reference/where-it-runs.md."""
    title, text = where_it_runs.page().split("\n\n", 1)
    return f"{title}\n\n{MADE}{text}"


PAGES = {
    DOCS / "reference/where-it-runs.md": where_page,
    DOCS / "reference/options.md": options_page,
    DOCS / "reference/command-line.md": command_page,
    DOCS / "reference/json.md": json_page,
    DOCS / "reference/fleet-tables.md": fleet_tables_page,
    DOCS / "reference/fleet-sql.md": fleet_sql_page,
    **{
        picture.path: partial(answer_picture.drawing, picture)
        for picture in answer_picture.PICTURES
    },
}


def out_of_date() -> list[Path]:
    """Return the files that this script would write differently."""
    return [path for path, made in PAGES.items() if not path.exists() or path.read_text() != made()]


def main() -> None:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        if paths := out_of_date():
            sys.exit("\n".join(f"{path} is out of date: run docs/generate.py" for path in paths))
        return
    for path in out_of_date():
        path.write_text(PAGES[path]())
        print(path)


if __name__ == "__main__":
    main()
