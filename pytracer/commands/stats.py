"""The command `pytracer stats`."""

import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytracer.analysis.advice import Trial
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.explanation_lines import lines
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.report import DeviceReport, Report, stats
from pytracer.commands.parallel import find_files, in_parallel, print_errors
from pytracer.commands.shared_options import (
    TOP,
    device_option,
    files_argument,
    json_options,
    memory_option,
    moment_options,
)
from pytracer.commands.stats_tables import (
    has_steps,
    ooms_table,
    phases_table,
    sites_table,
    steps_table,
    usage_table,
    usage_text,
)
from pytracer.reading.metadata import module_phases, read_number
from pytracer.reading.reader import load
from pytracer.text import duration, number, printable, size, utc_time


@click.command("stats")
@files_argument
@device_option
@click.option(
    "--top",
    type=click.IntRange(min=0),
    help=f"How many call sites, steps and phases to print. JSON has all rows.  [default: {TOP}]",
)
@moment_options
@json_options
@memory_option
@click.pass_context
def stats_command(
    context: click.Context,
    paths: tuple[Path, ...],
    device: int | None,
    top: int | None,
    moment: str | None,
    by: str | None,
    depth: int,
    as_json: bool,
    json_path: str | None,
    memory_bytes: int | None,
) -> None:
    """What took the memory, and when?

    \b
    pytracer stats snapshot.pickle
    pytracer stats outputs/profile --top 3
    pytracer stats snapshot.pickle --at peak --by caller --depth 2

    Prints the peaks of a snapshot, the call sites that held memory at the peak, the steps, the
    phases, and what the recording lacks. For several files, or a directory of them, prints a table
    with a row for each file. With --top, also prints each of these files in full. With --at, --by
    or --depth, prints only who holds memory at one moment, for each file.
    """
    if moment is not None or by is not None or depth:
        from pytracer.commands.stats_groups import held_in_file, show_held

        read_held = partial(held_in_file, device=device, at=moment, by=by or "site", depth=depth)
        shown = TOP if top is None else top
        if not show_held(paths, read_held, shown, as_json, json_path, memory_bytes):
            context.exit(1)
        return
    found, unsearched = find_files(paths)
    has_json = as_json or json_path is not None
    read = partial(_read, device=device, writes_stacks=has_json)
    results = unsearched + in_parallel(
        read, found, "Reading snapshots", memory_bytes, in_processes=True
    )
    reports = [result for result in results if isinstance(result, Report)]
    if has_json:
        from pytracer.commands.json_output import write_results

        write_results({"files": reports}, results, to_stdout=as_json, path=json_path)
    if not as_json:
        if len(results) > 1 and reports:
            from pytracer.commands.stats_several_files import answers, overview

            for answer in answers(reports):
                _console().print(Text(answer, "bold"), soft_wrap=True)
            _console().print(overview(reports))
        for report in reports if len(results) == 1 or top is not None else ():
            _show_file(report, TOP if top is None else top)
    if print_errors(results):
        context.exit(1)


def _read(path: Path, device: int | None, writes_stacks: bool) -> Report:
    snapshot = load(path)
    if writes_stacks:
        from pytracer.export.texts import check_stack_texts

        check_stack_texts(snapshot)
    return stats(snapshot, device, try_settings=_try_settings)


def _try_settings(data: DeviceData) -> list[Trial] | None:
    from pytracer.simulator.trials import try_settings  # not needed without an out-of-memory

    return try_settings(data)


def _console() -> Console:
    return Console(highlight=False)


def _show_file(report: Report, top: int) -> None:
    console = _console()
    for device in report.devices:
        for answer in _answers(report, device):
            console.print(Text(printable(answer), "bold"))
    console.print(Text(printable(report.path)), soft_wrap=True)
    if written := _written(report):
        console.print(Text(written))
    if not report.devices:
        console.print("The file has no events and no segments.")
    for device in report.devices:
        console.print()
        _show_device(console, report, device, top)


