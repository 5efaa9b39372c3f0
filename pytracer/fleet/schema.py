"""The tables that `pytracer fleet collect` writes: their columns, kinds and meanings.

`docs/reference/fleet-tables.md` is generated from this module.
"""

from functools import cache
from typing import Any, NamedTuple

from pytracer.export import parquet

SCHEMA_VERSION = "2.0"
"""The version of the tables: a minor version adds columns, a major one changes a meaning."""

# The most rows of a file in a table.
MOST_SITES = 100  # of a moment of a device, without the row of the others
MOST_STEPS = 2048  # of a device
MOST_PHASES = 200  # of a device
MOST_OOMS = 100  # of a device
MOST_LEAKS = 100  # of a device
MOST_SETTINGS = 200  # of a scope
MOST_SETTING_LENGTH = 4096  # characters of a setting's name, and of its value


Row = dict[str, Any]
"""A row of a table. A column that it lacks is null."""

ArrowTables = dict[str, Any]
"""The rows of a file in each table that has any, as Arrow tables."""


class Field(NamedTuple):
    """A column of a table.

    Attributes:
        kind: "text", "int64", "int32", "float64" or "bool".
        meaning: The description for the documentation.
    """

    kind: str
    meaning: str


class Table(NamedTuple):
    """A table of the dataset.

    Attributes:
        meaning: What one row is, and the most rows that a file has.
        fields: The columns, by name, in their order.
    """

    meaning: str
    fields: dict[str, Field]


_KEY = {
    "run": Field("text", "run: `--run`, or else the folder that the files are in"),
    "step": Field(
        "int64",
        "step of the file: the last step of its window, or else the step in which it was written",
    ),
    "rank": Field("int32", "rank, from the file's metadata, or else from its name"),
    "source": Field("text", "path or the URL of the file"),
}
_DEVICE = {
    **_KEY,
    "device": Field("int32", "device's index in the file"),
    "device_name": Field("text", "device's name, such as `cuda:0`"),
}
_SITE = {
    "site": Field("text", "call site, as `file:line function`"),
    "filename": Field("text", "call site's file"),
    "line": Field("int32", "call site's line"),
    "function": Field("text", "call site's function"),
}
_CALLERS = Field(
    "text",
    "up to three callers in the program that most of the bytes have, innermost first, joined by "
    "` <- `",
)


def _bytes(meaning: str) -> Field:
    return Field("int64", meaning)


