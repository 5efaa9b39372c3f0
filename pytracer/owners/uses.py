"""What the program uses tensors for: arguments and results of models, gradients that it asked for.

The caller has these tensors meanwhile, so nothing lives longer.

The recorder notes the use with the number of the next event, so that a file's reader finds the
block that the tensor was in, also if the program frees it before the file is written.
"""

import sys
from itertools import islice
from types import FrameType
from typing import Any

from pytracer import _core
from pytracer.log import warn_once
from pytracer.owners.tensors import memory_of, tensors_in

ARGUMENT, RESULT, GRADIENT = range(3)  # csrc/record/tensor_uses.h
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
    try:
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
    except Exception as error:  # code of the program: subclasses of tensors
        warn_once(
            f"some memory of models has no category: reading a tensor failed with "
            f"{error!r}. The job is not affected",
            f"uses: {type(error)}",
        )


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
