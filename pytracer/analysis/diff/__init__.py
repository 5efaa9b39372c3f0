"""The differences between two snapshots, or between the snapshots of two runs.

from pytracer.reading import load
from pytracer.analysis.diff import compare_snapshots

difference = compare_snapshots(load("before.pickle"), load("after.pickle"))
for change in difference.devices[0].sites:
    print(change.delta_bytes, change.name)
"""

from pytracer.analysis.diff.compare import SummaryPair, compare, compare_snapshots
from pytracer.analysis.diff.differences import DeviceDifference, Difference
from pytracer.analysis.diff.summaries import SnapshotSummary, summarise

__all__ = [
    "DeviceDifference",
    "Difference",
    "SnapshotSummary",
    "SummaryPair",
    "compare",
    "compare_snapshots",
    "summarise",
]
