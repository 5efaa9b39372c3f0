"""The tables that `pytracer fleet collect` writes: their columns, kinds and meanings.

`docs/reference/fleet-tables.md` and `.json` are generated from this module.
"""

from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from pytracer.analysis.leaks.results import DeviceLeaks, Growth
from pytracer.analysis.ooms import OutOfMemory
from pytracer.analysis.report import Counts, DeviceReport, Lost, Outside
from pytracer.analysis.steps_and_phases import Phase, Step
from pytracer.analysis.usage import UsageSample
from pytracer.errors import optional
from pytracer.export.parquet import PYARROW

SCHEMA_VERSION = "3.0"
"""The version of the tables: a minor version adds columns, a major one changes a meaning."""

# The most rows of a file in a table.
MOST_SITES = 100  # of a moment of a device, without the row of the others
MOST_STEPS = 2048  # of a device
MOST_PHASES = 200  # of a device
MOST_OOMS = 100  # of a device
MOST_LEAKS = 100  # of a device
MOST_SETTINGS = 200  # of a scope
MOST_SETTING_LENGTH = 4096  # characters of a setting's name, and of its value


Row = dict[str, Any]  # a row of a table. A column that it lacks is null

ArrowTables = dict[str, Any]  # the rows of a file in each table that has any, as Arrow tables


class Field(NamedTuple):
    """A column of a table."""

    kind: str  # "text", "int64", "int32", "float64" or "bool"
    meaning: str  # the description for the documentation; of an attribute, what comes before it
    attribute: tuple[type, str] | None = None  # of a class, whose docstring has the meaning


class Table(NamedTuple):
    """A table of the dataset."""

    meaning: str  # what one row is, and the most rows that a file has
    fields: dict[str, Field]  # the columns, by name, in their order


_KEY = {
    "run": Field("text", "the run: `--run`, or else the folder that the files are in"),
    "step": Field(
        "int64",
        "the step of the file: the last step of its window, or else the step in which it was "
        "written",
    ),
    "rank": Field("int32", "the rank, from the file's metadata, or else from its name"),
    "source": Field("text", "the path or the URL of the file"),
}
_DEVICE = {
    **_KEY,
    "device": Field("int32", "the device's index in the file"),
    "device_name": Field("text", "the device's name, such as `cuda:0`"),
}
_SITE = {
    "site": Field("text", "the call site, as `file:line function`"),
    "filename": Field("text", "the call site's file"),
    "line": Field("int32", "the call site's line"),
    "function": Field("text", "the call site's function"),
}
_CALLERS = Field(
    "text",
    "up to three callers in the program that most of the bytes have, innermost first, joined by "
    "` <- `",
)


_AT_PEAK, _AT_END = "At the peak: ", "At the end: "


def _bytes(meaning: str) -> Field:
    return Field("int64", meaning)


def _of(source: type, names: str, prefix: str = "", when: str = "") -> dict[str, Field]:
    """Return columns that have the types and the meanings of attributes of a class."""
    hints, found = get_type_hints(source), {}
    for name in names.split():
        kinds = {int: "int64", float: "float64", bool: "bool"}
        kind = kinds.get((*get_args(hints[name]), hints[name])[0], "text")
        found[prefix + name] = Field(kind, when, (source, name))
    return found


