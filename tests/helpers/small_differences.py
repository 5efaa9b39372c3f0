"""Differences between two small snapshots of one device."""

from synthetic_snapshots import Program

from pytracer.analysis.diff.changes import Change
from pytracer.analysis.diff.compare import compare_snapshots
from pytracer.analysis.diff.differences import DeviceDifference
from pytracer.reading.snapshot import Snapshot

TRAIN, MODEL = "/a/train.py", "/a/src/model.py"


def only_device(before: Snapshot, after: Snapshot) -> DeviceDifference:
    [device] = compare_snapshots(before, after).devices
    return device


def rows(sites: list[Change]) -> list[tuple[str, int, int, str | None]]:
    return [(site.kind, site.before_bytes, site.after_bytes, site.matched_by) for site in sites]


def snapshot_with_blocks(*blocks: tuple[int, tuple[str, str, int]]) -> Snapshot:
    """Return the snapshot of a program that allocates `blocks` and then frees the first one."""
    program = Program()
    kept = [program.alloc(size, frame) for size, frame in blocks]
    program.free(kept[0])
    return program.snapshot()
