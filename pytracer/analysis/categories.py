"""What memory was for at one moment, by category and owner."""

from dataclasses import dataclass

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