TABLES = {
    "files": Table(
        "One row for each file, readable or not.",
        {
            **_KEY,
            "folder": Field("text", "the folder that holds the files of the run"),
            "kind": Field(
                "text",
                "`oom` or `step`, as the file says; else `exit`, `step`, `oom` or `demand`, by its "
                "name; empty if the name has none",
            ),
            "first_step": Field("int64", "the first step of the file's window"),
            "last_step": Field("int64", "the last step of the file's window"),
            "file_phase": Field("text", "the phase of a file with the events of one phase"),
            "role": Field("text", "the option `role`"),
            "host": Field("text", "the host that wrote the file"),
            "pid": Field("int64", "the process that wrote the file"),
            "backend": Field("text", "`cuda`, `npu` or `cpu`; an accelerator comes first"),
            "torch": Field("text", "the version of torch"),
            "torch_npu": Field("text", "the version of torch_npu"),
            "python": Field("text", "the version of Python"),
            "pytracer": Field("text", "the version of pytracer that wrote the file"),
            "written_ns": Field("int64", "when the file was written, in ns since the epoch"),
            "file_bytes": _bytes("the size of the file"),
            "modified_ns": Field("int64", "when the file was modified, in ns since the epoch"),
            "devices": Field("int32", "the number of devices that were used"),
            "events": Field("int64", "the number of events of all devices"),
            "is_oom": Field("bool", "whether the file was written because memory ran out"),
            "error": Field("text", "why the file could not be read; null if it was read"),
        },
    ),
    "peaks": Table(
        "One row for each device of a file that was used.",
        {
            **_DEVICE,
            **_of(DeviceReport, "is_cpu events first_us last_us contradiction only_phase"),
            **_of(Lost, "overwritten unknown_frees live_dropped before_bytes exact_from"),
            **_of(UsageSample, "allocated_bytes event time_us step phase", "peak_", _AT_PEAK),
            **_of(UsageSample, "requested_bytes active_bytes", "peak_", _AT_PEAK),
            "reserved_at_peak_bytes": _bytes("the reserved bytes at the peak"),
            "fragmentation_at_peak_bytes": _bytes("reserved minus allocated bytes at the peak"),
            **_of(DeviceReport, "is_peak_certain"),
            "peak_reserved_bytes": _bytes("the largest number of reserved bytes"),
            **_of(UsageSample, "allocated_bytes active_bytes requested_bytes", "end_", _AT_END),
            **_of(UsageSample, "reserved_bytes largest_free_bytes", "end_", _AT_END),
            **_of(UsageSample, "inactive_split_bytes", "end_", _AT_END),
            **_of(Outside, "total_bytes free_bytes process_bytes outside_bytes others_bytes"),
            **_of(Counts, "allocs frees device_allocs device_frees ooms retries"),
            **_of(DeviceLeaks, "verdict reason unit first last observed", "leak_"),
            **_of(DeviceLeaks, "begin_bytes end_bytes bytes_per_step", "leak_"),
            **_of(DeviceLeaks, "available_bytes exhausted_step"),
        },
    ),
    "sites": Table(
        "The memory held at a moment, by call site, category and phase of the allocation. The rows "
        "of a source, device and moment add up to the active bytes of the moment. A moment has at "
        f"most {MOST_SITES} rows, the largest, and one row for the others.",
        {
            **_DEVICE,
            "moment": Field("text", "`peak`, `end`, or `oom`: the last out-of-memory error"),
            "is_others": Field("bool", "whether this row sums up the groups without their own row"),
            **_SITE,
            "callers": _CALLERS,
            "category": Field("text", "what memory was for; null if the file has no owners"),
            "phase": Field("text", "the phase of the allocation; empty for none, null if unknown"),
            "size_bytes": _bytes("the bytes that the allocator gave the blocks"),
            "requested_bytes": _bytes("the bytes that the program requested"),
            "blocks": Field("int64", "the number of blocks"),
            "groups": Field("int64", "the number of groups in this row: 1, or more for the others"),
            "largest_group_bytes": _bytes(
                "the bytes of the largest group in this row: a group that has no row is not larger "
                "than that of the others"
            ),
        },
    ),
    "steps": Table(
        f"One row for each step in the trace of a file: at most the last {MOST_STEPS:,}.",
        {
            **_DEVICE,
            "number": Field("int64", "the step's number; null before the first known step"),
            **_of(Step, "begins_in_trace begin_bytes end_bytes peak_bytes fragmentation_bytes"),
            **_of(Step, "peak_reserved_bytes allocations allocations_bytes"),
            **_of(Step, "device_allocs device_frees is_exact"),
        },
    ),
    "phases": Table(
        f"One row for each phase of a file: at most {MOST_PHASES}, those with the largest peaks.",
        {
            **_DEVICE,
            **_of(Phase, "phase at_peak_bytes peak_bytes fragmentation_bytes"),
            **_of(Phase, "peak_reserved_bytes end_bytes allocations allocations_bytes is_exact"),
        },
    ),
    "ooms": Table(
        f"One row for each out-of-memory error in a file: at most the last {MOST_OOMS} of a "
        "device.",
        {
            **_DEVICE,
            "number": Field("int32", "its number in the trace of the device, from 1"),
            "is_last": Field("bool", "whether it is the last in the trace of the device"),
            "oom_step": Field("int64", "the step of the allocation that failed"),
            **_of(OutOfMemory, "event time_us phase requested_bytes segment_bytes"),
            **_of(OutOfMemory, "device_free_bytes available_bytes limit_bytes"),
            **_of(OutOfMemory, "free_in_segments_bytes elsewhere_bytes"),
            "allocated_bytes": _bytes("the allocated bytes at that time"),
            "reserved_bytes": _bytes("the reserved bytes at that time"),
            **_SITE,
            "verdict": Field("text", "the first verdict of `pytracer show`; of the last one"),
            "verdicts": Field("text", "all verdicts, joined by commas; of the last one"),
            "explanation": Field("text", "the figures that decided; of the last one"),
            "what": Field("text", "what happened, in sentences; of the last one"),
        },
    ),
    "leaks": Table(
        "One row for each call site whose memory grew in the trace of a file: at most "
        f"{MOST_LEAKS} of a device, leaks first. `pytracer show --leaks` describes the search.",
        {
            **_DEVICE,
            **_of(Growth, "verdict reason kind"),
            **_SITE,
            "callers": _CALLERS,
            **_of(Growth, "phase bytes_per_step least_bytes_per_step most_bytes_per_step"),
            **_of(Growth, "growths period_steps first_step is_older held_bytes blocks"),
            "unit": Field("text", "as `leak_unit` in `peaks`"),
        },
    ),
    "settings": Table(
        "One row for each setting of a file.",
        {
            **_KEY,
            "scope": Field(
                "text",
                "`allocator`: a key of the allocator's variable; `reported`: a value that torch "
                "reports; `recording`: an option of pytracer; `version`; `metadata`: a key of the "
                "option `metadata`",
            ),
            "key": Field("text", "the name of the setting"),
            "value": Field("text", "its value; JSON if it is not a text"),
        },
    ),
}
"""Every table, by name."""


def pyarrow() -> Any:
    """Return the package, which is optional."""
    return optional("pytracer fleet needs", *PYARROW)[0]


@cache
def arrow_schema(table: str) -> Any:
    """Return the Arrow schema of a table."""
    pa = pyarrow()
    kinds = {"text": "string", "bool": "bool_"}
    return pa.schema(
        {
            name: getattr(pa, kinds.get(field.kind, field.kind))()
            for name, field in TABLES[table].fields.items()
        },
        metadata={"pytracer_fleet": SCHEMA_VERSION},
    )


def arrow_tables(rows: dict[str, list[Row]]) -> ArrowTables:
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
