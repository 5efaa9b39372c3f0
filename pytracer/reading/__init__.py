"""Reading snapshots: everything here works without torch, on any machine the file is taken to."""

from pytracer.reading.reader import load
from pytracer.reading.snapshot import Frame, Snapshot

__all__ = ["Frame", "Snapshot", "load"]
