"""Tracing from the environment, once torch is there; `pytracer.autostart` calls it."""

import difflib
import os
import sys
from multiprocessing import context, process, util
from typing import ClassVar

from pytracer import config, lifetime, verl
from pytracer.errors import ConfigError
from pytracer.notices import say_once
from pytracer.output import FIRST_PROCESS
from pytracer.tracer import Tracer

DEFAULT_OUTPUT = "outputs/profile"
PREFIX = "PYTRACER_"


class EnvironmentTracer(Tracer):
    """A tracer that leaves no file in a process that has used no device: a launcher, a helper."""

    _defaults: ClassVar[dict[str, object]] = {"output": DEFAULT_OUTPUT, "step_from": "framework"}
    _only_if_used: ClassVar[bool] = True

    def is_first(self) -> bool:
        """Whether it records in the first such process of its rank; its children see that."""
        return self.recording and self._files is not None and self._files.claim_first()

    @property
    def recording(self) -> bool:
        """Whether it is."""
        return self._owner.recording


_tracer: EnvironmentTracer | None = None
_sees_children = False


def begin() -> None:
    """Does what the environment asks for; idempotent. What is wrong is said, not raised."""
    try:
        _begin()
    except ConfigError as error:
        say_once(f"not recording: {_naming_the_variable(str(error))}")


def _begin() -> None:
    if _is_compile_worker():
        return
    traced, patched = config.switch(config.SWITCH), config.switch(config.PATCH_TORCH)
    if traced is False or not (traced or patched):
        return
    _see_children()
    if getattr(process.current_process(), "_inheriting", False):
        # A child of multiprocessing that reads what it is to do; `_in_child` comes next.
        return
    if _is_data_worker():
        return
    verl.follow()
    if traced:
        _trace()
    if patched:
        from pytracer.torch_patch import patch_torch

        patch_torch()


def _trace() -> None:
    global _tracer
    if _tracer is not None:
        lifetime.follow_devices()  # torch_npu may have come after torch
        return
    _tracer = EnvironmentTracer()
    _tracer.start()
    if _tracer.is_first():  # else another has said it
        _say_unknown_variables()


def _is_compile_worker() -> bool:
    """Of inductor, and what it forks: they allocate nothing of the job's."""
    return any(
        os.path.join("torch", "_inductor", "compile_worker") in argument
        or argument.startswith("torch._inductor.compile_worker")
        for argument in sys.orig_argv
    )


def _is_data_worker() -> bool:
    """Of a `DataLoader`."""
    target = getattr(process.current_process(), "_target", None)
    return getattr(target, "__module__", None) == "torch.utils.data._utils.worker"


def _see_children() -> None:
    """Has multiprocessing call `_in_child` in each child, once it knows what the child is to do."""
    global _sees_children
    if _sees_children:
        return
    _sees_children = True
    util.register_after_fork(_in_child, lambda call: call())
    # A spawned one leaves those out, and has this.
    context.SpawnProcess._after_fork = staticmethod(_in_child)  # type: ignore[attr-defined]


def _in_child() -> None:
    from pytracer import autostart

    global _tracer
    _tracer = None  # a fork's parent's
    autostart.begin()


def _naming_the_variable(message: str) -> str:
    name, equals, rest = message.partition("=")
    return f"{config.variable(name)}{equals}{rest}" if name in config.OPTIONS else message


def _say_unknown_variables() -> None:
    known = {*map(config.variable, config.OPTIONS), *config.OTHER_VARIABLES, FIRST_PROCESS}
    ends = [name.removeprefix(PREFIX) for name in known]
    for name in os.environ:
        if name.startswith(PREFIX) and name not in known:
            close = difflib.get_close_matches(name.removeprefix(PREFIX), ends, 1)
            hint = f"; {PREFIX}{close[0]} is" if close else ""
            say_once(f"{name} is not a variable of pytracer's{hint}")
