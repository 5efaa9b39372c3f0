"""Make docs/reference/schema.json, the JSON Schema of what `--json` of each command prints.

The schema is made of the dataclasses of the reports: a class is an entry of `$defs`, and its
docstring has the meaning of each key. `tests/project/test_json_schema.py` holds real output against
the schema.
"""

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Callable
from typing import Any

from docstrings import as_json, attributes
from fleet_pages import sql_columns

from pytracer.analysis.answer import Answer
from pytracer.analysis.answer_of_files import AnsweredFile
from pytracer.analysis.diff.differences import Difference
from pytracer.analysis.diff.limit import LimitCheck
from pytracer.analysis.groups import Held
from pytracer.analysis.leaks.results import LeakReport
from pytracer.analysis.pinned_segments import Fragmentation
from pytracer.analysis.report import Report
from pytracer.backends.doctor import Examination
from pytracer.boxes.live_boxes import LiveDevice
from pytracer.experiments.comparison import Comparison
from pytracer.fitting.results import Fit
from pytracer.fleet.collection import Collected
from pytracer.fleet.report_results import FleetReport, Row
from pytracer.reading.metadata import FileMetadata
from pytracer.reading.to_json import SCHEMA_VERSION
from pytracer.recommendation.results import Recommendation

Schema = dict[str, Any]

FILE_ERRORS = "One message for each file that could not be read."
MOMENT_ERRORS = (
    "One message for each file that could not be read, and each device without the moment."
)


def documents(schema_of: Callable[[Any], Schema]) -> dict[str, Schema]:
    """Return the schema of the document of each command; `schema_of` gives that of a type."""

    def key(hint: Any, text: str) -> Schema:
        return schema_of(hint) | {"description": text}

    def document(command: str, keys: Schema, kind: type | None = None) -> Schema:
        keys = (properties(kind, schema_of) if kind else {}) | keys
        version = {"const": SCHEMA_VERSION, "description": "The version of the documents."}
        required = [name for name in keys if name != "limit"]
        return {
            "description": f"The output of `pytracer {command}`.",
            "type": "object",
            "properties": {"schema_version": version} | keys,
            "required": ["schema_version", *required],
        }

    errors = {"errors": key(list[str], FILE_ERRORS)}
    moment_errors = {"errors": key(list[str], MOMENT_ERRORS)}
    with_moment = (
        "A list for each file that could be read and has the moment, with an entry for each device."
    )
    comparison = document(
        "experiment --json",
        {"conclusions": key(list[str], "What the comparison shows, one sentence each.")},
        Comparison,
    )
    text = comparison["properties"].pop("metadata")["description"]
    comparison["required"].remove("metadata")
    comparison["description"] += f" It has further keys. {text}"
    return {
        "show": document(
            "show --json",
            {
                "answer": key(Answer | None, "The answer; null without a file."),
                "explained": key(list[AnsweredFile], "The file that matters first is first."),
                "files": key(list[Report], "Every figure of each file."),
                **errors,
            },
        ),
        "show_by": document(
            "show --json` with `--at`, `--by` or `--depth",
            {"files": key(list[list[Held]], with_moment), **moment_errors},
        ),
        "show_leaks": document("show --leaks --json", errors, LeakReport),
        "show_fragmentation": document(
            "show --fragmentation --json",
            {"files": key(list[list[Fragmentation]], with_moment), **moment_errors},
        ),
        "diff": document(
            "diff --json", {"limit": key(LimitCheck, "Only with `--fail-over`.")}, Difference
        ),
        "recommend": document(
            "recommend --json",
            {"recommendations": key(list[Recommendation], "One for each `--capacity`.")},
        ),
        "fit": document("fit --json", {}, Fit),
        "experiment": comparison,
        "fleet_collect": document("fleet collect --json", {}, Collected),
        "fleet_report": document("fleet report --json", errors, FleetReport),
        "live": document(
            "live --once --json",
            {"devices": key(list[LiveDevice], "Each device of each process, by rank.")},
        ),
        "doctor": document(
            "doctor --json",
            {
                "problems": key(
                    list[str], "Empty if everything requested can be recorded; one sentence each."
                ),
            },
            Examination,
        ),
    }


