"""Whether a thread may read the gradients of parameters, and the graphs of autograd.

torch replaces `grad` without a lock, in part without the GIL: a program that reads `grad` while
another thread sets it may crash. So gradients are read only where no other thread sets them: on the
thread that steps the optimizer of the parameter, and, inside of backward, on the thread that
accumulates the gradients of the parameter's device. The same holds for what the nodes of a graph
keep, which a backward pass releases.
"""

import contextlib
import functools
import threading
from collections.abc import Collection
from typing import Any

from pytracer.owners.registry import Registry


class GradientAccess:
    """What the current thread may read at one moment."""

    def __init__(self, torch: Any, registry: Registry) -> None:
        self._thread = threading.get_ident()
        self._steppers: dict[int, int] = {}  # thread by parameter
        self._is_only_maker = self._thread in registry.makers and not _has_other_threads()
        self._torch = torch
        self._is_in_backward = torch._C._current_graph_task_id() != -1

    def note_optimizer(self, parameters: list[Any], thread: int | None) -> None:
        """Note which thread steps an optimizer; None: it has not stepped yet."""
        if thread is not None:
            self._steppers.update(dict.fromkeys(map(id, parameters), thread))

    def may_read(self, parameter: Any) -> bool:
        """Return whether no other thread sets the gradient of a parameter now."""
        device = parameter.get_device()
        stepper = self._steppers.get(id(parameter))
        is_own = self._is_only_maker if stepper is None else stepper == self._thread
        if not self._is_in_backward:
            return is_own
        # The thread that called backward() accumulates the gradients on the CPU, and a thread of
        # each accelerator accumulates those on it.
        return is_own if device < 0 else not is_own and device == self._current_device

    def may_read_graphs(self, devices: Collection[int]) -> bool:
        """Return whether no other thread runs a backward pass now, as far as the caller can know.

        `devices` are those in use; -1: the CPU.
        """
        if self._is_in_backward:  # each accelerator has a thread
            return sum(device >= 0 for device in devices) < 2
        threads = {*self._steppers.values()}
        return threads == {self._thread} if threads else self._is_only_maker

    @functools.cached_property
    def _current_device(self) -> int | None:
        """The device of a thread that is in backward for an accelerator, which is initialised."""
        with contextlib.suppress(Exception):
            return int(self._torch._C._accelerator_getDeviceIndex())
        return None


def _has_other_threads() -> bool:
    """Return whether another thread of the program may train."""
    ours = (threading.main_thread(), threading.current_thread())
    return any(not thread.daemon and thread not in ours for thread in threading.enumerate())
