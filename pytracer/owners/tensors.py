"""Where the memory of a tensor is. No device is waited for, and none allocates anything."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

MAX_NESTING = 4  # how deep tensors may be nested in tensors, lists and dicts


def memory_of(torch: Any, tensor: Any, nesting: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the device of a tensor, -1 for the CPU, and the address of its storage.

    There are several for sparse tensors and tensors of tensors.

    Nothing is yielded for a tensor without memory: a fake one, one on the device "meta", a
    parameter that has no shape yet, or an empty tensor. `nesting` tensors are around this one.
    """
    kind = type(tensor)
    flatten = getattr(kind, "__tensor_flatten__", None)
    if flatten is not None:  # DTensor, and quantised tensors such as torchao's
        if nesting < MAX_NESTING:
            for name in flatten(tensor)[0]:
                if isinstance(part := getattr(tensor, name), torch.Tensor):
                    yield from memory_of(torch, part, nesting + 1)
        return
    if tensor.layout is not torch.strided:
        if tensor.layout is torch.sparse_coo:
            yield from memory_of(torch, tensor._indices(), nesting + 1)
            yield from memory_of(torch, tensor._values(), nesting + 1)
        return
    # A tensor that shares its memory until it is written to must not be copied by the question.
    read = getattr(tensor, "const_data_ptr", tensor.data_ptr)
    try:
        address = read()
    except RuntimeError:  # a tensor without storage: fake, functional, batched
        return
    if address and tensor.nbytes:
        yield tensor.get_device(), address - tensor.storage_offset() * tensor.element_size()


def tensors_in(
    torch: Any, value: Any, nesting: int = 0, max_items: int | None = None
) -> Iterator[Any]:
    """Yield the tensors in a value: a tensor, or lists and dicts of tensors.

    `nesting` lists and dicts are around the value. `max_items` items of each are looked at; None:
    all.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif nesting < MAX_NESTING and isinstance(value, list | tuple | dict):
        items = value.values() if isinstance(value, dict) else value
        for item in list(islice(items, max_items)):
            yield from tensors_in(torch, item, nesting + 1, max_items)
