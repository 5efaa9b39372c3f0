"""Stand in for torch's own memory recorder: programs that use it record with pytracer instead.

`patch_torch()` replaces, on `torch.cuda.memory` and `torch.npu.memory` and wherever else torch
holds the same functions, `_record_memory_history` (with torch's signature and a `stack_depth`),
`_snapshot`, `_dump_snapshot`, `memory_snapshot` and `_allocation_traceback`; and, on `torch._C` and
`torch_npu._C`, `_{device}_isHistoryEnabled` and `_{device}_attach_out_of_memory_observer`.

Each owner (see `calling_owner`) enables, changes and ends only its own session. A caller reads its
own session, else the program's, else any that is enabled (`ReplacedFunctions._readable`).
docs/how-to/torch-recorder.md lists what callers may notice, and docs/explanation/hooks.md has the
reasons.
"""

import os
import sys
import threading
from typing import Any

from pytracer.backends.running_torch import torch_build
from pytracer.log import harmless
from pytracer.torch_recorder.replaced_functions import ReplacedFunctions
from pytracer.tracing import verl
from pytracer.tracing.options import switched_off

_lock = threading.RLock()  # reentrant, because a signal handler may patch in the middle of a change
_patches: dict[str, ReplacedFunctions] = {}  # by backend


def patch_torch() -> None:
    """Replace torch's recorder functions for each backend that torch supports; idempotent.

    torch_npu's functions exist once it is imported: call this again then. Under `PYTRACER=0` this
    does nothing.

    Raises:
        HookError: There is no torch, or it is too old to be recorded.
    """
    if switched_off():
        return
    with _lock:
        torch_build()
        torch: Any = sys.modules["torch"]
        exists = {
            "cuda": torch.version.cuda is not None,
            "npu": "torch_npu" in sys.modules and hasattr(torch, "npu"),
        }
        for backend in exists:
            if exists[backend] and backend not in _patches:
                failed = f"the recorder of torch.{backend} is not replaced, and records itself"
                with harmless(f"{failed}: {{error}}"):  # this torch lacks one of the functions
                    _patches[backend] = ReplacedFunctions(backend, _lock)


def unpatch_torch() -> None:
    """End all sessions and restore torch's functions wherever pytracer's are still in place."""
    with _lock:
        while _patches:
            _patches.popitem()[1].undo()
        verl.remove_annotate()


def _reset_in_child() -> None:
    """Replace the lock, which another thread of the parent may hold, and forget its sessions."""
    global _lock
    _lock = threading.RLock()
    for patch in _patches.values():
        patch.reset_in_child(_lock)


os.register_at_fork(after_in_child=_reset_in_child)
