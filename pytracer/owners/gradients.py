"""Whether a thread may read the gradients of parameters, and the graphs of autograd.

torch replaces `grad` without a lock, in part without the GIL: a program that reads `grad` while
another thread sets it may crash. So gradients are read only where no other thread sets them: on the
thread that steps the optimizer of the parameter, and, inside of backward, on the thread that
accumulates the gradients of the parameter's device (`csrc/tensors/model_copy.cpp`). The same holds
for what the nodes of a graph keep, which a backward pass releases.
"""

import contextlib
import threading
from collections.abc import Collection
from typing import Any

from pytracer.owners.copies import GradientRule
from pytracer.owners.registry import Registry


class GradientAccess:
    """What the current thread may read at one moment.

    Attributes:
        rule: Which gradients.
    """

    def __init__(self, torch: Any, registry: Registry) -> None:
        thread = threading.get_ident()
        self._is_only_maker = thread in registry.makers and not _has_other_threads()
        self._is_in_backward = torch._C._current_graph_task_id() != -1
        self._steppers = {*registry.steppers()}
        self._thread = thread
        device = -1
        if self._is_in_backward:
            with contextlib.suppress(Exception):  # the accelerator is not initialised
                device = int(torch._C._accelerator_getDeviceIndex())
        self.rule: GradientRule = True, thread, self._is_only_maker, self._is_in_backward, device

    def may_read_graphs(self, devices: Collection[int]) -> bool:
        """Return whether this is the only thread that may change graphs now.

        Threads that run a backward pass are looked up while the graphs are read. `devices` are those
        in use; -1: the CPU.
        """
        if self._is_in_backward:  # each accelerator has a thread
            return sum(device >= 0 for device in devices) < 2
        return self._steppers == {self._thread} if self._steppers else self._is_only_maker


def _has_other_threads() -> bool:
    """Return whether another thread of the program may train."""
    ours = (threading.main_thread(), threading.current_thread())
    return any(not thread.daemon and thread not in ours for thread in threading.enumerate())
