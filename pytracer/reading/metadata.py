"""The metadata of a file, typed where the file is loaded.

The file is not trusted: any value may have any type. A value of another type than its attribute is
None, as is one that the file does not have. Only this module reads the dictionary.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

Boundaries = list[tuple[int, int]]
"""The beginnings of steps in a trace: (step, index of its first event), in the order of events."""

# Keys that describe the process or the time, not how the job was run.
_NOT_OPTIONS = frozenset(
    (
        *("pid", "host", "written_ns", "devices", "stacks", "phases", "module_phases", "tensors"),
        *("window", "current_step", "oom", "torch_folders", "source_lines"),
        *("host_memory", "kept_at_steps", "unsearched_at_steps", "killed"),
    )
)


class ModulePhases(NamedTuple):
    """The names of the phases that `pytracer.annotate_modules` marked: calls of modules.

    Attributes:
        models: The names of the models themselves: their classes.
        paths: The paths of their submodules.
        owners: The phases by the paths that names of tensors have; None if the file lacks them.
    """

    models: frozenset[str]
    paths: frozenset[str]
    owners: Mapping[str, str] | None

    @property
    def names(self) -> frozenset[str]:
        """All names; empty if no module was a phase."""
        return self.models | self.paths


class TensorUse(NamedTuple):
    """What a tensor was used for.

    Attributes:
        event: The index of the first event after the use.
        address: Where the tensor's storage begins.
        role: "argument", "result" or "autograd_grad"; "parameter", "buffer" or "optimizer_state",
            noted as the block was freed.
    """

    event: int
    address: int
    role: str


class KeptMemory(NamedTuple):
    """What an object kept at an earlier step.

    Attributes:
        device: The index of the device.
        size_bytes: The bytes of the call site, of which the object kept at least half.
        holder: The object.
        frames: The file, function and line of the call site and of its callers.
    """

    device: int
    size_bytes: int
    holder: str
    frames: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class Statistics:
    """The allocator's own statistics of an accelerator (docs/reference/snapshot-format.md)."""

    peak_reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    device_allocs: int | None = None
    retries: int | None = None
    ooms: int | None = None
    memory_fraction: float | None = None


@dataclass(frozen=True)
class DeviceMetadata:
    """The metadata of a device, with the meanings of docs/reference/snapshot-format.md.

    Attributes:
        steps: The boundaries of the steps, as far as they are valid numbers.
        statistics: None for the CPU and for pinned host memory.
    """

    is_cpu: bool | None = None
    recorded: int | None = None
    overwritten: int | None = None
    unknown_frees: int | None = None
    live_dropped: int | None = None
    labels_dropped: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    process_bytes: int | None = None
    reserved_bytes: int | None = None
    steps: Boundaries = field(default_factory=list)
    statistics: Statistics | None = None
    _uses: object = field(default=(), repr=False)

    @property
    def memory_fraction(self) -> float | None:
        """The share of the device that the process may use; None if unknown."""
        return None if self.statistics is None else self.statistics.memory_fraction

    @cached_property
    def uses(self) -> list[TensorUse]:
        """What tensors on the device were used for, in the order of events."""
        return [*map(TensorUse._make, _rows(self._uses, _count, _address, _text))]


@dataclass(frozen=True)
class Window:
    """The steps or the phase whose events a file has; `complete`: it was not cut short."""

    first: int | None = None
    last: int | None = None
    complete: bool | None = None
    phase: str | None = None
    occurrence: int | None = None


@dataclass(frozen=True)
class OomRecord:
    """The out-of-memory for which a file was written; the device of the CPU is -1.

    `evaluating`: whether all models were in evaluation mode; None without a model.
    """

    device: int | None = None
    requested_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    library_error: str | None = None
    evaluating: bool | None = None


@dataclass(frozen=True)
class Killed:
    """How a process ended that another one wrote the file for; None: unknown.

    Attributes:
        by_oom_killer: Whether the kernel's out-of-memory killer ended a process of its cgroup.
        is_cut: Whether the disk had no space for all that was recorded.
        is_ray_worker: Whether Ray had started the process, which ends most of its workers so.
    """

    by_oom_killer: bool | None = None
    is_cut: bool | None = None
    is_ray_worker: bool | None = None


