"""The tables of `pytracer show --all` about one device, and the table of held memory."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from pytracer.analysis.answer_words import LEAST_SHARE
from pytracer.analysis.holders import Holder, Site
from pytracer.analysis.report import DeviceReport
from pytracer.analysis.steps_and_phases import Phase, Step
from pytracer.analysis.usage import UsageSample
from pytracer.commands.table import Fitted, add_row, call_chain, call_site, new_table
from pytracer.text import duration, number, printable, size, size_range

SHOWN_OOMS = 3

# Samples have one bound and an uncertainty. The bound of these is the upper one, and the numbers in
# _EXACT have no uncertainty.
_UPPER = {"fragmentation_bytes", "inactive_split_bytes", "largest_free_bytes", "free_bytes"}
_EXACT = {"requested_bytes", "reserved_bytes", "segments"}


def usage_text(device: DeviceReport, source: UsageSample | Step | Phase, name: str) -> str:
    """Return a number of bytes as text.

    Returns:
        The number; a range if only bounds are known; with "~" if even the bounds are unknown; "-"
        if the number is unknown.
    """
    count_bytes: int | None = getattr(source, name)
    if count_bytes is None:
        return "-"
    if _is_guess(device, source, name):
        return f"~ {size(count_bytes)}"
    bound = _second_bound(source, name, count_bytes)
    return size_range(*sorted((count_bytes, bound)))


def _is_guess(device: DeviceReport, source: UsageSample | Step | Phase, name: str) -> bool:
    """Return whether the number lacks what other threads did, and may be too low or too high."""
    is_exact = source.is_exact if isinstance(source, UsageSample) else name not in source.inexact
    return not is_exact and (device.only_phase is not None or device.contradiction is not None)


def _second_bound(source: UsageSample | Step | Phase, name: str, count_bytes: int) -> int:
    """Return the second bound of a number that is a bound; an exact number is its own."""
    if not isinstance(source, UsageSample):
        return source.bounds.get(name, count_bytes)
    if name in _EXACT:
        return count_bytes
    more = source.uncertain_bytes or 0
    return max(count_bytes - more, 0) if name in _UPPER else count_bytes + more


def has_steps(device: DeviceReport) -> bool:
    """Return whether the program counts steps; without steps, everything is in the first one."""
    numbers = {step.step for step in device.steps}
    return len(numbers) > 1 or not numbers <= {None, 0, 1}


def usage_table(device: DeviceReport) -> Table:
    """Make the table of the peaks and the end, one column each."""
    samples: dict[str, UsageSample | None] = {
        "peak allocated": device.peak_allocated,
        "peak reserved": device.peak_reserved,
        "end": device.end,
    }
    if device.is_cpu:
        del samples["peak reserved"]
    shown = {name: sample for name, sample in samples.items() if sample is not None}
    table = new_table("", *shown, text=1)

    def row(name: str, values: list[str]) -> None:
        if any(values):
            add_row(table, name, *values)

    def usage(name: str, key: str) -> None:
        row(name, [usage_text(device, sample, key) for sample in columns])

    columns = list(shown.values())
    row("after event", ["" if column.event is None else f"{column.event:,}" for column in columns])
    row("time", [_since(device, column) for column in columns])
    if has_steps(device):
        row("step", ["" if column.step is None else str(column.step) for column in columns])
    row("phase", [printable(column.phase or "") for column in columns])
    usage("requested", "requested_bytes")
    usage("allocated", "allocated_bytes")
    if device.is_cpu:
        return table
    usage("active", "active_bytes")
    usage("reserved", "reserved_bytes")
    usage("reserved - allocated", "fragmentation_bytes")
    usage("active - requested", "rounding_bytes")
    usage("inactive split", "inactive_split_bytes")
    usage("largest free block", "largest_free_bytes")
    row("Σ free² / (Σ free)²", [_ratio(column.free_concentration) for column in columns])
    row("segments", [_segments(device, column) for column in columns])
    return table


def _segments(device: DeviceReport, sample: UsageSample) -> str:
    return ("~ " if _is_guess(device, sample, "segments") else "") + f"{sample.segments:,}"


def _since(device: DeviceReport, sample: UsageSample) -> str:
    if sample.time_us is None or device.first_us is None:
        return ""
    return "+ " + duration(sample.time_us - device.first_us)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def steps_table(device: DeviceReport, top: int) -> Table:
    """Make the table of the last steps."""
    title = "Steps" if len(device.steps) <= top else f"Steps, the last {top} of {len(device.steps)}"
    device_columns = () if device.is_cpu else ("device\nallocs", "\nfrees")
    table = new_table("step", "peak", "end", "allocs", "requested", *device_columns, title=title)
    for step in device.steps[-top:]:
        counts = (step.device_allocs, step.device_frees)
        add_row(
            table,
            _step_name(step),
            usage_text(device, step, "peak_bytes"),
            usage_text(device, step, "end_bytes"),
            f"{step.allocations:,}",
            size(step.allocations_bytes),
            *(f"{count:,}" for count in counts[: len(device_columns)]),
        )
    return table


def _step_name(step: Step) -> str:
    name = "none" if step.step is None else str(step.step)
    return name if step.begins_in_trace else f"{name} (…)"


def phases_table(device: DeviceReport, modules: Collection[str], top: int) -> Table:
    """Make the table of the phases that hold most at the peak.

    Args:
        device: The device.
        modules: The phases that are calls of modules, which have a table of their own.
        top: How many phases to show.
    """
    shown = [phase for phase in device.phases if phase.phase not in modules]
    is_complete = len(shown) == len(device.phases)
    table = new_table(
        "phase",
        "at the peak",
        "own peak",
        "at the end",
        "allocs",
        "requested",
        title="Phases" if is_complete else "Phases other than calls of modules",
        text=1,
    )
    for phase in shown[:top]:
        add_row(
            table,
            _phase_name(device, phase),
            usage_text(device, phase, "at_peak_bytes"),
            usage_text(device, phase, "peak_bytes"),
            usage_text(device, phase, "end_bytes"),
            f"{phase.allocations:,}",
            size(phase.allocations_bytes),
        )
    return table


def _phase_name(device: DeviceReport, phase: Phase) -> str:
    if phase.phase is None:
        return "(before the trace)" if device.only_phase is None else "(before, or other phases)"
    return printable(phase.phase) or "(none)"


def ooms_table(device: DeviceReport) -> Table:
    """Make the table of the last out-of-memory errors, one column each."""
    count, shown = len(device.ooms), device.ooms[-SHOWN_OOMS:]
    title = "Out of memory" + (f", the last {SHOWN_OOMS} of {count}" if count > SHOWN_OOMS else "")
    table = new_table("", *(f"event {oom.event:,}" for oom in shown), title=title, text=1)

    def sizes(name: str, values: Iterable[int | None]) -> None:
        add_row(table, name, *("unknown" if value is None else size(value) for value in values))

    def usage(name: str, key: str) -> None:
        samples = (oom.sample for oom in shown)
        add_row(
            table,
            name,
            *("unknown" if at is None else usage_text(device, at, key) for at in samples),
        )

    def answers(name: str, values: Iterable[bool | None]) -> None:
        add_row(table, name, *(_ANSWERS[value] for value in values))

    sizes("requested", (oom.requested_bytes for oom in shown))
    free = "free in the system" if device.is_cpu else "free on the device"
    sizes(free, (oom.device_free_bytes for oom in shown))
    if any(oom.available_bytes != oom.device_free_bytes for oom in shown):
        sizes("free within the limit", (oom.available_bytes for oom in shown))
    usage("allocated", "allocated_bytes")
    if not device.is_cpu:
        usage("reserved", "reserved_bytes")
        usage("free in segments", "free_bytes")
        usage("largest free block", "largest_free_bytes")
        sizes("held elsewhere", (oom.elsewhere_bytes for oom in shown))
        answers("fits in one block", (oom.fits_in_largest_block for oom in shown))
        answers("fits if joined", (oom.fits_if_joined for oom in shown))
    if has_steps(device):
        add_row(table, "step", *("-" if oom.step is None else str(oom.step) for oom in shown))
    if any(oom.phase for oom in shown):
        add_row(table, "phase", *(printable(oom.phase) or "-" for oom in shown))
    table.add_row("call site", *(call_site(oom.call_site) for oom in shown))
    return table


_ANSWERS = {True: "yes", False: "no", None: "unknown"}


@dataclass(frozen=True)
class HeldRow:
    """A row of a table of held memory: the bytes, the number of blocks, and what holds them."""

    size_bytes: int
    requested_bytes: int
    count: int
    name: str | Fitted


def held_table(rows: Sequence[HeldRow], title: str, top: int, *, key: str, noun: str) -> Table:
    """Make the table of what holds memory, the largest first.

    Args:
        rows: All rows; their bytes are the whole.
        title: The title; "" for none.
        top: How many rows to show; the others are one row.
        key: The header of the names.
        noun: What a row is, as in "call site".
    """
    whole = sum(row.size_bytes for row in rows)
    is_rounded = any(
        size(row.size_bytes) != size(row.requested_bytes)
        for row in rows
        if row.size_bytes >= LEAST_SHARE * whole
    )
    names = ("bytes", *(("requested",) if is_rounded else ()), "share", "blocks", key)
    table = new_table(*names, title=title or None, text=-1)
    shown = list(rows[:top])
    if others := rows[top:]:
        name = number(len(others), f"other {noun}".rstrip())
        count_bytes, requested, blocks = (
            sum(column)
            for column in zip(
                *((row.size_bytes, row.requested_bytes, row.count) for row in others), strict=True
            )
        )
        shown.append(HeldRow(count_bytes, requested, blocks, f"({name})"))
    for row in shown:
        table.add_row(
            size(row.size_bytes),
            *((size(row.requested_bytes),) if is_rounded else ()),
            f"{row.size_bytes / whole if whole else 0:.0%}",
            f"{row.count:,}",
            Text(row.name) if isinstance(row.name, str) else row.name,
        )
    return table


def sites_table(sites: Sequence[Site], title: str, top: int, holders: Sequence[Holder]) -> Table:
    """Make the table of the largest call sites, with callers of those that `holders` has."""
    callers = {holder.site.call_site: holder.callers for holder in holders}
    rows = [
        HeldRow(
            site.size_bytes,
            site.requested_bytes,
            site.count,
            call_chain(site.call_site, callers.get(site.call_site, [])),
        )
        for site in sites
    ]
    return held_table(rows, title, top, key="call site ← callers", noun="call site")
