"""What memory was for at one moment: by category, and by module of a model."""

from dataclasses import dataclass

from pytracer.analysis.block_categories import UNKNOWN, has_categories
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.held_memory import HeldMemory, held_memory


@dataclass(frozen=True)
class Owner:
    """The blocks of one owner, such as a parameter.

    Attributes:
        name: The largest tensor in the blocks, as in "layers.3.attn.q_proj.weight", "grad of
            layers.3.attn.q_proj.weight", or "exp_avg of layers.3.attn.q_proj.weight";
            or "cuBLAS workspace".
        size_bytes: The bytes that the allocator gave the blocks.
        requested_bytes: The bytes that the program requested.
        count: The number of blocks.
    """

    name: str
    size_bytes: int
    requested_bytes: int
    count: int


@dataclass(frozen=True)
class CategoryUsage:
    """The active blocks of one category at one moment.

    Attributes:
        category: "parameter", "gradient", "optimizer_state", "buffer", "activation", "temporary",
            "communication", "input", "output" or "workspace"; "mixed" for blocks with tensors of
            several of the first four; "unknown" if no fact decides.
        size_bytes: The bytes that the allocator gave the blocks.
        requested_bytes: The bytes that the program requested.
        count: The number of blocks.
        forward_bytes: In "unknown": the bytes of the blocks that modules allocated in the forward
            pass: activations, outputs, temporary tensors, or memory that modules keep. Else 0.
        owners: The owners of the blocks, the largest first.
    """

    category: str
    size_bytes: int
    requested_bytes: int
    count: int
    forward_bytes: int
    owners: list[Owner]


@dataclass(frozen=True)
class Categories:
    """What a device's memory was for. The categories of a moment add up to its `active_bytes`.

    Attributes:
        at_end: The categories when the file was written, the largest first. In the file of an
            out-of-memory, this is the moment of the out-of-memory.
        at_peak: The categories at `DeviceReport.peak_allocated`; None without a history.
    """

    at_end: list[CategoryUsage]
    at_peak: list[CategoryUsage] | None


@dataclass(frozen=True)
class ModuleUsage:
    """The active blocks of one module at one moment.

    Attributes:
        module: The path of the module, as in "layers.3.attn.q_proj"; None for blocks whose module
            is unknown, or that no module allocated. "backward of PATH" has what the backward pass
            allocated for the module's forward calls. "backward near PATH" has the same where the
            forward call is that of a neighbouring autograd node.
        size_bytes: The bytes that the allocator gave the blocks.
        requested_bytes: The bytes that the program requested.
        count: The number of blocks.
    """

    module: str | None
    size_bytes: int
    requested_bytes: int
    count: int


@dataclass(frozen=True)
class Modules:
    """Which modules a device's memory belonged to. A moment's bytes add up to its `active_bytes`.

    Attributes:
        at_end: The modules when the file was written, the largest first. In the file of an
            out-of-memory, this is the moment of the out-of-memory.
        at_peak: The modules at `DeviceReport.peak_allocated`; None without a history.
    """

    at_end: list[ModuleUsage]
    at_peak: list[ModuleUsage] | None


def categories(data: DeviceData, peak: int | None) -> Categories | None:
    """Return what the memory of a device was for; None if the file does not have the owners.

    It does not have the owners of pinned host memory.

    Args:
        data: The device.
        peak: The entry of the peak in `history.usage`; None without a history.
    """
    is_host = data.device == data.snapshot.host_device
    if is_host or not has_categories(data.snapshot):
        return None
    at_peak = categories_at(data, peak) if data.history.is_replayed else None
    return Categories(categories_at(data, None), at_peak)


def categories_at(data: DeviceData, entry: int | None) -> list[CategoryUsage]:
    """Return what the memory of a device was for at one moment, the largest category first.

    Args:
        data: The device; its file has the owners of blocks.
        entry: An entry of `history.usage`; None: the end.
    """
    return categories_of(held_memory(data, entry))


def categories_of(held: HeldMemory) -> list[CategoryUsage]:
    """Return what the blocks were for, the largest category first."""
    owners: dict[str, list[Owner]] = {}
    for found in held.group("category", "owner"):
        category, owner = found.key
        of_category = owners.setdefault(category, [])
        if owner is not None:
            of_category.append(Owner(owner, found.size_bytes, found.requested_bytes, found.count))
    return [
        CategoryUsage(
            category=category,
            size_bytes=found.size_bytes,
            requested_bytes=found.requested_bytes,
            count=found.count,
            forward_bytes=held.forward_bytes if category == UNKNOWN else 0,
            owners=sorted(owners[category], key=lambda owner: (-owner.size_bytes, owner.name)),
        )
        for found in held.group("category")
        for category in found.key
    ]


def modules(data: DeviceData, peak: int | None) -> Modules | None:
    """Return which modules a device's memory belonged to; None if no module was a phase.

    Args:
        data: The device.
        peak: The entry of the peak in `history.usage`; None without a history.
    """
    if not data.snapshot.metadata.module_phases.names:
        return None
    at_peak = module_usages(held_memory(data, peak)) if data.history.is_replayed else None
    return Modules(module_usages(held_memory(data, None)), at_peak)


def module_usages(held: HeldMemory) -> list[ModuleUsage]:
    """Return which modules the blocks belonged to, the largest first."""
    return [
        ModuleUsage(found.key[0], found.size_bytes, found.requested_bytes, found.count)
        for found in held.group("module")
    ]
