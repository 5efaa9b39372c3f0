"""Steps and roles of verl jobs: reports the steps, and makes the roles phases (verl 0.9.1).

When a step that is to be profiled begins or ends, verl calls every `DistProfiler` of every process,
whatever its tool is and whether it is enabled (`verl/utils/profiler/profile.py`). Methods decorated
by `DistProfiler.annotate` are the stages of a role.
"""

import functools
import operator
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from pytracer.log import harmless, warn_once
from pytracer.tracing.phases import annotate

PROFILE = "verl.utils.profiler.profile"
TORCH_MEMORY = "verl.utils.profiler.torch_memory_profile"

Function = TypeVar("Function", bound=Callable[..., Any])

_MISSED = "a step of verl was missed: {error}", "verl's step"

listeners: set[Callable[[int], None]] = set()
"""Called with the number of a step that begins, and with 0 when it ends. They never raise."""

_step = 0  # the last step that began
_in_step: "weakref.WeakSet[Any]" = weakref.WeakSet()  # the profilers that have begun the step
os.register_at_fork(after_in_child=listeners.clear)
os.register_at_fork(after_in_child=_in_step.clear)


def follow() -> None:
    """Report steps and make roles phases from now on, if verl was imported; idempotent."""
    profiler = getattr(sys.modules.get(PROFILE), "DistProfiler", None)
    if profiler is None or hasattr(getattr(profiler, "start", None), "_pytracer"):
        return
    try:
        start, stop = profiler.start, profiler.stop
        decorator_of = profiler.__dict__["annotate"].__func__
    except Exception as error:  # another version of verl
        warn_once(f"verl's steps are not recorded: its DistProfiler is unknown: {error!r}")
        return

    @functools.wraps(start)
    def reporting_start(self: Any, *args: Any, **kwargs: Any) -> Any:
        with harmless(*_MISSED):
            _begin(self, kwargs.get("profile_step", kwargs.get("global_step")))
        return start(self, *args, **kwargs)

    @functools.wraps(stop)
    def reporting_stop(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return stop(self, *args, **kwargs)
        finally:
            with harmless(*_MISSED):
                _end(self)

    @functools.wraps(decorator_of)
    def annotating(
        cls: Any, message: str | None = None, *args: Any, **kwargs: Any
    ) -> Callable[[Function], Function]:
        decorator = decorator_of(cls, message, *args, **kwargs)
        return lambda stage: decorator(_as_phase(stage, kwargs.get("role") or message))

    reporting_start._pytracer = True  # type: ignore[attr-defined]
    profiler.start, profiler.stop = reporting_start, reporting_stop
    profiler.annotate = classmethod(annotating)
    _report(0)  # no step of verl has begun


def _begin(profiler: Any, number: Any) -> None:
    """Begin a step when the first profiler of the process does."""
    global _step
    if _in_step and number in (None, _step):
        _in_step.add(profiler)
        return
    _in_step.clear()  # the step before was not ended
    _in_step.add(profiler)
    _step = _step + 1 if number is None else operator.index(number)
    _report(_step)


def _end(profiler: Any) -> None:
    """End the step when the last profiler does."""
    if profiler in _in_step:
        _in_step.discard(profiler)
        if not _in_step:
            _report(0)


def _report(step: int) -> None:
    for listener in list(listeners):
        listener(step)


def _as_phase(stage: Function, role: str | None) -> Function:
    """Make a stage a phase; once, because both `annotate`s of verl may get the same function."""
    if hasattr(stage, "_pytracer_phase"):
        return stage
    phase = annotate(str(role or getattr(stage, "__qualname__", None) or stage))(stage)
    phase._pytracer_phase = True  # type: ignore[attr-defined]
    return phase


def add_annotate() -> None:
    """Add `annotate` to verl's `TorchMemoryProfiler`, if that was imported and has none.

    verl calls it around each stage while the step and the rank are profiled. It serves stages that
    were decorated before `follow()`.
    """
    profiler = getattr(sys.modules.get(TORCH_MEMORY), "TorchMemoryProfiler", None)
    if profiler is not None and not hasattr(profiler, "annotate"):
        profiler.annotate = _annotate


def remove_annotate() -> None:
    """Remove what `add_annotate` added."""
    profiler = getattr(sys.modules.get(TORCH_MEMORY), "TorchMemoryProfiler", None)
    if getattr(profiler, "annotate", None) is _annotate:
        del profiler.annotate  # type: ignore[union-attr]


def _annotate(
    _profiler: object, message: str | None = None, role: str | None = None, **_others: object
) -> Callable[[Function], Function]:
    return lambda stage: _as_phase(stage, role or message)
