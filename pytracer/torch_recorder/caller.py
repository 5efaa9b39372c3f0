"""The caller of torch's recorder: a module of torch, or the program."""

import sys

PROGRAM = "user"
"""The owner of the session of everything that is not torch's own code."""

_FORWARDING_MODULES = (
    __name__,
    "pytracer.torch_recorder.replaced_functions",
    "torch.accelerator.memory",
    "torch.cuda.memory",
    "torch_npu.contrib.transfer_to_npu",
    "torch_npu.npu.memory",
)
"""Modules that only forward calls of others."""


def calling_owner() -> str:
    """Return the owner that calls the recorder: a module of torch, or the program."""
    frame = sys._getframe(1)
    name = __name__
    while name in _FORWARDING_MODULES and frame.f_back is not None:
        frame = frame.f_back
        name = str(frame.f_globals.get("__name__"))
    return name if name.partition(".")[0] in ("torch", "torch_npu") else PROGRAM