@dataclass(frozen=True)
class Counts:
    """What a file lacks: the first two of stacks, the next two of phases, the last of tensors."""

    truncated: int | None = None
    dropped: int | None = None
    names_dropped: int | None = None
    complete: bool | None = None
    unread: int | None = None
    unread_gradients: int | None = None
    unsearched: int | None = None
    all_modules_found: bool | None = None


@dataclass(frozen=True)
class FileMetadata:
    """The metadata that pytracer writes, with the meanings of docs/reference/snapshot-format.md.

    Attributes:
        as_written: The dictionary in the file, to be passed on as it is; {} in files of other
            recorders.
        devices: By the index of the device.
        backends: None if the file does not have them.
        settings: The allocators' settings, in the form of their variables.
        killed: None if the process wrote the file itself.
        host_memory: Pairs of a step, and the bytes of host memory that the process had in it.
        kept_at_steps: What objects kept at an earlier step.
        unsearched_at_steps: For how many tensors there was no time then to find what keeps them.
        given: The value of the option `metadata`.
    """

    as_written: dict[str, Any] = field(default_factory=dict)
    version: str | None = None
    torch: str | None = None
    torch_npu: str | None = None
    python: str | None = None
    host: str | None = None
    pid: int | None = None
    rank: int | None = None
    role: str | None = None
    written_ns: int | None = None
    current_step: int | None = None
    step_from: str | None = None
    context: str | None = None
    stack_depth: int | None = None
    forward_stacks: bool | None = None
    untraced: str | None = None
    waiting: bool | None = None
    unsearched_at_steps: int | None = None
    window: Window | None = None
    oom: OomRecord | None = None
    killed: Killed | None = None
    stacks: Counts = Counts()
    phases: Counts = Counts()
    tensors: Counts = Counts()
    devices: Mapping[int, DeviceMetadata] = field(default_factory=dict)
    backends: tuple[str, ...] | None = None
    settings: tuple[str, ...] = ()
    torch_folders: tuple[str, ...] = ()
    host_memory: tuple[tuple[int, int], ...] = ()
    kept_at_steps: tuple[KeptMemory, ...] = ()
    given: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def is_pytracers(self) -> bool:
        """Whether pytracer wrote the file."""
        return bool(self.as_written)

    @property
    def options(self) -> Mapping[str, Any]:
        """How the job was run: versions, options and settings, as they are in the file."""
        return {name: value for name, value in self.as_written.items() if name not in _NOT_OPTIONS}

    @property
    def only_phase(self) -> str | None:
        """The phase of a file with the events of one phase (`discrete`), as "outer/inner"."""
        return None if self.window is None else self.window.phase

    @cached_property
    def module_phases(self) -> ModulePhases:
        """The names of the phases that are calls of modules."""
        found = _dict(self.as_written.get("module_phases"))
        models, paths = (frozenset(_texts(found.get(kind))) for kind in ("models", "paths"))
        owners = found.get("paths_of_owners")
        known = {
            path: name
            for path, name in _dict(owners).items()
            if isinstance(path, str) and isinstance(name, str) and name in models | paths
        }
        return ModulePhases(models, paths, known if isinstance(owners, dict) else None)

    @property
    def source_lines(self) -> dict[tuple[str, int], str]:
        """The source of lines that the file has, by file and line."""
        return {
            (filename, line): source
            for filename, pairs in _dict(self.as_written.get("source_lines")).items()
            for line, source in _rows(pairs, _count, _text)
            if isinstance(filename, str)
        }

    def device(self, index: int) -> DeviceMetadata:
        """Return the metadata of a device; without values if the file has none."""
        return self.devices.get(index, DeviceMetadata())

    def oom_of(self, index: int) -> OomRecord | None:
        """Return the out-of-memory of the file if it is that of a device; else None."""
        own = -1 if self.device(index).is_cpu else index
        return self.oom if self.oom is not None and self.oom.device == own else None

    def torch_version(self, backend: str) -> str | None:
        """Return the version of torch, for "npu" of torch_npu, without its local part."""
        text = self.torch_npu if backend == "npu" else self.torch
        found = re.match(r"\d{1,9}\.\d{1,9}\.\d{1,9}", text or "")
        return None if found is None else found[0]

    def without_devices(self) -> "FileMetadata":
        """Return the metadata without that of devices, which may be long."""
        written = {key: value for key, value in self.as_written.items() if key != "devices"}
        return replace(self, as_written=written, devices={})


