"""The metadata of a file. The file is not trusted: any value may have any type."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from pytracer.reading.snapshot import NO_TIME, Snapshot


def device_metadata(snapshot: Snapshot, device: int) -> Mapping[str, Any]:
    """Return the metadata of a device; {} if there is none, as in files of other recorders."""
    devices = snapshot.metadata.get("devices")
    for entry in devices if isinstance(devices, list | tuple) else ():
        if isinstance(entry, dict) and entry.get("index") == device:
            return entry
    return {}


def backend(snapshot: Snapshot, device: int) -> str:
    """Return the backend of a device: "cuda", "npu", "cpu" or "host"; "" if unknown.

    "host" is torch's pinned host memory.
    """
    if device == snapshot.host_device:
        return "host"
    if device_metadata(snapshot, device).get("is_cpu"):
        return "cpu"
    backends = snapshot.metadata.get("backends")
    accelerators = (
        [name for name in backends if name != "cpu"] if isinstance(backends, list) else []
    )
    return str(accelerators[0]) if accelerators else ""


def device_name(snapshot: Snapshot, device: int) -> str:
    """Return the name of a device, as in "cuda:1", "cpu", "host"; "device 1" if unknown."""
    kind = backend(snapshot, device)
    if kind in ("cpu", "host"):
        return kind
    return f"{kind}:{device}" if kind else f"device {device}"


def only_phase(snapshot: Snapshot) -> str | None:
    """Return the phase of a file with the events of one phase (`discrete`), as "outer/inner"."""
    window = snapshot.metadata.get("window")
    return read_text(window, "phase") if isinstance(window, dict) else None


def torch_folders(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the folders of torch's packages that a file's metadata names."""
    folders = metadata.get("torch_folders")
    found = folders if isinstance(folders, list | tuple) else ()
    return tuple(folder for folder in found if isinstance(folder, str) and folder)


def source_lines(metadata: Mapping[str, Any]) -> dict[tuple[str, int], str]:
    """Return the source of lines that a file's metadata has, by file and line."""
    by_file = metadata.get("source_lines")
    return {
        (filename, pair[0]): pair[1]
        for filename, pairs in (by_file.items() if isinstance(by_file, dict) else ())
        if isinstance(filename, str) and isinstance(pairs, list | tuple)
        for pair in pairs
        if isinstance(pair, list | tuple) and len(pair) == 2
        if is_count(pair[0]) and isinstance(pair[1], str)
    }


class ModulePhases(NamedTuple):
    """The names of the phases that are calls of modules.

    Attributes:
        models: The names of the models themselves: their classes.
        paths: The paths of their submodules.
        owners: The phases by the paths that names of tensors have; None if the file lacks them.
    """

    models: frozenset[str]
    paths: frozenset[str]
    owners: Mapping[str, str] | None


def module_phases(metadata: Mapping[str, Any]) -> ModulePhases:
    """Return the names of the phases that `pytracer.annotate_modules` marked; else empty sets.

    Args:
        metadata: The file's metadata.
    """
    found = metadata.get("module_phases")
    found = found if isinstance(found, dict) else {}
    models, paths = (
        frozenset(name for name in names if isinstance(name, str))
        if isinstance(names := found.get(kind), list | tuple)
        else frozenset[str]()
        for kind in ("models", "paths")
    )
    owners = found.get("paths_of_owners")
    if isinstance(owners, dict):
        texts = ((path, name) for path, name in owners.items() if isinstance(path, str))
        owners = {path: name for path, name in texts if name in models | paths}
    return ModulePhases(models, paths, owners if isinstance(owners, dict) else None)


class TensorUse(NamedTuple):
    """What a tensor was used for.

    Attributes:
        event: The index of the first event after the use.
        address: Where the tensor's storage begins.
        role: "argument", "result" or "autograd_grad".
    """

    event: int
    address: int
    role: str


def tensor_uses(snapshot: Snapshot, device: int) -> Iterator[TensorUse]:
    """Yield what tensors on a device were used for, in the order of events."""
    uses = device_metadata(snapshot, device).get("uses")
    for use in uses if isinstance(uses, list | tuple) else ():
        if isinstance(use, list | tuple) and len(use) == 3:
            event, address, role = use
            is_address = type(address) is int and 0 <= address < 2**63
            if is_count(event) and is_address and isinstance(role, str):
                yield TensorUse(event, address, role)


