"""The answers that a tracer gives about its own recording."""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from pytracer.tracing.device_recording import DeviceRecording
from pytracer.tracing.snapshot_writer import SnapshotWriter

if TYPE_CHECKING:
    from pytracer.analysis.explanation import Explanation
    from pytracer.analysis.groups import Held
    from pytracer.page.page import Page
    from pytracer.reading.snapshot import Snapshot

LARGEST = 10  # how many owners of a category are returned
Categories = dict[str, dict[str, Any]]


@dataclass(frozen=True, repr=False)
class LiveReport:
    """The answer of `pytracer show` about the recording. A notebook shows it as text."""

    explanations: "list[Explanation]"  # of each device; those that ran out of memory come first

    def __str__(self) -> str:
        """Return the answer about each device, without commands that read a file."""
        from pytracer.analysis.answer_words import answer_of

        devices = [str(answer_of(one, is_saved=False)) for one in self.explanations]
        return "\n\n".join(devices) or "Nothing was recorded."

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


class LiveAnswers:
    """The methods of `Tracer` that read its recording as `pytracer.analysis` reads a file."""

    _recording: DeviceRecording
    _writer: SnapshotWriter

    def _metadata(self) -> dict[str, Any]:
        raise NotImplementedError

    def _loaded(self) -> "Snapshot":
        from pytracer.reading.reader import load

        return load(self._writer.as_bytes(self._metadata()))

    def report(self) -> LiveReport:
        """Return the answer of `pytracer show` about the recording so far."""
        from pytracer.analysis.explanation import explain
        from pytracer.simulator.trials import try_settings

        return LiveReport(explain(self._loaded(), None, try_settings))

    def view(self, max_events: int = 1_000_000) -> "Page":
        """Return the recording so far as a page, as `pytracer view` would write it.

        A notebook shows the page. `save("report.html")` writes it to a file.

        Args:
            max_events: The most events in the page; the newest are kept.
        """
        from pytracer.errors import PytracerError
        from pytracer.page.open_file import open_file
        from pytracer.page.page import page_of

        if max_events < 1:
            raise PytracerError(f"max_events is {max_events}: give at least 1")
        return page_of(open_file(self._loaded()), max_events, is_saved=False)

    def who_holds(self, by: str = "line", *, at: str = "end", depth: int = 0) -> "list[Held]":
        """Return who holds memory now, or at another moment, for each device.

        Args:
            by: What to group by: "line", "caller", "stack", "category", "owner", "holder",
                "module", "phase", "step", "age", "stream" or "pool".
            at: "end" (now), "peak", "oom", the index of an event, or "+SECONDS" after the first.
            depth: How many callers distinguish groups by "line" and "caller".

        Raises:
            PytracerError: There is no such moment, or `by` is unknown.
        """
        from pytracer.analysis.groups import who_holds

        return who_holds(self._loaded(), at=at, by=by, depth=depth)

    def categories(self) -> dict[str, Categories]:
        """Return what live memory is for now, or was for at `stop()`, by device and category.

        Returns:
            A dict by device, such as "cuda:0", of a dict by category. A category has `size_bytes`,
            the number of `blocks`, and the bytes of its largest `owners` by name.
        """
        from pytracer.analysis.blocks import held_at
        from pytracer.analysis.categories import categories_of
        from pytracer.analysis.device_data import device_data
        from pytracer.reading.reader import load

        snapshot = load(self._recording.view(history=False).to_bytes({}, {}))
        backend = next((name for name in self._recording.indices if name != "cpu"), "")
        found: dict[str, Categories] = {}
        for device, metadata in snapshot.metadata.devices.items():
            if device == snapshot.host_device:  # no tensor is looked up there
                continue
            held = held_at(device_data(snapshot, device), None)
            is_live = held["free_requested_event"] >= 0  # and does not wait for a stream
            name = "cpu" if metadata.is_cpu else f"{backend}:{device}"
            found[name] = {
                each.category: {
                    "size_bytes": each.size_bytes,
                    "blocks": each.count,
                    "owners": {owner.name: owner.size_bytes for owner in each.owners[:LARGEST]},
                }
                for each in categories_of(held.where(is_live))
            }
        return found