def schema() -> str:
    """Return docs/reference/schema.json."""
    definitions: dict[str, Schema] = {}
    names_of: dict[Any, str] = {}
    columns = sql_columns()

    def schema_of(hint: Any) -> Schema:
        """Return the schema of a type, and define the classes that it needs."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (list, tuple) or hint in (list, tuple):
            inner = [argument for argument in arguments if argument is not Ellipsis]
            return {"type": "array"} | ({"items": any_of(inner)} if inner else {})
        if origin in (types.UnionType, typing.Union):
            return any_of(arguments)
        if origin is dict or hint in (dict, FileMetadata):
            return {"type": "object"}
        if origin is typing.Literal:
            return {"enum": [*arguments]}
        if is_object(hint):
            if hint not in names_of:
                is_taken = hint.__name__ in names_of.values()
                package = hint.__module__.split(".")[1]
                name = names_of[hint] = f"{package}_{hint.__name__}" if is_taken else hint.__name__
                definitions[name] = of_class(hint)
            return {"$ref": f"#/$defs/{names_of[hint]}"}
        names = {int: "integer", float: "number", str: "string", bool: "boolean"}
        names[type(None)] = "null"
        return {"type": names[hint]} if hint in names else {}

    def any_of(hints: Any) -> Schema:
        found: list[Schema] = []
        for each in map(schema_of, hints):
            if each not in found:
                found.append(each)
        if len(found) > 1 and all([*each] == ["type"] for each in found):
            return {"type": [each["type"] for each in found]}
        return found[0] if len(found) == 1 else {"anyOf": found}

    def of_class(kind: Any) -> Schema:
        keys = properties(kind, schema_of)
        text = as_json((inspect.getdoc(kind) or "").split("\n\nAttributes:")[0])
        return {
            "description": text,
            "type": "object",
            "properties": keys,
            "required": [*keys],
        }

    def of_rows(kind: Any, keys: dict[str, Schema]) -> None:
        """Describe the keys that have rows of a table of the report's SQL."""
        for name, hint in typing.get_type_hints(kind).items():
            if Row in (hint, *typing.get_args(hint)):
                text = keys[name]["description"]
                table = next(t for t in re.findall(r"`(\w+)`", text) if t in columns)
                row = {"$ref": f"#/$defs/{row_of(table)}"}
                if typing.get_origin(hint) is list:
                    keys[name] = {"type": "array", "items": row, "description": text}
                elif type(None) in typing.get_args(hint):
                    keys[name] = {"anyOf": [row, {"type": "null"}], "description": text}
                else:
                    keys[name] = row | {"description": text}

    def row_of(table: str) -> str:
        kinds = {"text": "string", "bool": "boolean", "float64": "number"}
        keys = {}
        for column, (kind, meaning) in columns[table].items():
            if kind == "list of text":
                keys[column] = {"type": ["array", "null"], "items": {"type": "string"}}
            else:
                keys[column] = {"type": [kinds.get(kind, "integer"), "null"]}
            keys[column]["description"] = meaning
        definitions[f"row_{table}"] = {
            "description": f"A row of the table `{table}`, as in `pytracer fleet report --sql`.",
            "type": "object",
            "properties": keys,
            "required": [*keys],
        }
        return f"row_{table}"

    commands = documents(schema_of)
    of_rows(FleetReport, commands["fleet_report"]["properties"])
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What --json of pytracer's commands prints",
        "description": "Made by docs/generate.py. reference/json.md explains it.",
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in commands],
        "$defs": commands | {name: definitions[name] for name in sorted(definitions)},
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def properties(kind: Any, schema_of: Callable[[Any], Schema]) -> dict[str, Schema]:
    """Return the schema of each attribute of a dataclass or named tuple."""
    meanings, hints = attributes(kind), typing.get_type_hints(kind)
    names = [*kind._fields] if hasattr(kind, "_fields") else []
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    return {
        name: schema_of(hints[name]) | {"description": meanings.get(name, "")} for name in names
    }


def is_object(kind: Any) -> bool:
    """Whether a value of the type is an object with keys of its own in JSON."""
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))
