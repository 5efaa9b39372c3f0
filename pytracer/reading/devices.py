"""Which devices a snapshot has, and what they are called."""

import numpy as np

from pytracer.reading.about import about_device
from pytracer.reading.snapshot import SNAPSHOT, Snapshot, Trace


def has_events(trace: Trace) -> bool:
    """Whether anything happened: a device that is not used has the markers of snapshots too."""
    return bool(np.any(trace.action != SNAPSHOT))


def devices_of(snapshot: Snapshot) -> list[int]:
    """The indices of the devices that were used: on which anything happened, or is held."""
    used = {index for index, trace in enumerate(snapshot.traces) if has_events(trace)}
    return sorted(used | set(np.unique(snapshot.segments.device).tolist()))


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
