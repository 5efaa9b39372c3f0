"""`pytracer show --all`: every figure of each device of each file."""

import shutil
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from pytracer.analysis.answer import text_lines
from pytracer.analysis.answer_words import LEAST_SHARE, unsearched_text
from pytracer.analysis.explanation import Explanation
from pytracer.analysis.groups import Held
from pytracer.analysis.leaks.results import answer
from pytracer.analysis.moments import Moment
from pytracer.analysis.report import DeviceReport, Report
from pytracer.commands import show_fragmentation, show_tables
from pytracer.commands.show_answer import Answered, ReadFile
from pytracer.commands.show_held import held_table
from pytracer.commands.table import Part, bold, line
from pytracer.reading.metadata import FileMetadata
from pytracer.text import duration, number, sentence, size, utc_time


def parts(found: Answered, top: int) -> Iterator[Part]:
    """Yield the answer, and every figure; `top` rows of each table."""
    assert found.answer is not None
    yield from map(line, text_lines(found.answer, shutil.get_terminal_size().columns, has_all=True))
    if len(found.results) > 1:
        yield ""
        yield show_tables.overview([each.report for each in found.results if each.report])
    for result in found.results:
        yield from _of_file(result, top)


def _of_file(result: ReadFile, top: int) -> Iterator[Part]:
    report = result.report
    assert report is not None
    yield ""
    yield line(report.path, "bold")
    if written := _written(report):
        yield written
    explained = {one.device: one for one in result.file.devices}
    free_memory = {one.device: one for one in result.fragments}
    for device in report.devices:
        yield ""
        yield from _of_device(report, device, explained[device.device], top)
        if (found := explained[device.device].leaks) is not None:
            from pytracer.commands.show_leaks import of_device as leaks_of_device

            yield ""
            yield bold(answer(found))
            yield from leaks_of_device(found, top, is_only=True)
        if device.device in free_memory:
            yield ""
            yield from show_fragmentation.of_device(free_memory[device.device], top)


