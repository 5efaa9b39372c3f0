"""What memory was for at one moment: by category, and by module of a model."""

from dataclasses import dataclass

from pytracer.analysis.block_categories import has_categories
from pytracer.analysis.blocks import Blocks, Sum
from pytracer.analysis.life_rules import UNKNOWN, Rule


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
            out-of-memory error, this is the moment of the error.
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
            out-of-memory error, this is the moment of the error.
        at_peak: The modules at `DeviceReport.peak_allocated`; None without a history.
    """

    at_end: list[ModuleUsage]
    at_peak: list[ModuleUsage] | None


def categories(at_end: Blocks, at_peak: Blocks | None) -> Categories | None:
    """Return what the memory of a device was for; None if the file does not have the owners.

    It does not have the owners of pinned host memory.
    """
    snapshot = at_end.data.snapshot
    if not has_categories(snapshot) or at_end.data.device == snapshot.host_device:
        return None
    return Categories(categories_of(at_end), None if at_peak is None else categories_of(at_peak))


def categories_of(held: Blocks) -> list[CategoryUsage]:
    """Return what the blocks were for, the largest category first."""
    owners = owners_of(held)
    is_forward = held.is_in("kind", Rule.FROM_FORWARD.value)
    return [
        CategoryUsage(
            category,
            *found.sizes,
            forward_bytes=held.bytes_where(is_forward) if category == UNKNOWN else 0,
            owners=[
                Owner(one.key[1], *one.sizes)
                for one in owners
                if one.key[0] == category and one.key[1] is not None
            ],
        )
        for found in held.group("category")
        for category in found.key
    ]


def owners_of(held: Blocks) -> list[Sum]:
    """Return the blocks by category and owner; of equal bytes in the order of both.

    The category that has most bytes is the first one. Blocks without an owner come last.
    """
    order = [category for found in held.group("category") for category in found.key]

    def place(found: Sum) -> tuple[int, int, bool, str]:
        category, owner = found.key
        return -found.size_bytes, order.index(category), owner is None, owner or ""

    return sorted(held.group("category", "owner"), key=place)


def modules(at_end: Blocks, at_peak: Blocks | None) -> Modules | None:
    """Return which modules a device's memory belonged to; None if no module was a phase."""
    if not at_end.data.snapshot.metadata.module_phases.names:
        return None
    return Modules(module_usages(at_end), None if at_peak is None else module_usages(at_peak))


def module_usages(held: Blocks) -> list[ModuleUsage]:
    """Return which modules the blocks belonged to, the largest first."""
    return [ModuleUsage(found.key[0], *found.sizes) for found in held.group("module")]
