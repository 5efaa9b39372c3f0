"""The line on stderr about the file that a tracer has written at its end."""

import contextlib
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from pytracer import ACTIONS, _core, log, text
from pytracer.tracing.device_recording import DeviceRecording
from pytracer.tracing.oom_answer import read_again

MAX_SUMMED_EVENTS = 250_000  # read for the CPU's peak; the copy takes about 100 bytes an event

_reporting_pid: int | None = None


def _sum(recording: DeviceRecording, count: str) -> int:
    return sum(device[count] for device in recording.session.stats()["devices"])


def report_file(
    path: Path,
    recording: DeviceRecording,
    view: _core.View | None,
    *,
    is_cleared: bool,
    may_leak: bool,
) -> None:
    """Print to stderr which snapshot at the end was written; once in a process. Never raises.

    The line also comes after an exception in the `with` body, and when the process exits with an
    error. `view` is what the file has; None: unknown. `is_cleared`: events were dropped. With
    `may_leak`, the line says whether the file has a leak.
    """
    global _reporting_pid
    if _reporting_pid == os.getpid() or sys.stderr is None:
        return
    _reporting_pid = os.getpid()
    with contextlib.suppress(Exception):
        events = _events(recording, view)
        if overwritten := _sum(recording, "overwritten"):
            events += f" ({overwritten:,} older ones were overwritten)"
        shown = path
        with contextlib.suppress(ValueError, OSError):
            shown = path.relative_to(Path.cwd())
        line = f"{text.END_LINE}{text.printable(str(shown))}: {events}"
        with contextlib.suppress(Exception):  # a peak that cannot be read is left out
            used = () if view is None else view.used_devices
            if peak := _accelerator_peak(recording, used) or _cpu_peak(recording, is_cleared):
                line += f", {peak}"
        if may_leak:
            with contextlib.suppress(Exception):  # `on_snapshot` has moved the file
                line += "".join(_leaks(path))
        log.print_line(line)


def _leaks(path: Path) -> Iterator[str]:
    if (snapshot := read_again(path)) is None:
        return
    from pytracer.analysis.answer_words import leak_verdict
    from pytracer.analysis.device_data import device_data
    from pytracer.analysis.explanation import leaks_of
    from pytracer.analysis.leaks.results import is_named
    from pytracer.reading.snapshot import used_devices

    for device in used_devices(snapshot):
        leaks = leaks_of(device_data(snapshot, device))
        if leaks is not None and leaks.matters:
            told = "what keeps it" if is_named(leaks) else "the line that allocated it"
            yield f"; {leak_verdict(leaks)} ({leaks.device}): `pytracer show` names {told}"


def _events(recording: DeviceRecording, view: _core.View | None) -> str:
    """Return how many events are in the file, or in the ring, if it is not known what the file has.

    Events are counted as `pytracer show` counts them. Those of the CPU are counted as allocations
    and frees, because a file has two or three events for each of them.
    """
    devices = recording.session.stats()["devices"]
    on_cpu = sum(each["held"] for each in devices if each["device"] == _core.CPU_DEVICE)
    counts = []
    if {*recording.indices} != {"cpu"}:
        held = _sum(recording, "held") - on_cpu
        counts = [text.number(held if view is None else view.accelerator_entries, "event")]
    if "cpu" in recording.indices:
        where = " on the CPU" if counts else ""
        counts += [text.number(on_cpu, "allocation or free", "allocations and frees") + where]
    return " and ".join(counts)


def _accelerator_peak(recording: DeviceRecording, used_devices: Collection[int]) -> str | None:
    """Return the highest of torch's own peaks. Devices that are not in use are not initialised."""
    peaks: list[tuple[int, str, int]] = []
    for backend, indices in recording.indices.items():
        module = None if backend == "cpu" else getattr(sys.modules.get("torch"), backend, None)
        if module is not None and module.is_initialized():
            used = [index for index in indices if index in used_devices]
            peaks += [(module.max_memory_allocated(index), backend, index) for index in used]
    if not peaks:
        return None
    most_bytes, backend, index = max(peaks, key=lambda peak: peak[0])
    among = f", the most of {len(peaks)} devices" if len(peaks) > 1 else ""
    function = f"torch.{backend}.max_memory_allocated"
    return f"peak {text.size(most_bytes)} allocated on {backend}:{index}{among} ({function})"


def _cpu_peak(recording: DeviceRecording, is_cleared: bool) -> str | None:
    """Return the peak of the recorded CPU allocations; a lower bound if events are missing.

    None: the CPU is not recorded, or has no events, or there are too many events to read.
    """
    if "cpu" not in recording.indices or _sum(recording, "held") > MAX_SUMMED_EVENTS:
        return None
    devices = recording.session.stats()["devices"]
    (counts,) = (each for each in devices if each["device"] == _core.CPU_DEVICE)
    events = recording.session.events()
    events = events[events["device"] == _core.CPU_DEVICE]
    if not events.size:
        return None
    size_bytes = events["size_bytes"].astype(np.int64)
    is_free = events["action"] == ACTIONS.index("free_completed")
    is_alloc = events["action"] == ACTIONS.index("alloc")
    usage_bytes = np.cumsum(np.where(is_alloc, size_bytes, 0) - np.where(is_free, size_bytes, 0))
    before_bytes = counts["live_block_bytes"] - int(usage_bytes[-1])
    peak_bytes = before_bytes + max(0, int(usage_bytes.max()))
    is_bound = is_cleared or counts["overwritten"] or counts["live_dropped"]
    return f"peak {'at least ' if is_bound else ''}{text.size(peak_bytes)} allocated on the CPU"
