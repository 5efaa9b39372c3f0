"""Who reports that a step is over: the program by `step()`, a framework, torch's optimizers."""

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from pytracer.log import harmless, warn_once
from pytracer.tracing import verl

NO_STEP_SECONDS = 300.0  # how long a tracer waits for the first step before it warns

EnterStep = Callable[[int | None], None]
"""Called with the number of the step that begins; 0: none begins; None: the next one begins."""


def _ignore(_step: int | None = None) -> None:
    """Replace a function of a source that was closed, which would form a reference cycle."""


_MOST_OTHERS = 4096  # optimizers that step once for each step of the followed one
_sources: "weakref.WeakSet[_OptimizerSteps]" = weakref.WeakSet()


def _leave_to_parent() -> None:
    for source in list(_sources):
        source._is_ours = False


os.register_at_fork(after_in_child=_leave_to_parent)


class Source:
    """The program itself, which calls `step()`; the base of other sources.

    Attributes:
        name: The name of the source in a file.
        first_step: The step that a tracer begins in; 0: none.
        remedy: What to do if no step was reported.
        may_be_late: Whether the first step may come at any time, so that a warning would be wrong.
        yields: Whether the steps that the program reports replace those of this source.
    """

    name = "step()"
    first_step = 1
    yields = may_be_late = False
    remedy = "call tracer.step() at the end of each step, or give step_from"

    def program_steps(self) -> None:
        """Take note that the program itself calls `step()`."""

    def close(self) -> None:
        """Report no more steps."""


class _OptimizerSteps(Source):
    """The steps of one optimizer: the first of its class that steps. Others do not count.

    A step that a `GradScaler` skips does not count, except for optimizers that scale gradients
    themselves (fused ones).

    With `step_from="framework"`, the steps that verl profiles count in a program with verl. Without
    verl, the optimizer is the first one that steps, until another one steps twice in between: the
    next trial's, if a program keeps those of earlier trials.
    """

    def __init__(self, step_from: str, enter: EnterStep, restart: Callable[[], None]) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._enter, self._restart = enter, restart
        self._is_framework = step_from == "framework"
        self._wanted = step_from.partition(":")[2]  # the class; "": all classes
        self._class_name = self._wanted  # of the followed one
        self._followed: weakref.ref[Any] | None = None
        self._others: set[int] = set()  # the ids of those that have stepped since
        self._begins_in_a_step = not self._is_verls
        self._is_ours = True  # False in a forked child. Dynamo would warn of a question for the pid
        _sources.add(self)
        self._handle = register_optimizer_step_post_hook(self._stepped)
        if self._is_framework:
            verl.listeners.add(self._verl_reports)
            verl.follow()

    @property
    def _is_verls(self) -> bool:
        return self._is_framework and verl.PROFILE in sys.modules

    @property
    def name(self) -> str:  # type: ignore[override]
        return "framework" if self._is_verls else f"optimizer {self._class_name}".rstrip()

    @property
    def yields(self) -> bool:  # type: ignore[override]
        return self._is_framework and not self._is_verls

    @property
    def first_step(self) -> int:  # type: ignore[override]
        return int(self._begins_in_a_step)

    @property
    def may_be_late(self) -> bool:  # type: ignore[override]
        return self._is_verls  # verl reports only the steps that it profiles

    @property
    def remedy(self) -> str:  # type: ignore[override]
        if self._is_verls:
            return (
                "set PYTRACER_STEP_FROM=optimizer, or call tracer.step(). Under verl, select the "
                "steps in global_profiler.steps; with profile_continuous_steps, only the first of "
                "consecutive steps is reported"
            )
        call = ". Call tracer.step() at the end of each step" if self._is_framework else ""
        return f"{self.name}: none has stepped{call}"

    def _verl_reports(self, step: int) -> None:
        if self._begins_in_a_step:  # verl was imported since
            self._begins_in_a_step = False
            self._restart()
        self._enter(step)

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Report a step, on the thread that steps."""
        if not self._is_ours or self._is_verls:
            return
        name = type(optimizer).__name__
        if self._followed is None or self._followed() is None or id(optimizer) in self._others:
            if self._wanted not in ("", name):
                return
            self._followed = weakref.ref(optimizer)
            self._class_name = name
        if self._followed() is optimizer:
            self._others.clear()
            self._enter(None)
        elif self._is_framework:
            if len(self._others) < _MOST_OTHERS:
                self._others.add(id(optimizer))
        elif self._wanted in ("", name):
            first = self._class_name
            warn_once(f"only the first {first}'s steps count, not those of another {name}")

    def program_steps(self) -> None:
        if self._followed is not None:
            warn_once(
                "steps are counted twice: the program calls tracer.step(), and step_from counts "
                f"each step of the {self.name}. Remove one of them; otherwise the step numbers "
                "differ from the program's",
                "steps twice",
            )

    def close(self) -> None:
        verl.listeners.discard(self._verl_reports)
        self._handle.remove()
        self._enter = self._restart = _ignore


def follow(step_from: str | None, enter: EnterStep, restart: Callable[[], None]) -> Source:
    """Return the source that the option `step_from` asks for. A failure is logged, not raised.

    `restart` is called when the tracer has begun in its first step, and should be in none.
    """
    failed = f"step_from={step_from!r} reports no steps: {{error}}. Only tracer.step() ends a step"
    with harmless(failed):  # for example, there is no torch
        if step_from not in (None, "none"):
            return _OptimizerSteps(step_from, enter, restart)
    return Source()


def warn_late(report: Callable[[], None]) -> threading.Timer:
    """Have `report` called on another thread after `NO_STEP_SECONDS`, unless it is cancelled."""
    timer = threading.Timer(NO_STEP_SECONDS, report)
    timer.name = "pytracer steps"
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no more threads: `stop()` reports it, only later
        timer.start()
    return timer
