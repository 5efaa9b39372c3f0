"""Check that the memory of a process stays flat."""

import statistics
from collections.abc import Sequence

from attack import Found

LEAST_SAMPLES = 20  # needed for a conclusion
MIB = 2**20


def check_flat(resident: Sequence[int], tolerance: int, found: Found) -> None:
    """Compare the second quarter of a series of resident memory with the last quarter.

    The first quarter is the warm-up: rings and tables fill, libraries are loaded.

    Args:
        resident: Bytes, one sample for each turn of the work.
        tolerance: Bytes that the median may grow by.
        found: Gets the figures, and the problem if there is one.
    """
    if len(resident) < LEAST_SAMPLES:
        found.skipped.append("flat memory: a run was too short to tell")
        return
    quarter = len(resident) // 4
    early = statistics.median(resident[quarter : 2 * quarter])
    late = statistics.median(resident[-quarter:])
    series = [round(sample / MIB, 1) for sample in resident[:: max(1, quarter // 4)]]
    found.check(
        late - early <= tolerance,
        f"the process grew from {early / MIB:.1f} to {late / MIB:.1f} MiB: {series}",
    )
    found.highest("most resident memory in the second quarter of a run, MiB", early / MIB)
    found.highest("most resident memory in the last quarter, MiB", late / MIB)
    found.highest("most growth in between, MiB", max(late - early, 0) / MIB)
    found.highest("most growth that is allowed, MiB", tolerance / MIB)
