"""What live memory is for now, without a file."""

import pickle
from typing import Any

from pytracer.tracing.device_recording import DeviceRecording

LARGEST = 10
"""How many owners of a category are returned."""

Categories = dict[str, dict[str, Any]]


def live_categories(recording: DeviceRecording) -> dict[str, Categories]:
    """Return what live memory is for now, or was for at `stop()`, by device and category.

    Returns:
        A dict by device, such as "cuda:0", of a dict by category. A category has `size_bytes`, the
        number of `blocks`, and the bytes of its largest `owners` by name.
    """
    content = pickle.loads(recording.view(history=False).to_bytes({}, {}))
    backend = next((name for name in recording.indices if name != "cpu"), "")
    found: dict[str, Categories] = {}
    names = {}
    for device in content["pytracer"]["devices"]:
        if device.get("is_host"):  # no tensor is looked up there
            continue
        name = "cpu" if device["is_cpu"] else f"{backend}:{device['index']}"
        names[device["index"]] = name
        found[name] = {}
    for segment in content["segments"]:
        of_device = found[names[segment["device"]]]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                category = of_device.setdefault(
                    block.get("category", "unknown"), {"size_bytes": 0, "blocks": 0, "owners": {}}
                )
                category["size_bytes"] += block["size"]
                category["blocks"] += 1
                if owner := block.get("owner"):
                    owners = category["owners"]
                    owners[owner] = owners.get(owner, 0) + block["size"]
    for categories in found.values():
        for category in categories.values():
            largest = sorted(category["owners"].items(), key=lambda item: -item[1])[:LARGEST]
            category["owners"] = dict(largest)
    return found
