"""What grew all along in a file without steps."""

from functools import reduce

import numpy as np

from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.holder_names import tells_where
from pytracer.analysis.leaks.groups import joined
from pytracer.analysis.leaks.one_file import leaks_on_device, stack_frames, timeline
from pytracer.analysis.leaks.results import Growth
from pytracer.analysis.stack_places import MODULE
from pytracer.reading.snapshot import ALLOC, OOM

_LEAST_CHURN = 2  # so many times the growth was allocated: what only loads a model frees little


def steady_growth(data: DeviceData, *, is_short: bool) -> Growth | None:
    """Return the lines whose memory grew in most parts of the recording, to half of the peak, as
    one.

    Without steps, nobody can tell whether it would go on. None: there is none, the file has steps
    or no history, or the program did nothing else meanwhile.

    Args:
        is_short: Whether memory ran out. Then half of the parts are enough for a program that calls
            a model in them. One that calls none grows in all but one, and serves requests meanwhile
            or fails at a line that grew.
    """
    if data.has_marked_steps or not data.history.is_known:
        return None
    found = leaks_on_device(data)
    least = found.observed // 2 if is_short else found.observed - 1
    steady = [growth for growth in found.growths if growth.growths >= least]
    if found.unit == "step" or not steady:
        return None
    growth, allocated = reduce(joined, steady), data.history.usage.allocated_bytes
    allocs = np.flatnonzero(data.trace.action == ALLOC)
    is_module = data.stack_places.place[data.trace.stack[allocs]] == MODULE
    if not is_short:
        is_busy = data.trace.size_bytes[allocs].sum() >= _LEAST_CHURN * growth.held_bytes
    elif is_module.any():
        passes = allocs[np.flatnonzero(is_module[1:] & ~is_module[:-1])]
        is_busy = len(np.unique(np.searchsorted(timeline(data).edges, passes))) >= least
    else:
        is_served = len(allocs) >= _LEAST_CHURN * growth.blocks
        is_busy = growth.growths >= found.observed - 1 and (is_served or _fails_at(data, steady))
        is_busy = is_busy and allocated[0] == 0 and tells_where(growth.kept_by)
    is_kept = growth.kind == "kept" or not is_short
    return growth if is_busy and is_kept and 2 * growth.held_bytes >= allocated.max() else None


def _fails_at(data: DeviceData, growths: list[Growth]) -> bool:
    """Return whether the failed request was of a line that grew: what loads a model fails later."""
    frames = stack_frames(data.snapshot, data.chains.sites)
    stacks = data.trace.stack[data.trace.action == OOM]
    failed = {frame for stack in stacks[-1:] for frame in frames(int(stack))}
    return any(failed.issuperset(growth.frames) for growth in growths)