def _answers(report: Report, device: DeviceReport) -> Iterator[str]:
    """Yield what a reader wants to know first: the peak, and why memory ran out."""
    if device.explanation is not None:
        yield from lines(device.explanation)
    peak = device.peak_allocated
    sample = device.end if peak is None else peak
    text = f"{usage_text(device, sample, 'allocated_bytes')} allocated"
    if not device.is_cpu and (peak is None) == (device.peak_reserved is None):
        text += f" ({usage_text(device, sample, 'reserved_bytes')} reserved)"
    text += " at the end" if peak is None else " at the peak"
    if peak is not None and has_steps(device) and peak.step is not None:
        text += f", step {peak.step}"
    if peak is not None and peak.phase:
        text += f", phase {peak.phase}"
    if device.sites and device.sites_at_oom is None:
        site, pending = device.sites[0], sample.active_bytes - sample.allocated_bytes
        # A block whose free waits for a stream is held, but is not allocated.
        whole = f" of these and of {size(pending)} that wait for a stream" if pending else ""
        text += f"; the largest part{whole}, {size(site.size_bytes)}, by "
        text += call_site_text(site.call_site)
    yield f"{device.name}: {text}."
    if device.leak:
        yield f"{device.leak} See pytracer leaks {shlex.quote(report.path)}"
    if device.categories is not None and device.explanation is None:
        from pytracer.commands.stats_categories import category_answers

        yield from category_answers(device, device.categories)