def file_metadata(written: dict[str, Any]) -> FileMetadata:
    """Return the typed metadata of a file, from the dictionary in it."""
    backends = written.get("backends")
    return _typed(
        FileMetadata,
        written,
        as_written=written,
        rank=_count(written.get("rank")),
        pid=_count(written.get("pid")),
        window=_optional(Window, written.get("window")),
        oom=_optional(OomRecord, written.get("oom")),
        killed=_optional(Killed, written.get("killed")),
        stacks=_typed(Counts, written.get("stacks")),
        phases=_typed(Counts, written.get("phases")),
        tensors=_typed(Counts, written.get("tensors")),
        devices=_devices(written.get("devices")),
        backends=tuple(_texts(backends)) if isinstance(backends, list) else None,
        settings=tuple(_texts([*_dict(written.get("settings")).values()])),
        host_memory=tuple(_rows(written.get("host_memory"), _count, _number)),
        kept_at_steps=tuple(_kept_memory(written.get("kept_at_steps"))),
        torch_folders=tuple(filter(None, _texts(written.get("torch_folders")))),
        given=_dict(written.get("metadata")),
    )


def _devices(written: object) -> dict[int, DeviceMetadata]:
    found: dict[int, DeviceMetadata] = {}
    for entry in map(_dict, _list(written)):
        index = _count(entry.get("index"))
        if index is not None and index not in found:
            found[index] = _typed(
                DeviceMetadata,
                entry,
                steps=list(_rows(entry.get("steps"), _count, _count)),
                statistics=_optional(Statistics, entry.get("statistics")),
                _uses=entry.get("uses"),
            )
    return found


def _rows(written: object, *readers: Callable[[Any], object]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a list in which each reader accepts its value."""
    for row in map(_list, _list(written)):
        if len(row) == len(readers) and all(
            read(value) is not None for read, value in zip(readers, row, strict=True)
        ):
            yield tuple(row)


def _kept_memory(written: object) -> Iterator[KeptMemory]:
    for device, size_bytes, holder, path in _rows(written, _count, _address, _text, _list):
        frames = [tuple(frame) for frame in map(_list, path)]
        is_valid = all([*map(type, frame)] == [str, str, int] for frame in frames)
        if size_bytes and frames and is_valid:
            yield KeptMemory(device, size_bytes, holder, tuple(frames))


def _typed(kind: Callable[..., T], written: object, **more: Any) -> T:
    """Return a dataclass with `more`, and the values of its other fields from a dictionary."""
    values = _dict(written)
    found = {
        each.name: _READERS[each.type](values.get(each.name))
        for each in fields(kind)  # type: ignore[arg-type]
        if each.name not in more
    }
    return kind(**found, **more)


def _optional(kind: Callable[..., T], written: object) -> T | None:
    return _typed(kind, written) if isinstance(written, dict) else None


def _number(value: object) -> int | None:
    return value if type(value) is int and abs(value) < 2**63 else None


def _count(value: object) -> int | None:
    """Return an integer in the range of steps, ranks and pids; else None."""
    return value if type(value) is int and 0 <= value < 2**31 else None


def _address(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


_READERS: Mapping[Any, Callable[[object], Any]] = {
    int | None: _number,
    float | None: lambda value: value if type(value) is float else None,
    str | None: _text,
    bool | None: lambda value: value if type(value) is bool else None,
}


def _dict(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, list | tuple) else ()


def _texts(value: object) -> Iterator[str]:
    return (text for text in _list(value) if isinstance(text, str))
