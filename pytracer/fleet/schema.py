"""The tables that `pytracer fleet collect` writes: what `pytracer show --json` says, as rows.

A table has the attributes of one or several classes as columns; the docstrings of these classes
have their meanings. An attribute of an attribute has the names of both, as `lost_overwritten` has
`DeviceReport.lost.overwritten`, and a word between them once: `peak_allocated_bytes`.
`docs/reference/fleet-tables.md` and `.json` are generated from this module.
"""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, NamedTuple, TypedDict, get_args, get_origin, get_type_hints

from pytracer.analysis.leaks.results import DeviceLeaks, Growth
from pytracer.analysis.ooms import OutOfMemory
from pytracer.analysis.report import DeviceReport
from pytracer.analysis.steps_and_phases import Phase, Step
from pytracer.errors import optional
from pytracer.export.parquet import PYARROW
from pytracer.export.texts import frame_text
from pytracer.reading.metadata import FileMetadata
from pytracer.reading.snapshot import Frame

SCHEMA_VERSION = "4.0"
"""The version of the tables: a minor version adds columns, a major one changes a meaning."""

# The most rows of a file in a table.
MOST_GROUPS = 100  # by one key at a moment of a device, without the row of the others
MOST_STEPS = 2048  # of a device
MOST_PHASES = 200  # of a device
MOST_OOMS = 100  # of a device
MOST_LEAKS = 100  # of a device
MOST_SETTINGS = 200  # of a scope
MOST_SETTING_LENGTH = 4096  # characters of a setting's name, and of its value


Row = dict[str, Any]  # a row of a table. A column that it lacks is null

ArrowTables = dict[str, Any]  # the rows of a file in each table that has any, as Arrow tables


class OfFile(TypedDict):
    """The columns of every table.

    Attributes:
        run: The run: `--run`, or else the folder that the files are in.
        file_step: The step of the file: the last step of its window, or else the step in which it
            was written.
        rank: The rank, from the file's metadata, or else from its name.
        source: The path or the URL of the file.
    """

    run: str
    file_step: int
    rank: int
    source: str


class OfDevice(TypedDict):
    """The columns of every table of devices.

    Attributes:
        device: The device's index in the file.
        device_name: The device's name, such as `cuda:0`.
    """

    device: int
    device_name: str


class File(TypedDict):
    """A file, next to its metadata.

    Attributes:
        folder: The folder that holds the files of the run.
        kind: `oom` or `step`, as the file says; else `exit`, `step`, `oom` or `demand`, by its
            name; empty if the name has none.
        first_step, last_step: The first and the last step of the file's window.
        backend: `cuda`, `npu` or `cpu`; an accelerator comes first.
        file_bytes: The size of the file.
        modified_ns: When the file was modified, in ns since the epoch.
        devices: The number of devices that were used.
        events: The number of events of all devices.
        is_oom: Whether the file was written because memory ran out.
        error: Why the file could not be read; null if it was read.
    """

    folder: str
    kind: str
    first_step: int
    last_step: int
    backend: str
    file_bytes: int
    modified_ns: int
    devices: int
    events: int
    is_oom: bool
    error: str


class HeldMemory(TypedDict):
    """The memory that a call site, a category or a module held at a moment.

    Attributes:
        moment: `peak`, `end`, or `oom`: the last out-of-memory error.
        by: What the rows of a moment differ in: `line`, `category` or `module`.
        name: The call site as `file:line function`, the category or the module; null if unknown.
        is_others: Whether this row sums up those without their own row.
        size_bytes: The bytes that the allocator gave the blocks.
        requested_bytes: The bytes that the program requested.
        blocks: The number of blocks.
        groups: The number of call sites, categories or modules: 1, or more for the others.
        largest_group_bytes: The bytes of the largest of them: one that has no row is not larger
            than that of the others.
    """

    moment: str
    by: str
    name: str
    is_others: bool
    size_bytes: int
    requested_bytes: int
    blocks: int
    groups: int
    largest_group_bytes: int


class Explained(TypedDict):
    """What `pytracer show` says of an out-of-memory error; of the last one of a device.

    Attributes:
        is_last: Whether it is the last in the trace of the device.
        verdict: The first verdict.
        verdicts: All verdicts, joined by commas.
        explanation: The figures that decided.
        what: What happened, in sentences.
    """

    is_last: bool
    verdict: str
    verdicts: str
    explanation: str
    what: str


class Leak(TypedDict):
    """Where memory grew.

    Attributes:
        site: The call site, as `file:line function`.
        callers: Up to three callers in the program, innermost first, joined by ` <- `.
        unit: As `leak_unit` in `devices`.
    """

    site: str
    callers: str
    unit: str


