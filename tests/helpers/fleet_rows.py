"""Datasets of `pytracer fleet collect` with rows that a test writes itself."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from pytracer.fleet.dataset import new_dataset
from pytracer.fleet.schema import arrow_tables

MIB = 2**20


class Fleet:
    """A run whose files a test describes.

    Attributes:
        rows: The rows by table.
    """

    def __init__(self, run: str = "run7") -> None:
        self.run = run
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def add(
        self, rank: int | None, step: int | None = None, peak: int | None = None, **changes: Any
    ) -> dict[str, Any]:
        """Add a file of a rank, with the peak of its device.

        Args:
            rank, step: The rank and the step.
            peak: The peak in MiB; None: the file cannot be read.
            changes: Other columns of `files` and of `devices`, and `sites`: MiB by call site, at
                the peak and at the end.
        """
        sites = changes.pop("sites", {})
        kind = changes.pop("kind", "exit" if step is None else "step")
        source = f"/{self.run}/{kind}{step}/rank{rank}{changes.get('role') or ''}"
        key = {"run": self.run, "file_step": step, "rank": rank}
        key["source"] = changes.pop("source", source)
        file = key | {"folder": f"/{self.run}", "kind": kind, "first_step": step}
        file |= {"last_step": step, "host": "n0", "pid": rank, "written_ns": (step or 0) * 10**9}
        file |= {"error": f"{key['source']} is cut short" if peak is None else None}
        self.rows["files"].append(file | changes)
        device = key | {"device": 0, "device_name": "cuda:0", "is_cpu": False}
        if peak is not None:
            amounts = {"peak_allocated_bytes": peak * MIB, "is_peak_certain": True}
            self.rows["devices"].append(device | amounts | {"leak_verdict": "unknown"} | changes)
        for site, amount in sites.items():
            for moment in ("peak", "end"):
                row = {"moment": moment, "by": "line", "name": site, "size_bytes": amount * MIB}
                self.rows["held"].append(device | row)
        return device

    def write(self, path: Path, *others: "Fleet") -> Path:
        """Write the dataset, also with other runs."""
        with new_dataset(path) as write:
            write(arrow_tables(fleet.rows) for fleet in (self, *others))
        return path


def add_oom(fleet: Fleet, rank: int, time_us: int, **changes: object) -> None:
    device = fleet.add(rank, 3, 2000, kind="oom", is_oom=True, **changes)
    row = {"time_us": time_us, "event": 5, "step": 3, "requested_bytes": MIB}
    row |= {"verdict": "too large", "explanation": "1 MiB are too much.", "call_site": "/a.py:1 f"}
    fleet.rows["ooms"].append(device | row)
