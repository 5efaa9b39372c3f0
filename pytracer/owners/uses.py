"""What the program uses tensors for: arguments and results of models, gradients that it asked for.

The caller has these tensors meanwhile, so nothing lives longer.

The recorder notes the use with the number of the next event, so that a file's reader finds the
block that the tensor was in, also if the program frees it before the file is written.
"""

import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any

from pytracer import _core
from pytracer.log import harmless

MAX_NESTING = 4  # how deep tensors may be nested in tensors, lists and dicts


def memory_of(torch: Any, tensor: Any, nesting: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the device of a tensor, -1 for the CPU, and the address of its storage.

    There are several for sparse tensors and tensors of tensors. No device is waited for.

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


ARGUMENT, RESULT, GRADIENT = range(3)  # csrc/record/event.h
MAX_TENSORS = 256  # how many tensors of one call are noted at most
MAX_ITEMS = 1024  # how many items of one list, tuple or dict in the arguments are looked at
_ALONE = 2  # how often torch counts a tensor's memory: for the tensor, and for the object that asks
_CHECKPOINT = "/torch/utils/checkpoint.py"


def is_outermost(caller: FrameType) -> bool:
    """Return whether a call of a module is in no call of another one.

    `caller` is the frame of torch's function that calls the module's hooks.
    """
    file, frame = caller.f_code.co_filename, caller.f_back
    while frame is not None and frame.f_code.co_filename == file:  # of the same call
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename != file:
        if frame.f_code.co_filename.endswith(_CHECKPOINT):
            return False  # a layer, which a thread of autograd's may compute again
        frame = frame.f_back
    return frame is None


def note_arguments(module: Any, *arguments: Any) -> None:
    """Note the arguments of an outermost call of a module. Never raises.

    Tensors that require a gradient are left out: they may be parameters that an optimizer does not
    step yet, or activations of another model. So are tensors that share their memory with other
    tensors, unless they are int64 or bool: they may be detached parameters.
    """
    _note(arguments, ARGUMENT, module)


def note_results(module: Any, results: Any) -> None:
    """Note what an outermost call of a module returned. Never raises."""
    _note(results, RESULT, module)


def note_gradients(gradients: Any) -> None:
    """Note the gradients that `torch.autograd.grad` returned. Never raises."""
    _note(gradients, GRADIENT)


def _note(value: Any, role: int, module: Any = None) -> None:
    torch: Any = sys.modules["torch"]
    failed = "some memory of models has no category: reading a tensor failed with {error}. The job "
    with harmless(f"{failed}is not affected", "uses"):  # code of the program: subclasses of tensors
        # Losses and metrics are modules too; a model has parameters.
        if module is not None and next(iter(module.parameters()), None) is None:
            return
        # Classes and modes of the program that intercept functions of tensors are not asked.
        with torch._C.DisableTorchFunction():
            for tensor in islice(tensors_in(torch, value, max_items=MAX_ITEMS), MAX_TENSORS):
                if role == ARGUMENT and (tensor.requires_grad or _may_be_parameter(torch, tensor)):
                    continue
                for device, address in memory_of(torch, tensor):
                    _core.note_use(device, address, role)


def _may_be_parameter(torch: Any, tensor: Any) -> bool:
    """Return whether another tensor, such as a parameter, may have the memory of this one."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return True
    if tensor.dtype in (torch.int64, torch.bool):  # tokens and masks: often a part of a batch
        return False
    try:
        # In a variable, because before torch 2.10 this object counts only while it exists.
        storage = tensor.untyped_storage()
    except RuntimeError:  # a tensor without storage, as in functions of torch.func
        return True
    count = getattr(torch._C, "_storage_Use_Count", None)
    return count is None or bool(count(storage._cdata) > _ALONE)
