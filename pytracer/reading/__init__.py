"""Reading snapshots: everything here works without torch, on any machine the file is taken to."""

from pytracer.reading.peak import Frame, Peak, Site, peak, sites_at_peak
from pytracer.reading.reader import Snapshot, load

__all__ = ["Frame", "Peak", "Site", "Snapshot", "load", "peak", "sites_at_peak"]