class Setting(TypedDict):
    """A setting.

    Attributes:
        scope: `allocator`: a key of the allocator's variable; `reported`: a value that torch
            reports; `recording`: an option or a version; `metadata`: a key of the option
            `metadata`.
        key: The name of the setting.
        value: Its value; JSON if it is not a text.
    """

    scope: str
    key: str
    value: str


class Column(NamedTuple):
    """A column of a table: an attribute of a class, whose docstring has the meaning."""

    kind: str  # "text", "int64", "float64" or "bool"
    source: type
    attribute: str


_KINDS = {str: "text", Frame: "text", int: "int64", float: "float64", bool: "bool"}


def _columns(source: type, prefix: str = "") -> Iterator[tuple[str, Column]]:
    for attribute, hint in get_type_hints(source).items():
        name = _joined(prefix, attribute)
        kind = get_args(hint)[0] if get_origin(hint) is UnionType else hint
        if is_dataclass(kind):
            assert isinstance(kind, type)
            yield from _columns(kind, name)
        elif kind in _KINDS or get_origin(kind) is Literal:
            yield name, Column(_KINDS.get(kind, "text"), source, attribute)


def row_of(value: Any, prefix: str = "") -> Row:
    """Return the attributes of an object as columns; those that are lists are in other tables."""
    found: Row = {}
    for attribute, item in vars(value).items():
        name = _joined(prefix, attribute)
        if is_dataclass(item):
            found |= row_of(item, name)
        else:
            found[name] = frame_text(item) if isinstance(item, Frame) else item
    return found


def _joined(prefix: str, attribute: str) -> str:
    """Return the name of a column; a word in which the names would meet is there once."""
    first = attribute.partition("_")[0]
    if prefix in ("", first):
        return attribute
    return f"{prefix.removesuffix(f'_{first}')}_{attribute}"


class Table:
    """A table of the dataset.

    Attributes:
        meaning: What one row is, and the most rows that a file has.
        columns: The columns by their names, in their order.
    """

    def __init__(self, meaning: str, *sources: type, is_of_device: bool = True, **inner: type):
        """Make a table of the attributes of classes; those of `inner` have a prefix."""
        self.meaning = meaning
        self.columns: dict[str, Column] = {}
        keys = (OfFile, OfDevice) if is_of_device else (OfFile,)
        named = [*(("", source) for source in (*keys, *sources)), *inner.items()]
        for prefix, source in named:
            for name, column in _columns(source, prefix):
                self.columns.setdefault(name, column)


TABLES = {
    "files": Table(
        "One row for each file, readable or not.", File, FileMetadata, is_of_device=False
    ),
    "devices": Table(
        "One row for each device that a file's process has used.", DeviceReport, leak=DeviceLeaks
    ),
    "held": Table(
        "Who held memory at a moment, by call site, by category and by module. For each source, "
        "device, moment and `by`, the rows add up to the active bytes. Only the "
        f"{MOST_GROUPS} largest have their own row; one more sums up the rest.",
        HeldMemory,
    ),
    "steps": Table(
        f"One row for each step in a file's trace, for the last {MOST_STEPS:,} steps at most.", Step
    ),
    "phases": Table(
        f"One row for each phase of a file: at most {MOST_PHASES}, those with the largest peaks.",
        Phase,
    ),
    "ooms": Table(
        f"One row for each out-of-memory error in a file: at most the last {MOST_OOMS} per device.",
        OutOfMemory,
        Explained,
    ),
    "leaks": Table(
        "One row for each call site whose memory grew in the trace of a file: at most "
        f"{MOST_LEAKS} per device, leaks first, as `pytracer show --leaks` finds them.",
        Growth,
        Leak,
    ),
    "settings": Table("One row for each setting of a file.", Setting, is_of_device=False),
}
"""Every table, by name."""


def pyarrow() -> Any:
    """Return the package, which is optional."""
    return optional("pytracer fleet needs", *PYARROW)[0]


@cache
def arrow_schema(table: str) -> Any:
    """Return the Arrow schema of a table."""
    pa = pyarrow()
    kinds = {"text": pa.string(), "bool": pa.bool_(), "int64": pa.int64(), "float64": pa.float64()}
    fields = {name: kinds[column.kind] for name, column in TABLES[table].columns.items()}
    return pa.schema(fields, metadata={"pytracer_fleet": SCHEMA_VERSION})


def arrow_tables(rows: Mapping[str, list[Row]]) -> ArrowTables:
    """Return the rows of each table that has any."""
    found = {}
    for table, of_table in rows.items():
        if of_table:
            schema = arrow_schema(table)
            columns = {name: [_valid(row.get(name)) for row in of_table] for name in schema.names}
            found[table] = pyarrow().table(columns, schema=schema)
    return found


def _valid(value: Any) -> Any:
    # Arrow has no lone surrogates, which names in files may contain.
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
