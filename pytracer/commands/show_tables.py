"""The tables of `pytracer show --all` about one device, and the table of held memory."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from rich.table import Table

from pytracer.analysis.answer_words import LEAST_SHARE
from pytracer.analysis.categories import CategoryUsage, ModuleUsage
from pytracer.analysis.holders import Holder, Site
from pytracer.analysis.ooms import OutOfMemory
from pytracer.analysis.report import DeviceReport
from pytracer.analysis.steps_and_phases import Phase, Step
from pytracer.analysis.usage import UsageSample
from pytracer.commands.table import Columns, Fitted, add_row, call_chain, make_table, new_table
from pytracer.text import duration, number, printable, size, size_range

SHOWN_OOMS = 3

AMOUNTS = {
    "requested_bytes": "requested",
    "allocated_bytes": "allocated",
    "active_bytes": "active",
    "reserved_bytes": "reserved",
    "fragmentation_bytes": "reserved - allocated",
    "rounding_bytes": "active - requested",
    "inactive_split_bytes": "inactive split",
    "largest_free_bytes": "largest free block",
}
"""The names of the amounts of memory at a moment."""

AMOUNTS_OF_CPU = ("requested_bytes", "allocated_bytes")

OF_BLOCKS = ("requested_bytes", "allocated_bytes", "active_bytes")
"""The amounts that blocks alone have, without the segments that they are in."""

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
    if count_bytes is None or (_is_sum(device, source) and name not in OF_BLOCKS):
        return "-"
    if _is_guess(device, source, name):
        return f"~ {size(count_bytes)}"
    bound = _second_bound(source, name, count_bytes)
    return size_range(*sorted((count_bytes, bound)))


def _is_sum(device: DeviceReport, source: UsageSample | Step | Phase) -> bool:
    """Return whether the sample is of the sum of the trace alone, which has no segments."""
    return device.contradiction is not None and source is device.peak_allocated


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
    columns = {name: sample for name, sample in samples.items() if sample is not None}
    table = new_table(["", *columns], text=0)

    def row(name: str, text: Callable[[UsageSample], str]) -> None:
        cells = [text(sample) for sample in columns.values()]
        if any(cells):
            add_row(table, name, *cells)

    row("after event", lambda sample: "" if sample.event is None else f"{sample.event:,}")
    row("time", lambda sample: _since(device, sample))
    if has_steps(device):
        row("step", lambda sample: "" if sample.step is None else str(sample.step))
    row("phase", lambda sample: printable(sample.phase or ""))
    for key, name in AMOUNTS.items():
        if not device.is_cpu or key in AMOUNTS_OF_CPU:
            row(name, partial(usage_text, device, name=key))
    if not device.is_cpu:
        row("Σ free² / (Σ free)²", lambda sample: _ratio(sample.free_concentration))
        row("segments", lambda sample: _segments(device, sample))
    return table


def _segments(device: DeviceReport, sample: UsageSample) -> str:
    if _is_sum(device, sample):
        return "-"
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
    columns: dict[str, str | Callable[[Step], str]] = {
        "step": _step_name,
        "peak": partial(usage_text, device, name="peak_bytes"),
        "end": partial(usage_text, device, name="end_bytes"),
        "allocs": "allocations",
        "requested": "allocations_bytes",
    }
    if not device.is_cpu:
        columns |= {"device\nallocs": "device_allocs", "\nfrees": "device_frees"}
    return make_table(device.steps[-top:], columns, title=title)


def _step_name(step: Step) -> str:
    name = "none" if step.step is None else str(step.step)
    return name if step.begins_in_trace else f"{name} (…)"


def phases_table(device: DeviceReport, modules: Collection[str], top: int) -> Table:
    """Make the table of the phases that hold most at the peak, without calls of `modules`."""
    shown = [phase for phase in device.phases if phase.phase not in modules]
    is_complete = len(shown) == len(device.phases)
    columns: Columns = {
        "phase": partial(_phase_name, device),
        "at the peak": partial(usage_text, device, name="at_peak_bytes"),
        "own peak": partial(usage_text, device, name="peak_bytes"),
        "at the end": partial(usage_text, device, name="end_bytes"),
        "allocs": "allocations",
        "requested": "allocations_bytes",
    }
    title = "Phases" if is_complete else "Phases other than calls of modules"
    return make_table(shown[:top], columns, title=title, text=0)


def _phase_name(device: DeviceReport, phase: Phase) -> str:
    if phase.phase is None:
        return "(before the trace)" if device.only_phase is None else "(before, or other phases)"
    return printable(phase.phase) or "(none)"


def ooms_table(device: DeviceReport) -> Table:
    """Make the table of the last out-of-memory errors, one column each."""
    count, shown = len(device.ooms), device.ooms[-SHOWN_OOMS:]
    title = "Out of memory" + (f", the last {SHOWN_OOMS} of {count}" if count > SHOWN_OOMS else "")
    table = new_table(["", *(f"event {oom.event:,}" for oom in shown)], title=title, text=0)

    def row(name: str, text: Callable[[OutOfMemory], str | Fitted]) -> None:
        add_row(table, name, *map(text, shown))

    def usage(name: str, key: str) -> None:
        row(
            name,
            lambda oom: "unknown" if oom.sample is None else usage_text(device, oom.sample, key),
        )

    row("requested", lambda oom: _size(oom.requested_bytes))
    free = "free in the system" if device.is_cpu else "free on the device"
    row(free, lambda oom: _size(oom.device_free_bytes))
    if any(oom.available_bytes != oom.device_free_bytes for oom in shown):
        row("free within the limit", lambda oom: _size(oom.available_bytes))
    usage("allocated", "allocated_bytes")
    if not device.is_cpu:
        usage("reserved", "reserved_bytes")
        usage("free in segments", "free_bytes")
        usage("largest free block", "largest_free_bytes")
        row("held elsewhere", lambda oom: _size(oom.elsewhere_bytes))
        row("fits in one block", lambda oom: _ANSWERS[oom.fits_in_largest_block])
        row("fits if joined", lambda oom: _ANSWERS[oom.fits_if_joined])
    if has_steps(device):
        row("step", lambda oom: "-" if oom.step is None else str(oom.step))
    if any(oom.phase for oom in shown):
        row("phase", lambda oom: printable(oom.phase) or "-")
    row("call site", lambda oom: call_chain(oom.call_site))
    return table


def _size(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else size(size_bytes)


_ANSWERS = {True: "yes", False: "no", None: "unknown"}


@dataclass(frozen=True)
class HeldRow:
    """A row of a table of held memory: the bytes, the number of blocks, and what holds them."""

    size_bytes: int
    requested_bytes: int
    count: int
    name: str | Fitted

    @classmethod
    def of(cls, holder: Site | CategoryUsage | ModuleUsage, name: str | Fitted) -> "HeldRow":
        """Return the row of what holds memory."""
        return cls(holder.size_bytes, holder.requested_bytes, holder.count, name)


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
    columns: dict[str, str | Callable[[HeldRow], str]] = {"bytes": "size_bytes"}
    if is_rounded:
        columns["requested"] = "requested_bytes"
    columns |= {
        "share": lambda row: f"{row.size_bytes / whole if whole else 0:.0%}",
        "blocks": "count",
        key: "name",
    }
    shown = list(rows[:top])
    if others := rows[top:]:
        size_bytes = sum(row.size_bytes for row in others)
        requested_bytes = sum(row.requested_bytes for row in others)
        name = f"({number(len(others), f'other {noun}'.rstrip())})"
        shown.append(HeldRow(size_bytes, requested_bytes, sum(row.count for row in others), name))
    return make_table(shown, columns, title=title or None, text=-1)


def sites_table(sites: Sequence[Site], title: str, top: int, holders: Sequence[Holder]) -> Table:
    """Make the table of the largest call sites, with callers of those that `holders` has."""
    callers = {holder.site.call_site: holder.callers for holder in holders}
    rows = [
        HeldRow.of(site, call_chain(site.call_site, callers.get(site.call_site, [])))
        for site in sites
    ]
    return held_table(rows, title, top, key="call site ← callers", noun="call site")
