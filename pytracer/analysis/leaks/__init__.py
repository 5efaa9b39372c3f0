"""The search for leaks in the files of a run.

from pytracer.reading import load
from pytracer.analysis.leaks import find_leaks

report = find_leaks(load("snapshot.pickle"))
for device in report.devices:
    print(device.verdict, device.growths)
"""

from pytracer.analysis.leaks.results import DeviceLeaks, Growth, LeakReport, Release
from pytracer.analysis.leaks.several_files import FileLeaks, combine, examine, find_leaks

__all__ = [
    "DeviceLeaks",
    "FileLeaks",
    "Growth",
    "LeakReport",
    "Release",
    "combine",
    "examine",
    "find_leaks",
]