TABLES = {
    "files": Table(
        "One row for each file, readable or not.",
        {
            **_KEY,
            "folder": Field("text", "folder that holds the files of the run"),
            "kind": Field(
                "text",
                "`oom` or `step`, as the file says; else `exit`, `step`, `oom` or `demand`, by its "
                "name; empty if the name has none",
            ),
            "first_step": Field("int64", "first step of the file's window"),
            "last_step": Field("int64", "last step of the file's window"),
            "file_phase": Field("text", "phase of a file with the events of one phase"),
            "role": Field("text", "option `role`"),
            "host": Field("text", "host that wrote the file"),
            "pid": Field("int64", "process that wrote the file"),
            "backend": Field("text", "`cuda`, `npu` or `cpu`; an accelerator comes first"),
            "torch": Field("text", "version of torch"),
            "torch_npu": Field("text", "version of torch_npu"),
            "python": Field("text", "version of Python"),
            "pytracer": Field("text", "version of pytracer that wrote the file"),
            "written_ns": Field("int64", "when the file was written, in ns since the epoch"),
            "file_bytes": _bytes("size of the file"),
            "modified_ns": Field("int64", "when the file was modified, in ns since the epoch"),
            "stamp": Field("text", "what tells a rewritten file from the one that was read"),
            "devices": Field("int32", "devices that were used"),
            "events": Field("int64", "events of all devices"),
            "is_oom": Field("bool", "whether the file was written because memory ran out"),
            "error": Field("text", "why the file could not be read; null if it was read"),
        },
    ),
    "peaks": Table(
        "One row for each device of a file that was used.",
        {
            **_DEVICE,
            "is_cpu": Field("bool", "whether the device is the CPU"),
            "events": Field("int64", "events"),
            "first_us": Field("int64", "time of the first event, in µs since the epoch"),
            "last_us": Field("int64", "time of the last event, in µs since the epoch"),
            "contradiction": Field("text", "why the file has no usage over time; else null"),
            "only_phase": Field("text", "phase, if the file has the events of one phase only"),
            "overwritten": Field("int64", "events that the ring overwrote"),
            "unknown_frees": Field("int64", "frees of unknown blocks"),
            "live_dropped": Field("int64", "blocks without room in the live table"),
            "before_bytes": _bytes("bytes requested before the first event and not freed"),
            "exact_from": Field("int64", "events after which all usage is exact"),
            "peak_allocated_bytes": _bytes("most allocated bytes"),
            "peak_most_bytes": _bytes("most bytes that the peak can have been"),
            "is_peak_certain": Field("bool", "whether the peak is certainly the largest"),
            "peak_event": Field("int64", "event after which the peak was reached"),
            "peak_time_us": Field("int64", "time of the peak, in µs since the epoch"),
            "peak_step": Field("int64", "step of the peak"),
            "peak_phase": Field("text", "phase of the peak; empty for no phase"),
            "peak_requested_bytes": _bytes("requested bytes at the peak"),
            "peak_active_bytes": _bytes("active bytes at the peak"),
            "reserved_at_peak_bytes": _bytes("reserved bytes at the peak"),
            "fragmentation_at_peak_bytes": _bytes("reserved minus allocated bytes at the peak"),
            "peak_reserved_bytes": _bytes("most reserved bytes"),
            "end_allocated_bytes": _bytes("allocated bytes at the end of the file"),
            "end_active_bytes": _bytes("active bytes at the end"),
            "end_requested_bytes": _bytes("requested bytes at the end"),
            "end_reserved_bytes": _bytes("reserved bytes at the end"),
            "end_largest_free_bytes": _bytes("largest free block at the end"),
            "end_inactive_split_bytes": _bytes("free bytes in segments in use, at the end"),
            "total_bytes": _bytes("device's memory"),
            "free_bytes": _bytes("device's free memory, from its driver"),
            "process_bytes": _bytes("bytes that the process held on the device"),
            "outside_bytes": _bytes("part of `process_bytes` outside torch's allocator"),
            "others_bytes": _bytes("bytes that other processes held"),
            "allocs": Field("int64", "allocations"),
            "frees": Field("int64", "completed frees"),
            "device_allocs": Field("int64", "times that memory was taken from the device"),
            "device_frees": Field("int64", "times that memory was given back to it"),
            "ooms": Field("int64", "out-of-memory errors"),
            "retries": Field("int64", "how often an allocation emptied the cache and tried again"),
            "leak_verdict": Field("text", "`leak`, `none` or `unknown`, from this file alone"),
            "leak_reason": Field("text", "why the verdict is `none` or `unknown`"),
            "leak_unit": Field("text", "what growth was observed over: `step`, `second`, `slice`"),
            "leak_first": Field("int64", "first observed step"),
            "leak_last": Field("int64", "last observed step"),
            "leak_observed": Field("int64", "observed steps, seconds or slices"),
            "leak_begin_bytes": _bytes("allocated bytes at the end of the first of them"),
            "leak_end_bytes": _bytes("allocated bytes at the end of the last of them"),
            "leak_bytes_per_step": Field("float64", "growth per step of all leaks"),
            "available_bytes": _bytes("from the last steps' peak to the limit of the process"),
            "exhausted_step": Field("int64", "step in which the leaks will have taken it"),
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
            "phase": Field("text", "phase of the allocation; empty for none, null if unknown"),
            "size_bytes": _bytes("bytes that the allocator gave the blocks"),
            "requested_bytes": _bytes("bytes that the program requested"),
            "blocks": Field("int64", "blocks"),
            "groups": Field("int64", "number of groups in this row: 1, or more for the others"),
            "largest_group_bytes": _bytes(
                "bytes of the largest group in this row: a group that has no row is not larger "
                "than that of the others"
            ),
        },
    ),
    "steps": Table(
        f"One row for each step in the trace of a file: at most the last {MOST_STEPS:,}.",
        {
            **_DEVICE,
            "number": Field("int64", "step's number; null before the first known step"),
            "begins_in_trace": Field("bool", "whether the trace has the step's beginning"),
            "begin_bytes": _bytes("allocated bytes before the step"),
            "end_bytes": _bytes("allocated bytes after the step"),
            "peak_bytes": _bytes("most allocated bytes in the step"),
            "fragmentation_bytes": _bytes("reserved minus allocated bytes at that peak"),
            "peak_reserved_bytes": _bytes("most reserved bytes in the step"),
            "inexact": Field("text", "columns that are bounds, joined by commas"),
            "allocations": Field("int64", "allocations"),
            "allocations_bytes": _bytes("sum of their requested bytes"),
            "device_allocs": Field("int64", "times that memory was taken from the device"),
            "device_frees": Field("int64", "times that memory was given back to it"),
        },
    ),
    "phases": Table(
        f"One row for each phase of a file: at most {MOST_PHASES}, those with the largest peaks.",
        {
            **_DEVICE,
            "phase": Field("text", "phase; empty for none, null for older blocks"),
            "at_peak_bytes": _bytes("bytes of its blocks at the device's peak"),
            "peak_bytes": _bytes("most allocated bytes after an event of it"),
            "fragmentation_bytes": _bytes("reserved minus allocated bytes at that peak"),
            "peak_reserved_bytes": _bytes("most reserved bytes after its events"),
            "end_bytes": _bytes("bytes of its blocks at the end of the file"),
            "inexact": Field("text", "columns that are bounds, joined by commas"),
            "allocations": Field("int64", "allocations"),
            "allocations_bytes": _bytes("sum of their requested bytes"),
        },
    ),
    "ooms": Table(
        f"One row for each out-of-memory error in a file: at most the last {MOST_OOMS} of a "
        "device. Verdicts and their explanation are those of the last one.",
        {
            **_DEVICE,
            "number": Field("int32", "its number in the trace of the device, from 1"),
            "is_last": Field("bool", "whether it is the last in the trace of the device"),
            "event": Field("int64", "index of the event"),
            "time_us": Field("int64", "time, in µs since the epoch"),
            "oom_step": Field("int64", "step of the allocation that failed"),
            "phase": Field("text", "phase of the allocation; empty for none"),
            "requested_bytes": _bytes("size of the allocation"),
            "segment_bytes": _bytes("size of the segment that the allocator needed"),
            "device_free_bytes": _bytes("free memory of the device"),
            "available_bytes": _bytes("bytes that the allocator could still take"),
            "limit_bytes": _bytes("most bytes that the allocator may reserve"),
            "free_in_segments_bytes": _bytes("free bytes in the allocator's segments"),
            "elsewhere_bytes": _bytes("device's memory outside the allocator"),
            "allocated_bytes": _bytes("allocated bytes at that time"),
            "reserved_bytes": _bytes("reserved bytes at that time"),
            **_SITE,
            "verdict": Field("text", "first verdict of `pytracer show`"),
            "verdicts": Field("text", "all verdicts, joined by commas"),
            "explanation": Field("text", "figures that decided"),
            "what": Field("text", "what happened, in sentences"),
        },
    ),
    "leaks": Table(
        "One row for each call site whose memory grew in the trace of a file: at most "
        f"{MOST_LEAKS} of a device, leaks first. `pytracer show --leaks` describes the search.",
        {
            **_DEVICE,
            "verdict": Field("text", "`leak`, or `unknown` if it is not certainly a leak"),
            "reason": Field("text", "why the verdict is `unknown`; empty for a leak"),
            "kind": Field("text", "`kept` if blocks stay, `replaced` if larger ones replace them"),
            **_SITE,
            "callers": _CALLERS,
            "phase": Field("text", "phase of all blocks; null if there are several"),
            "bytes_per_step": Field("float64", "growth per step, or per `unit`"),
            "least_bytes_per_step": Field("float64", "lower end of the 95% interval"),
            "most_bytes_per_step": Field("float64", "upper end of the 95% interval"),
            "growths": Field("int64", "steps in which the memory grew"),
            "period_steps": Field("float64", "median number of steps between two growths"),
            "first_step": Field("int64", "step of the first growth in the file"),
            "is_older": Field("bool", "whether the growth began before the first event"),
            "held_bytes": _bytes("bytes of the survivors at the end of the last step"),
            "blocks": Field("int64", "survivors"),
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
            "key": Field("text", "name of the setting"),
            "value": Field("text", "its value; JSON if it is not a text"),
        },
    ),
}
"""Every table, by name."""


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
