"""The peaks of a program at other sizes of its data, from small recordings, by simulation.

    import pytracer

    found = pytracer.fit("2.pickle@batch=2", "4.pickle@batch=4", at={"batch": 16})
    print(found)

Nothing here needs torch or a device.
"""

from pytracer.fitting.fit import fit
from pytracer.fitting.results import Fit

__all__ = ["Fit", "fit"]
