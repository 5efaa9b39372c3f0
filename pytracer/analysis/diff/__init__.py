"""The differences between two snapshots, or between the snapshots of two runs.

from pytracer.reading import load
from pytracer.analysis.diff import compare_snapshots

difference = compare_snapshots(load("before.pickle"), load("after.pickle"))
for change in difference.devices[0].sites:
    print(change.delta_bytes, change.after)
"""

from pytracer.analysis.diff.compare import (
    compare_directories,
    compare_snapshots,
    compare_summaries,
)
from pytracer.analysis.diff.differences import DeviceDifference, Difference, DirectoryDifference
from pytracer.analysis.diff.summaries import SnapshotSummary, summarise

__all__ = [
    "DeviceDifference",
    "Difference",
    "DirectoryDifference",
    "SnapshotSummary",
    "compare_directories",
    "compare_snapshots",
    "compare_summaries",
    "summarise",
]
