"""The checks of the markers `max_device_memory` and `no_device_leak`."""

import dataclasses
import gc
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytracer.analysis.device_data import DeviceData, device_data
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.holders import sites_at
from pytracer.backends.devices import automatic_backend
from pytracer.errors import PytracerError
from pytracer.reading.reader import load
from pytracer.reading.snapshot import Snapshot, has_events
from pytracer.text import number, parsed_size, size
from pytracer.tracing.tracer import Tracer

RING_ENTRIES = 1_000_000  # the bound of the events of a test's recording; they take at most 48 MB

_TOP = 5


@dataclass(frozen=True)
class Check:
    """A marker of a test: the most bytes that are allowed on a device, as in "cuda:1"."""

    limit_bytes: int
    device: str


class Recording:
    """The recording of one marked test."""

    def __init__(self, item: pytest.Item) -> None:
        """Check the markers' arguments, and begin to record.

        Raises:
            Failed: A marker has a wrong argument, or the device cannot be recorded.
            Skipped: A marker needs an accelerator, and there is none.
        """
        self._item = item
        self._peak = _check(item, max_device_memory)
        self._leak = _check(item, no_device_leak)
        devices = {check.device for check in (self._peak, self._leak) if check is not None}
        gc.collect()
        self._tracer = Tracer(None, device=sorted(devices), trace_alloc_max_entries=RING_ENTRIES)
        self._tracer.start()
        if untraced := self._tracer.stats()["untraced"]:
            self._tracer.stop()
            pytest.fail(f"the memory of the test cannot be recorded: {untraced}", pytrace=False)

    def end_call(self, has_passed: bool) -> None:
        """Check the peak at the end of the test's call.

        Raises:
            Failed: The test allocated more than its limit, or this is unknown.
        """
        text = ""
        if self._peak is not None and has_passed:
            text = self._problem(self._peak, is_leak=False)
        if text or not has_passed or self._leak is None:
            self._leak = None
            self._tracer.stop()
        if text:
            pytest.fail(text, pytrace=False)

    def end_test(self) -> None:
        """Report the memory that is left after the test and its fixtures, as a failure."""
        if self._leak is None:
            return
        gc.collect()
        _clear_workspaces()
        self._tracer.stop()
        item = self._item
        if text := self._problem(self._leak, is_leak=True):
            report = pytest.TestReport(
                nodeid=item.nodeid,
                location=item.location,
                keywords=dict.fromkeys(item.keywords, 1),
                outcome="failed",
                longrepr=text,
                when="teardown",
            )
            item.ihook.pytest_runtest_logreport(report=report)

    def _problem(self, check: Check, *, is_leak: bool) -> str:
        """Return what is wrong on the devices of a marker; "" if nothing is."""
        path = self._file()
        try:
            self._tracer.dump(path)
            snapshot = load(path)
            lines: list[str] = []
            for device, trace in enumerate(snapshot.traces):
                name = snapshot.device_name(device)
                if has_events(trace) and name.split(":")[0] == check.device.split(":")[0]:
                    lines += _exceeded(snapshot, device, check.limit_bytes, is_leak)
        except (OSError, PytracerError) as error:
            return f"the memory of {self._item.name} cannot be checked: {error}"
        if not lines:
            path.unlink(missing_ok=True)
            return ""
        command = f"To look further: pytracer show {shlex.quote(str(path))}"
        return "\n".join([f"{self._item.name} {lines[0]}", *lines[1:], command])

    def _file(self) -> Path:
        """Return the file of the recording: in pytest's cache, where the next run replaces it."""
        name = re.sub(r"[^\w.-]+", "_", self._item.nodeid)[-150:] + ".pickle"
        cache = getattr(self._item.config, "cache", None)
        folder = tempfile.mkdtemp(prefix="pytracer-") if cache is None else cache.mkdir("pytracer")
        path = Path(folder, name)
        return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


Arguments = tuple[str | int, str | None]  # of a marker: the limit, and the device


def max_device_memory(limit: str | int, *, device: str | None = None) -> Arguments:
    """Return the arguments of this marker."""
    return limit, device


def no_device_leak(*, allow: str | int | None = None, device: str | None = None) -> Arguments:
    """Return the arguments of this marker."""
    return allow or 0, device


def _check(item: pytest.Item, arguments_of: Callable[..., Arguments]) -> Check | None:
    """Return a marker of a test; None: the test does not have it."""
    name = arguments_of.__name__
    marker = item.get_closest_marker(name)
    if marker is None:
        return None
    try:
        limit, device = arguments_of(*marker.args, **marker.kwargs)
        limit_bytes = parsed_size(limit) if isinstance(limit, str) else int(limit)
    except (TypeError, ValueError) as error:
        pytest.fail(f"the marker {name} has wrong arguments: {error}", pytrace=False)
    if device is None:
        device = automatic_backend()
        if device == "cpu":
            pytest.skip(
                f'{name} finds no accelerator: give device="cpu" to check the CPU\'s memory'
            )
    return Check(limit_bytes, str(device))


def _tests_own(snapshot: Snapshot, device: int) -> DeviceData | str:
    """Return the device with the history of the test's blocks only; a sentence if unknown."""
    data = device_data(snapshot, device)
    if not data.history.is_known:
        return data.contradiction or ""
    if snapshot.metadata.device(device).overwritten != 0:
        return f"the test had more events than the {RING_ENTRIES:,} that were recorded"
    blocks = data.history.blocks
    history = dataclasses.replace(data.history, blocks=blocks.at(blocks.alloc_event >= 0))
    return dataclasses.replace(data, history=history)


def _exceeded(snapshot: Snapshot, device: int, limit_bytes: int, is_leak: bool) -> Iterator[str]:
    """Yield lines if a test allocated, or left, more than its limit, or if this is unknown."""
    data, name = _tests_own(snapshot, device), snapshot.device_name(device)
    if isinstance(data, str):
        doubt = "left memory" if is_leak else f"allocated more than {size(limit_bytes)}"
        yield f"may have {doubt} on {name}: {data}"
        return
    if is_leak:
        entry, blocks = len(data.trace), data.history.blocks
        amount = int(blocks.size_bytes[blocks.free_requested_event >= entry].sum())
        allowed = f", and {size(limit_bytes)} are allowed" if limit_bytes else ""
        text = (
            f"left {size(amount)} of its allocations on {name}{allowed}. After the test and its "
            "fixtures, most is held by:"
        )
    else:
        added = data.history.usage.allocated_bytes - data.history.usage.allocated_bytes[0]
        entry = int(added.argmax())
        amount = int(added[entry])
        text = (
            f"allocated {size(amount)} on {name}, {size(amount - limit_bytes)} more than its limit "
            f"of {size(limit_bytes)}. At the peak, most was held by:"
        )
    if amount > limit_bytes:
        yield text
        for site in sites_at(data, entry, _TOP):
            where = call_site_text(site.call_site)
            yield f"  {size(site.size_bytes):>9} in {number(site.count, 'block')}: {where}"


def _clear_workspaces() -> None:
    """Release the workspaces that cuBLAS keeps once they were used: they are no test's leak."""
    clear = getattr(sys.modules["torch"]._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