def _written(report: Report) -> str:
    metadata = report.metadata
    if not metadata.is_pytracers:
        return ""
    names = ("torch", "torch_npu", "rank", "role", "host", "pid")
    values = ((name, getattr(metadata, name)) for name in names)
    parts = [f"by pytracer {metadata.version}"]
    parts += [f"{name} {value}" for name, value in values if value is not None]
    parts += _window(metadata)
    if metadata.written_ns is not None:
        parts.append(utc_time(metadata.written_ns // 1000))
    oom = metadata.oom
    if oom is not None and oom.requested_bytes is not None:
        left = "" if oom.free_bytes is None else f", {size(oom.free_bytes)} free"
        parts.append(f"out of memory: {size(oom.requested_bytes)} requested{left}")
    return ", ".join(parts)


def _window(metadata: FileMetadata) -> list[str]:
    window = metadata.window
    if window is None:
        return []
    first, last, parts = window.first, window.last, []
    if first is not None and last is not None:
        parts.append(f"step {first}" if first == last else f"steps {first}-{last}")
    if window.phase is not None:
        parts.append(f"phase {window.phase}")
    if window.occurrence is not None:
        parts.append(f"occurrence {window.occurrence}")
    if window.complete is False:
        parts.append("cut short by the end of the program")
    elif parts:
        parts.append("complete")
    return parts


def _of_device(
    report: Report, device: DeviceReport, explanation: Explanation, top: int
) -> Iterator[Part]:
    yield bold(f"{device.name}: {_span(device)}")
    yield show_tables.usage_table(device)
    yield from _lost(report, device, explanation)
    yield from _counts(device)
    yield from _outside(device)
    yield from _not_known(report, explanation)
    for table in _tables(report, device, explanation, top) if top else ():
        yield ""
        yield table
    if device.ooms:
        yield ""
        yield show_tables.ooms_table(device)


def _tables(
    report: Report, device: DeviceReport, explanation: Explanation, top: int
) -> Iterator[Table]:
    first = ("oom",) if device.is_oom_file else ()
    callers = {holder.site.call_site: holder.callers for holder in explanation.holders}
    shown = list[object]()
    for title, by, moments in (
        ("Memory held", "line", (*first, "peak", "end")),
        ("What memory was for", "category", (*first, "end")),
        ("What memory was for", "category", ("peak",)),
        ("Modules that held memory", "module", (*first, "peak", "end")),
    ):
        held = device.held_by(by, *moments)
        if held is not None and held.groups and held.groups not in shown:
            shown.append(held.groups)
            more = callers if by == "line" else _largest(device.held_by("owner", held.moment.name))
            yield held_table(held, top, f"{title} {held.moment}", more)
    if len(device.steps) > 1:
        yield show_tables.steps_table(device, top)
    modules = report.metadata.module_phases.names
    if {phase.phase for phase in device.phases} - {"", None} - modules:
        yield show_tables.phases_table(device, modules, top)


def _largest(held: Held | None) -> dict[Any, str]:
    """Return the largest owner of each category, as it follows the category's name."""
    found: dict[Any, str] = {}
    for group in [] if held is None else held.groups:
        if group.owner is not None:
            text = f"; the largest: {size(group.size_bytes)} {group.owner}"
            found.setdefault(group.category, text)
    return found


def _span(device: DeviceReport) -> str:
    if not device.events:
        return "no events, only the state at the end"
    events = number(device.events, "event")
    if device.is_cpu:  # each allocation or free takes two or three events in the file
        operations = device.counts.allocs + device.counts.frees
        events += f" of {number(operations, 'allocation or free', 'allocations and frees')}"
    if device.first_us is None or device.last_us is None:
        return f"{events}, at unknown times"
    return (
        f"{events} in {duration(device.last_us - device.first_us)} from {utc_time(device.first_us)}"
    )


def _lost(report: Report, device: DeviceReport, explanation: Explanation) -> Iterator[str]:
    """Yield what the file lacks, and what is uncertain because of that."""
    metadata, lost, phase = report.metadata, device.lost, device.only_phase
    if phase is not None:
        yield (
            f"The file has only the events of phase {phase!r}. Threads in other phases are "
            "left out, so usage before the end may be too low or too high (~)."
        )
    if device.contradiction is not None:
        is_end_only = device.peak_allocated is None
        what = "Only the state at the end is known: " if is_end_only else ""
        yield f"{what}{device.contradiction}"
    yield from (f"{sentence(gap).rstrip('.')}." for gap in explanation.gaps)
    if lost.overwritten is None and device.events:
        yield "The file does not say whether the ring overwrote earlier events."
    if lost.before_bytes:
        amount = ("" if phase is None else "~ ") + size(lost.before_bytes)
        yield f"{amount} requested earlier were still held at the first event."
    yield from _uncertain(device)
    for what, count in (
        ("Blocks that did not fit into the table of live blocks", lost.live_dropped),
        ("Frees of unknown blocks", lost.unknown_frees),
        ("Pools and labels that did not fit into their table", lost.labels_dropped),
        ("Events without a stack, because the stack table was full", metadata.stacks.dropped),
        ("Stacks that stack_depth shortened", metadata.stacks.truncated),
        ("Phases that did not fit into their table", metadata.phases.names_dropped),
    ):
        if count:
            yield f"{what}: {count:,}."
    if metadata.phases.complete is False:
        yield "The times of the first phases are unknown: the full table dropped the oldest."


def _uncertain(device: DeviceReport) -> Iterator[str]:
    """Yield which usage has bounds only, and whether the peak has."""
    exact_from, peak = device.lost.exact_from, device.peak_allocated
    if exact_from and peak is not None and device.only_phase is None:
        bound = f"at least {size(peak.allocated_bytes)}"
        yield (
            f"Up to event {exact_from - 1:,}, the allocated sizes of some blocks are unknown "
            "(most of them are older than the file). Numbers that depend on these sizes are "
            "bounds (≥, ≤); requested and reserved bytes are exact. The peak is "
            f"{'exact' if device.is_peak_certain else bound}."
        )


def _counts(device: DeviceReport) -> Iterator[str]:
    counts = device.counts
    if device.events:
        parts = [number(counts.allocs, "allocation"), number(counts.frees, "free")]
        if not device.is_cpu:
            parts.append(number(counts.device_allocs, "device allocation"))
            parts.append(number(counts.device_frees, "device free"))
            parts.append(f"{counts.ooms:,} out of memory")
            parts.append(number(counts.retries or 0, "retry", "retries"))
        yield ", ".join(parts) + "."


def _outside(device: DeviceReport) -> Iterator[str]:
    outside = device.outside
    if outside is None:
        return
    if outside.outside_bytes is not None:
        others = outside.others_bytes
        line = (
            f"This process holds {size(outside.outside_bytes)} outside the allocator; other "
            f"processes hold {'an unknown amount' if others is None else size(others)}."
        )
    elif outside.elsewhere_bytes is not None:
        line = (
            f"{size(outside.elsewhere_bytes)} are held outside this process's allocator: by other "
            "processes, and by this process's context and libraries. The share of each is unknown, "
            "because the driver does not report what the process holds."
        )
    else:
        line = "The memory outside the allocator is unknown."
    if outside.free_bytes is not None and outside.total_bytes is not None:
        line += f" {size(outside.free_bytes)} of {size(outside.total_bytes)} are free."
    yield line


def _not_known(report: Report, explanation: Explanation) -> Iterator[str]:
    """Yield what memory is of no known category, and why."""
    if not explanation.categories:
        return
    moment = Moment(explanation.held_at, None, None)
    for usage in explanation.categories:
        if usage.forward_bytes >= LEAST_SHARE * explanation.held_bytes and usage.forward_bytes:
            yield (
                f"{size(usage.forward_bytes)} of the unknown blocks {moment} "
                "were allocated by modules in the forward pass: activations, outputs, temporary "
                "tensors, or memory that modules keep. Only a later free would show which."
            )
    tensors = report.metadata.tensors
    if gradients := tensors.unread_gradients:
        yield (
            f"The gradients of {number(gradients, 'parameter')} are unknown: torch lets only "
            "the training thread read them, and another thread wrote the file."
        )
    if unread := tensors.unread:
        yield f"{number(unread, 'owner')} could not be read, so their blocks are unknown."
    if unsearched := tensors.unsearched:
        yield f"{sentence(unsearched_text(unsearched))}."
    if tensors.all_modules_found is False:
        yield (
            "Some modules made before the recording began were not found: their blocks may be "
            "unknown. Start the tracer before the model is made."
        )
