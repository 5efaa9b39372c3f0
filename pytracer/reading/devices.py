"""Which devices a snapshot has, and what they are called."""

import numpy as np

from pytracer.reading.periods import about_device
from pytracer.reading.snapshot import Snapshot


def devices_of(snapshot: Snapshot) -> list[int]:
    """The indices of the devices that have events or segments."""
    with_events = {index for index, trace in enumerate(snapshot.traces) if len(trace)}
    return sorted(with_events | set(np.unique(snapshot.segments.device).tolist()))


def backend(snapshot: Snapshot, device: int) -> str:
    """What kind a device is of: "cuda", "npu" or "cpu"; "": the file does not tell."""
    if about_device(snapshot, device).get("is_cpu"):
        return "cpu"
    told = snapshot.about.get("backends")
    accelerators = [each for each in told if each != "cpu"] if isinstance(told, list) else []
    return str(accelerators[0]) if accelerators else ""


def device_name(snapshot: Snapshot, device: int) -> str:
    """As in "cuda:1", "cpu" or, if the file does not tell, "device 1"."""
    kind = backend(snapshot, device)
    if kind == "cpu":
        return kind
    return f"{kind}:{device}" if kind else f"device {device}"