def settings_text(snapshot: Snapshot) -> str | None:
    """Return the allocator's settings in the form of its variable; None if unknown."""
    texts = [snapshot.allocator_settings.get("PYTORCH_CUDA_ALLOC_CONF")]
    by_backend = snapshot.metadata.get("settings")  # for allocators without a read-back
    texts += by_backend.values() if isinstance(by_backend, dict) else ()
    return next((text for text in texts if isinstance(text, str)), None)


def torch_version(snapshot: Snapshot, kind: str) -> str | None:
    """Return the version of torch, or of torch_npu, without its local part; None if unknown.

    Args:
        snapshot: The snapshot.
        kind: The backend: for "npu", the version of torch_npu is returned.
    """
    text = snapshot.metadata.get("torch_npu" if kind == "npu" else "torch")
    found = re.match(r"\d{1,9}\.\d{1,9}\.\d{1,9}", text) if isinstance(text, str) else None
    return None if found is None else found[0]


def read_number(metadata: Mapping[str, Any], name: str) -> int | None:
    """Return an integer of the metadata; None if it is missing, not an integer, or too large."""
    value = metadata.get(name)
    return value if type(value) is int and abs(value) < 2**63 else None


def read_text(metadata: Mapping[str, Any], name: str) -> str | None:
    """Return a text of the metadata; None if it is missing, or not a text."""
    value = metadata.get(name)
    return value if isinstance(value, str) else None


def is_count(value: object) -> bool:
    """Return whether a value is an integer in the range of steps, ranks and pids."""
    return type(value) is int and 0 <= value < 2**31


class Annotation(NamedTuple):
    """An entry of `external_annotations`: a beginning (stage "START") or an end ("END")."""

    time_us: int
    name: str
    stage: str
    device: str


def annotations(snapshot: Snapshot) -> Iterator[Annotation]:
    """Yield the valid annotations of a snapshot."""
    for entry in snapshot.external_annotations:
        if (
            isinstance(entry, dict)
            and type(entry.get("time_us")) is int
            and 0 <= entry["time_us"] < 2**63
            and isinstance(entry.get("name"), str)
            and isinstance(entry.get("stage"), str)
        ):
            yield Annotation(
                entry["time_us"], entry["name"], entry["stage"], str(entry.get("device"))
            )


Boundaries = list[tuple[int, int]]
"""The beginnings of steps in a trace: (step, index of its first event), in the order of events."""

_PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)")


def step_boundaries(snapshot: Snapshot, device: int) -> Boundaries:
    """Return the boundaries of the steps in a trace.

    pytracer's files contain them. In files of other recorders they are the annotations
    `ProfilerStep#N`, which torch's recorder writes while torch.profiler is on and the recorder was
    started with `global_record_annotations=True`.
    """
    events = len(snapshot.traces[device])
    if snapshot.metadata:
        steps = device_metadata(snapshot, device).get("steps")
        boundaries = [
            (pair[0], pair[1])
            for pair in (steps if isinstance(steps, list | tuple) else ())
            if isinstance(pair, list | tuple) and len(pair) == 2 and all(map(is_count, pair))
        ]
    else:
        boundaries = list(_profiler_steps(snapshot, device))
    return sorted(
        ((step, first) for step, first in boundaries if 0 <= first < events),
        key=lambda boundary: boundary[1],
    )


def has_marked_steps(snapshot: Snapshot, boundaries: Boundaries) -> bool:
    """Return whether the program marked steps: a tracer is in step 1 until a step ends."""
    if not boundaries or not snapshot.metadata:
        return bool(boundaries)
    current = read_number(snapshot.metadata, "current_step") or 1
    return current > 1 or any(step > 1 for step, _ in boundaries)


def step_at(boundaries: Boundaries, event: int) -> int | None:
    """Return the step of an event; None if the event is before the first boundary."""
    after = bisect_right(boundaries, event, key=lambda boundary: boundary[1])
    return boundaries[after - 1][0] if after else None


def _profiler_steps(snapshot: Snapshot, device: int) -> Iterator[tuple[int, int]]:
    time_us = snapshot.traces[device].time_us
    if len(time_us) == 0 or time_us.min() == NO_TIME:
        return
    for annotation in annotations(snapshot):
        step = _PROFILER_STEP.fullmatch(annotation.name)
        if step and annotation.stage == "START":
            yield int(step[1][:10]), int(np.searchsorted(time_us, annotation.time_us))