def _written(report: Report) -> str:
    """Describe which process wrote the file, when and why."""
    metadata = report.metadata
    if not metadata:
        return ""
    present = {name: value for name, value in metadata.items() if value is not None}
    parts = [f"by pytracer {metadata.get('version')}"]
    parts += [f"{name} {present[name]}" for name in ("torch", "torch_npu") if present.get(name)]
    parts += [f"{name} {present[name]}" for name in ("rank", "role") if name in present]
    parts += [f"{name} {metadata[name]}" for name in ("host", "pid") if name in metadata]
    parts += _window(metadata)
    if (written_ns := read_number(metadata, "written_ns")) is not None:
        parts.append(utc_time(written_ns // 1000))
    oom = metadata.get("oom")
    if isinstance(oom, dict) and (requested := read_number(oom, "requested_bytes")) is not None:
        free = read_number(oom, "free_bytes")
        left = "" if free is None else f", {size(free)} free"
        parts.append(f"out of memory: {size(requested)} requested{left}")
    return printable(", ".join(parts))


def _window(metadata: Mapping[str, Any]) -> list[str]:
    """Name the steps or the phase of a file."""
    window = metadata.get("window")
    if not isinstance(window, dict):
        return []
    first, last, occurrence = (
        read_number(window, name) for name in ("first", "last", "occurrence")
    )
    parts = []
    if first is not None and last is not None:
        parts.append(f"step {first}" if first == last else f"steps {first}-{last}")
    if window.get("phase") is not None:
        parts.append(f"phase {window['phase']}")
    if occurrence is not None:
        parts.append(f"occurrence {occurrence}")
    if window.get("complete") is False:
        parts.append("cut short by the end of the program")
    elif parts:
        parts.append("complete")
    return parts


def _show_device(console: Console, report: Report, device: DeviceReport, top: int) -> None:
    console.print(Text(printable(f"{device.name}: {_span(device)}"), "bold"))
    console.print(usage_table(device))
    for line in [*_lost(report, device), *_counts(device), *_outside(device)]:
        console.print(Text(printable(line)))
    if (device.sites if device.sites_at_oom is None else device.sites_at_oom) and top:
        console.print()
        console.print(_sites(device, top))
    if device.categories is not None and top:
        from pytracer.commands.stats_categories import show_categories

        show_categories(console, report, device)
    if device.modules is not None and top:
        from pytracer.commands.stats_modules import modules_table

        console.print()
        console.print(modules_table(device, device.modules, top))
    if len(device.steps) > 1 and top:
        console.print()
        console.print(steps_table(device, top))
    modules = module_phases(report.metadata)
    known = modules.models | modules.paths if device.modules is not None else frozenset()
    if {phase.phase for phase in device.phases} - {"", None} - known and top:
        console.print()
        console.print(phases_table(device, known, top))
    if device.ooms:
        console.print()
        console.print(ooms_table(device))


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


def _lost(report: Report, device: DeviceReport) -> list[str]:
    """List what the file lacks, and what is uncertain because of that."""
    metadata, lost, phase = report.metadata, device.lost, device.only_phase
    lines = []
    if phase is not None:
        lines.append(
            f"The file has the events of phase {phase!r} only. It lacks what other threads did in "
            "other phases, so usage before the end may be too low or too high (~)."
        )
    if device.contradiction is not None:
        is_end_only = device.peak_allocated is None
        what = "Only the state at the end is known: " if is_end_only else ""
        lines.append(f"{what}{device.contradiction}")
    if lost.overwritten:
        events = number(lost.overwritten, "event")
        lines.append(
            f"The ring overwrote its first {events}{'' if phase is None else ' of all phases'}: "
            "earlier peaks are unknown. A larger trace_alloc_max_entries keeps more events."
        )
    elif lost.overwritten is None and device.events:
        lines.append(
            "Whether the ring overwrote earlier events is unknown, because the file has no count."
        )
    if lost.before_bytes:
        amount = ("" if phase is None else "~ ") + size(lost.before_bytes)
        lines.append(f"{amount} were requested before the first event.")
    lines += _uncertain(device)
    for what, count in (
        ("Blocks that did not fit into the table of live blocks", lost.live_dropped),
        ("Frees of unknown blocks", lost.unknown_frees),
        ("Pools and labels that did not fit into their table", lost.labels_dropped),
        (
            "Events without a stack, because the stack table was full",
            _count(metadata, "stacks", "dropped"),
        ),
        ("Stacks that stack_depth shortened", _count(metadata, "stacks", "truncated")),
        ("Phases that did not fit into their table", _count(metadata, "phases", "names_dropped")),
    ):
        if count:
            lines.append(f"{what}: {count:,}.")
    phases = metadata.get("phases")
    if isinstance(phases, dict) and phases.get("complete") is False:
        lines.append("The times of the first phases are unknown, because their table was full.")
    if metadata.get("untraced"):
        lines.append(f"Not recorded: {metadata['untraced']}")
    if metadata.get("waiting") is True:
        lines.append("No events were recorded, because the step was not selected.")
    return lines


def _uncertain(device: DeviceReport) -> list[str]:
    """Explain which usage is a range, and the bounds of the peak."""
    exact_from, peak, most = device.lost.exact_from, device.peak_allocated, device.peak_most_bytes
    if not exact_from or peak is None or most is None:
        return []
    line = (
        f"Up to event {exact_from - 1:,}, the exact sizes of some blocks are unknown, most of them "
        "older than the file. Numbers that depend on these sizes are ranges; requested and "
        "reserved bytes are exact."
    )
    if device.is_peak_certain:
        return [f"{line} The peak is exact."]
    return [f"{line} The peak is between {size(peak.allocated_bytes)} and {size(most)}."]


def _count(metadata: dict[str, object], part: str, name: str) -> int:
    counts = metadata.get(part)
    return read_number(counts, name) or 0 if isinstance(counts, dict) else 0


def _counts(device: DeviceReport) -> list[str]:
    counts = device.counts
    if not device.events:
        return []
    parts = [number(counts.allocs, "allocation"), number(counts.frees, "free")]
    if not device.is_cpu:
        parts.append(number(counts.device_allocs, "device allocation"))
        parts.append(number(counts.device_frees, "device free"))
        parts.append(f"{counts.ooms:,} out of memory")
        parts.append(number(counts.retries or 0, "retry", "retries"))
    return [", ".join(parts) + "."]


def _outside(device: DeviceReport) -> list[str]:
    outside = device.outside
    if outside is None:
        return []
    lines = []
    if outside.outside_bytes is not None:
        others = outside.others_bytes
        lines.append(
            f"This process holds {size(outside.outside_bytes)} outside the allocator; other "
            f"processes hold {'an unknown amount' if others is None else size(others)}."
        )
    elif outside.elsewhere_bytes is not None:
        lines.append(
            f"{size(outside.elsewhere_bytes)} are held outside this process's allocator: by other "
            "processes, and by this process's context and libraries. The share of each is unknown, "
            "because the driver does not report what the process holds."
        )
    else:
        lines.append("How much memory is held outside the allocator is unknown.")
    if outside.free_bytes is not None and outside.total_bytes is not None:
        lines.append(f"{size(outside.free_bytes)} of {size(outside.total_bytes)} are free.")
    return [" ".join(lines)]


def _sites(device: DeviceReport, top: int) -> Table:
    if device.sites_at_oom is not None:
        return sites_table(device.sites_at_oom, "Memory held at the out-of-memory", top)
    at = "peak" if device.peak_allocated is not None else "end"
    return sites_table(device.sites, f"Memory held at the {at}", top)
