"""The tables that `pytracer fleet collect` writes: their columns, kinds and meanings.

`docs/reference/fleet-tables.md` and `.json` are generated from this module.
"""

from functools import cache
from typing import Any, NamedTuple

from pytracer.export import parquet

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
    meaning: str  # the description for the documentation


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


def _bytes(meaning: str) -> Field:
    return Field("int64", meaning)


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
            "is_cpu": Field("bool", "whether the device is the CPU"),
            "events": Field("int64", "the number of events"),
            "first_us": Field("int64", "the time of the first event, in µs since the epoch"),
            "last_us": Field("int64", "the time of the last event, in µs since the epoch"),
            "contradiction": Field("text", "why the file has no usage over time; else null"),
            "only_phase": Field("text", "the phase, if the file has the events of one phase only"),
            "overwritten": Field("int64", "the number of events that the ring overwrote"),
            "unknown_frees": Field("int64", "the number of frees of unknown blocks"),
            "live_dropped": Field("int64", "the number of blocks without room in the live table"),
            "before_bytes": _bytes("the bytes requested before the first event and not freed"),
            "exact_from": Field("int64", "the number of events after which all usage is exact"),
            "peak_allocated_bytes": _bytes("the largest number of allocated bytes"),
            "peak_most_bytes": _bytes("the most bytes that the peak can have been"),
            "is_peak_certain": Field("bool", "whether the peak is certainly the largest"),
            "peak_event": Field("int64", "the event after which the peak was reached"),
            "peak_time_us": Field("int64", "the time of the peak, in µs since the epoch"),
            "peak_step": Field("int64", "the step of the peak"),
            "peak_phase": Field("text", "the phase of the peak; empty for no phase"),
            "peak_requested_bytes": _bytes("the requested bytes at the peak"),
            "peak_active_bytes": _bytes("the active bytes at the peak"),
            "reserved_at_peak_bytes": _bytes("the reserved bytes at the peak"),
            "fragmentation_at_peak_bytes": _bytes("reserved minus allocated bytes at the peak"),
            "peak_reserved_bytes": _bytes("the largest number of reserved bytes"),
            "end_allocated_bytes": _bytes("the allocated bytes when the file was written"),
            "end_active_bytes": _bytes("the active bytes when the file was written"),
            "end_requested_bytes": _bytes("the requested bytes when the file was written"),
            "end_reserved_bytes": _bytes("the reserved bytes when the file was written"),
            "end_largest_free_bytes": _bytes("the largest free block when the file was written"),
            "end_inactive_split_bytes": _bytes("the free bytes in segments in use, at that time"),
            "total_bytes": _bytes("the device's memory"),
            "free_bytes": _bytes("the device's free memory, from its driver"),
            "process_bytes": _bytes("the bytes that the process held on the device"),
            "outside_bytes": _bytes("the part of `process_bytes` outside torch's allocator"),
            "others_bytes": _bytes("the bytes that other processes held"),
            "allocs": Field("int64", "the number of allocations"),
            "frees": Field("int64", "the number of completed frees"),
            "device_allocs": Field("int64", "how often memory was taken from the device"),
            "device_frees": Field("int64", "how often memory was given back to the device"),
            "ooms": Field("int64", "the number of out-of-memory errors"),
            "retries": Field("int64", "how often an allocation emptied the cache and tried again"),
            "leak_verdict": Field("text", "`leak`, `none` or `unknown`, from this file alone"),
            "leak_reason": Field("text", "why the verdict is `none` or `unknown`"),
            "leak_unit": Field("text", "what growth was observed over: `step`, `second`, `slice`"),
            "leak_first": Field("int64", "the first observed step"),
            "leak_last": Field("int64", "the last observed step"),
            "leak_observed": Field("int64", "the number of observed steps, seconds or slices"),
            "leak_begin_bytes": _bytes("the allocated bytes at the end of the first of them"),
            "leak_end_bytes": _bytes("the allocated bytes at the end of the last of them"),
            "leak_bytes_per_step": Field("float64", "the growth per step of all leaks"),
            "available_bytes": _bytes("from the last steps' peak to the limit of the process"),
            "exhausted_step": Field("int64", "the step in which the leaks will have taken it"),
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
            "begins_in_trace": Field("bool", "whether the trace has the step's beginning"),
            "begin_bytes": _bytes("the allocated bytes before the step"),
            "end_bytes": _bytes("the allocated bytes after the step"),
            "peak_bytes": _bytes("the largest number of allocated bytes in the step"),
            "fragmentation_bytes": _bytes("reserved minus allocated bytes at that peak"),
            "peak_reserved_bytes": _bytes("the largest number of reserved bytes in the step"),
            "inexact": Field("text", "the columns that are bounds, joined by commas"),
            "allocations": Field("int64", "the number of allocations"),
            "allocations_bytes": _bytes("the sum of their requested bytes"),
            "device_allocs": Field("int64", "how often memory was taken from the device"),
            "device_frees": Field("int64", "how often memory was given back to the device"),
        },
    ),
    "phases": Table(
        f"One row for each phase of a file: at most {MOST_PHASES}, those with the largest peaks.",
        {
            **_DEVICE,
            "phase": Field("text", "the phase; empty for none, null for older blocks"),
            "at_peak_bytes": _bytes("the bytes of its blocks at the device's peak"),
            "peak_bytes": _bytes("the largest number of allocated bytes after an event of it"),
            "fragmentation_bytes": _bytes("reserved minus allocated bytes at that peak"),
            "peak_reserved_bytes": _bytes("the largest number of reserved bytes after its events"),
            "end_bytes": _bytes("the bytes of its blocks when the file was written"),
            "inexact": Field("text", "the columns that are bounds, joined by commas"),
            "allocations": Field("int64", "the number of allocations"),
            "allocations_bytes": _bytes("the sum of their requested bytes"),
        },
    ),
    "ooms": Table(
        f"One row for each out-of-memory error in a file: at most the last {MOST_OOMS} of a "
        "device.",
        {
            **_DEVICE,
            "number": Field("int32", "its number in the trace of the device, from 1"),
            "is_last": Field("bool", "whether it is the last in the trace of the device"),
            "event": Field("int64", "the index of the event"),
            "time_us": Field("int64", "the time, in µs since the epoch"),
            "oom_step": Field("int64", "the step of the allocation that failed"),
            "phase": Field("text", "the phase of the allocation; empty for none"),
            "requested_bytes": _bytes("the size of the allocation"),
            "segment_bytes": _bytes("the size of the segment that the allocator needed"),
            "device_free_bytes": _bytes("the free memory of the device"),
            "available_bytes": _bytes("the bytes that the allocator could still take"),
            "limit_bytes": _bytes("the most bytes that the allocator may reserve"),
            "free_in_segments_bytes": _bytes("the free bytes in the allocator's segments"),
            "elsewhere_bytes": _bytes("the device's memory outside the allocator"),
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
            "verdict": Field("text", "`leak`, or `unknown` if it is not certainly a leak"),
            "reason": Field("text", "why the verdict is `unknown`; empty for a leak"),
            "kind": Field("text", "`kept` if blocks stay, `replaced` if larger ones replace them"),
            **_SITE,
            "callers": _CALLERS,
            "phase": Field("text", "the phase of all blocks; null if there are several"),
            "bytes_per_step": Field("float64", "the growth per step, or per `unit`"),
            "least_bytes_per_step": Field("float64", "the lower end of the 95% interval"),
            "most_bytes_per_step": Field("float64", "the upper end of the 95% interval"),
            "growths": Field("int64", "the number of steps in which the memory grew"),
            "period_steps": Field("float64", "the median number of steps between two growths"),
            "first_step": Field("int64", "the step of the first growth in the file"),
            "is_older": Field("bool", "whether the growth began before the first event"),
            "held_bytes": _bytes("the bytes of the survivors at the end of the last step"),
            "blocks": Field("int64", "the number of survivors"),
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
