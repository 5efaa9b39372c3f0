"""The tracer that environment variables ask for, started once torch is imported."""

import multiprocessing
import multiprocessing.context
import multiprocessing.util
import os
import sys
from collections.abc import Callable
from typing import ClassVar

from pytracer.activation import unused_variables
from pytracer.errors import ConfigError
from pytracer.log import warn_once
from pytracer.tracing import options, process, verl
from pytracer.tracing.tracer import Tracer


class EnvironmentTracer(Tracer):
    """A tracer that writes no file in a process that used no device, such as a launcher."""

    _defaults: ClassVar[dict[str, object]] = options.ENVIRONMENT_DEFAULTS
    _only_if_used: ClassVar[bool] = True

    def is_first(self) -> bool:
        """Return whether this is the first process of its rank that records.

        The answer is inherited by the children, which are not the first.
        """
        files = self._writer.files
        return self._session.recording and files is not None and files.claim_first()


_tracer: EnvironmentTracer | None = None
_begin_in_child: Callable[[], None] | None = None


def begin(begin_in_child: Callable[[], None]) -> None:
    """Do what the environment asks for; idempotent. A wrong variable is logged, not raised.

    `begin_in_child` is called in each child of `multiprocessing`, once the child knows its work.
    """
    if _is_compile_worker():
        return
    traced, patched = _switch(options.SWITCH), _switch(options.PATCH_TORCH)
    if not traced:
        unused_variables.report_unrecorded()
    if traced is False or not (traced or patched):
        return
    _follow_children(begin_in_child)
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # A child of multiprocessing reads what it has to do. `_in_child` is called next.
        return
    if _is_data_worker():
        return
    verl.follow()
    if traced:
        _trace()
    if patched:
        from pytracer.torch_recorder.patch import patch_torch

        patch_torch()


def _switch(name: str) -> bool | None:
    """Return the value of a switch; a wrong one is logged, and does not end the other."""
    try:
        return options.switch(name)
    except ConfigError as error:
        warn_once(f"{error}. The variable has no effect")
        return None


def _trace() -> None:
    global _tracer
    if _tracer is not None:
        process.follow_devices()  # torch_npu may have been imported after torch
        return
    try:
        _tracer = EnvironmentTracer()
        _tracer.start()
    except ConfigError as error:
        name, equals, rest = str(error).partition("=")
        if name in options.OPTIONS:
            name = options.variable(name)
        warn_once(f"nothing is recorded, and the job continues: {name}{equals}{rest}")
        return
    if _tracer.is_first():  # otherwise the first process has logged the warning
        unused_variables.report_unknown()


def _is_compile_worker() -> bool:
    """Return whether this is a process of inductor's, which allocates nothing for the job."""
    return any(
        os.path.join("torch", "_inductor", "compile_worker") in argument
        or argument.startswith("torch._inductor.compile_worker")
        for argument in sys.orig_argv
    )


def _is_data_worker() -> bool:
    """Return whether this is a worker of a `DataLoader`."""
    target = getattr(multiprocessing.current_process(), "_target", None)
    return getattr(target, "__module__", None) == "torch.utils.data._utils.worker"


def _follow_children(begin_in_child: Callable[[], None]) -> None:
    """Have multiprocessing call `_in_child` in each child, once the child knows its work."""
    global _begin_in_child
    if _begin_in_child is None:
        multiprocessing.util.register_after_fork(_in_child, lambda call: call())
        # A spawned child calls no function that was registered for forks, but this method.
        multiprocessing.context.SpawnProcess._after_fork = staticmethod(_in_child)  # type: ignore[attr-defined]
    _begin_in_child = begin_in_child


def _in_child() -> None:
    global _tracer
    _tracer = None  # a forked child inherits its parent's
    if _begin_in_child is not None:
        _begin_in_child()
