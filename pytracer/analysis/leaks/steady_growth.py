"""Memory that keeps growing in a program without steps, such as a server."""

from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.leaks.one_file import leaks_on_device
from pytracer.analysis.leaks.results import Growth
from pytracer.reading.snapshot import ALLOC

_LEAST_OF_PEAK = 0.5
_LEAST_CHURN = 2  # so many times the growth was allocated: what only loads a model frees little


def steady_growth(data: DeviceData) -> Growth | None:
    """Return the line whose memory grew in nearly all parts of the recording, to half of the peak.

    `data` has a history, and no steps, without which nobody can tell whether it would go on. None:
    there is none, or too little else was allocated and freed meanwhile.
    """
    found = leaks_on_device(data)
    if found.unit == "step" or not found.growths:
        return None
    growth = found.growths[0]
    trace, usage = data.trace, data.history.usage
    allocated = int(trace.size_bytes[trace.action == ALLOC].sum())
    is_steady = growth.growths >= found.observed - 1
    is_steady &= allocated >= _LEAST_CHURN * growth.held_bytes
    is_much = growth.held_bytes >= _LEAST_OF_PEAK * int(usage.allocated_bytes.max())
    return growth if is_steady and is_much else None
