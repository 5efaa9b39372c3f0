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
        yields: Whether the steps that the program reports replace those of this source.
    """

    name = "step()"
    first_step = 1
    yields = False
    remedy = "call tracer.step() at the end of each step, or give step_from"

    @property
    def may_be_late(self) -> bool:
        """Whether the first step may come at any time, so that a warning would be wrong."""
        return False

    def program_steps(self) -> None:
        """Take note that the program itself calls `step()`."""

    def close(self) -> None:
        """Report no more steps."""


class _OptimizerSteps(Source):
    """The steps of one optimizer: the first of its class that steps. Others do not count.

    A step that a `GradScaler` skips does not count, except for optimizers that scale gradients
    themselves (fused ones).
    """

    def __init__(self, enter: EnterStep, class_name: str) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._enter = enter
        self._wanted = class_name  # "": all classes
        self._followed: weakref.ref[Any] | None = None
        self._is_ours = True  # False in a forked child. Dynamo would warn of a question for the pid
        _sources.add(self)
        self._class_name = class_name  # of the followed one
        self._handle = register_optimizer_step_post_hook(self._stepped)

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"optimizer {self._class_name}".rstrip()

    @property
    def remedy(self) -> str:  # type: ignore[override]
        return f"{self.name}: none has stepped"

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Report a step, on the thread that steps."""
        if not self._is_ours:
            return
        if self._followed is None or self._followed() is None:
            name = type(optimizer).__name__
            if self._wanted not in ("", name):
                return
            self._followed = weakref.ref(optimizer)
            self._class_name = name
        if self._followed() is optimizer:
            self._enter(None)
        else:
            self._note_other(optimizer)

    def _note_other(self, optimizer: Any) -> None:
        """Take note that an optimizer that is not followed has stepped."""
        name = type(optimizer).__name__
        if self._wanted in ("", name):
            first = self._class_name
            warn_once(f"steps are those of the first {first}; another {name} is not counted")

    def program_steps(self) -> None:
        if self._followed is not None:
            warn_once(
                f"steps are counted twice: the program calls tracer.step(), and step_from counts "
                f"each step of the {self.name}. Remove one of them, or the numbers of steps are "
                "not those of the program",
                "steps twice",
            )

    def close(self) -> None:
        self._handle.remove()
        self._enter = _ignore


class _FrameworkSteps(_OptimizerSteps):
    """The steps that verl profiles; in a program without verl, those of an optimizer.

    It is the first one that steps, until another one steps twice in between: the next trial's, if a
    program keeps those of earlier trials.
    """

    def __init__(self, enter: EnterStep, restart: Callable[[], None]) -> None:
        super().__init__(enter, "")
        self._restart = restart
        self._others: set[int] = set()  # the ids of those that have stepped since
        self._begins_in_a_step = not self._is_verls
        verl.listeners.add(self._verl_reports)
        verl.follow()

    @property
    def _is_verls(self) -> bool:
        return verl.PROFILE in sys.modules

    @property
    def name(self) -> str:  # type: ignore[override]
        return "framework" if self._is_verls else super().name

    @property
    def yields(self) -> bool:  # type: ignore[override]
        return not self._is_verls

    @property
    def first_step(self) -> int:  # type: ignore[override]
        return int(self._begins_in_a_step)

    @property
    def remedy(self) -> str:  # type: ignore[override]
        if not self._is_verls:
            return f"{super().remedy}. Call tracer.step() at the end of each step"
        return (
            "set PYTRACER_STEP_FROM=optimizer, or call tracer.step(). Under verl, select the steps "
            "in global_profiler.steps; with profile_continuous_steps, only the first of "
            "consecutive ones is reported"
        )

    @property
    def may_be_late(self) -> bool:
        return self._is_verls  # verl reports only the steps that it profiles

    def _verl_reports(self, step: int) -> None:
        if self._begins_in_a_step:  # verl was imported since
            self._begins_in_a_step = False
            self._restart()
        self._enter(step)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._is_verls:
            return
        if id(optimizer) in self._others:
            self._followed = None
        super()._stepped(optimizer, args, kwargs)
        if self._followed is not None and self._followed() is optimizer:
            self._others.clear()

    def _note_other(self, optimizer: Any) -> None:
        if len(self._others) < _MOST_OTHERS:
            self._others.add(id(optimizer))

    def close(self) -> None:
        verl.listeners.discard(self._verl_reports)
        self._restart = _ignore
        super().close()


def follow(step_from: str | None, enter: EnterStep, restart: Callable[[], None]) -> Source:
    """Return the source that the option `step_from` asks for. A failure is logged, not raised.

    `restart` is called when the tracer has begun in its first step, and should be in none.
    """
    failed = f"step_from={step_from!r} reports no steps: {{error}}. Only tracer.step() ends a step"
    with harmless(failed):  # for example, there is no torch
        if step_from == "framework":
            return _FrameworkSteps(enter, restart)
        if step_from not in (None, "none"):
            return _OptimizerSteps(enter, step_from.removeprefix("optimizer").removeprefix(":"))
    return Source()


def warn_late(report: Callable[[], None]) -> threading.Timer:
    """Have `report` called on another thread after `NO_STEP_SECONDS`, unless it is cancelled."""
    timer = threading.Timer(NO_STEP_SECONDS, report)
    timer.name = "pytracer steps"
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no more threads: `stop()` reports it, only later
        timer.start()
    return timer
