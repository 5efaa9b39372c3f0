"""Write the peaks of the steps of snapshots as scalars of TensorBoard.

`PYTRACER_ON_SNAPSHOT=pytracer.integrations.tensorboard:add_peaks`
"""

import os
import time
from collections.abc import Iterator
from typing import Any

from pytracer.integrations import packages
from pytracer.integrations.helper_process import send

FOLDER = "PYTRACER_TENSORBOARD_DIR"
DEFAULT_FOLDER = "runs/pytracer"


def add_peaks(path: str) -> None:
    """Write scalars of a snapshot into `PYTRACER_TENSORBOARD_DIR`: a value for `on_snapshot`.

    A helper process reads the snapshot. For each step that the snapshot has completely, the
    scalars are `memory/{device}/peak_allocated_bytes` and `memory/{device}/peak_reserved_bytes`.
    Each rank has a folder of its own.

    Raises:
        MissingPackageError: tensorboard is not installed.
    """
    packages.check("tensorboard", "tensorboard", "tensorboard")
    folder = os.environ.get(FOLDER) or DEFAULT_FOLDER
    send(__name__, path, folder=os.path.abspath(folder))


def work(path: str, folder: str) -> None:
    """Write the scalars of a file now."""
    with packages.needs("tensorboard", "tensorboard"):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from pytracer.analysis import stats
    from pytracer.reading import load

    report = stats(load(path))
    rank = report.metadata.rank
    who = f"pid{report.metadata.pid}" if rank is None else f"rank{rank}"
    writer = EventFileWriter(os.path.join(folder, who))
    try:
        for step, name, value in _scalars(report):
            summary = Summary(value=[Summary.Value(tag=f"memory/{name}", simple_value=value)])
            writer.add_event(Event(step=step, wall_time=time.time(), summary=summary))
    finally:
        writer.close()


def _scalars(report: Any) -> Iterator[tuple[int, str, float]]:
    for device in report.devices:
        for step in device.steps:
            peaks = {"allocated": step.peak_bytes, "reserved": step.peak_reserved_bytes}
            for kind, peak_bytes in peaks.items():
                if step.step and step.begins_in_trace and peak_bytes is not None:
                    yield step.step, f"{device.name}/peak_{kind}_bytes", float(peak_bytes)
