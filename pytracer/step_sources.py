"""Who tells that a step is over: the program by `step()` alone, a framework, torch's optimizers."""

import os
import weakref
from collections.abc import Callable
from typing import Any

from pytracer import verl
from pytracer.notices import say_once

EnterStep = Callable[[int | None], None]
"""Told of the step that begins, which ends the one before; 0: none begins, None: the next."""


class Source:
    """The program, which needs nobody to tell the steps.

    Attributes:
        name: As the file says it.
        first_step: That a tracer begins in; 0: none.
        remedy: What to do if no step was told.
    """

    name = "step()"
    first_step = 1
    remedy = "call tracer.step() at the end of each, or give step_from"

    def close(self) -> None:
        """Tells no more."""


class FrameworkSteps(Source):
    """Those that verl profiles."""

    name = "framework"
    first_step = 0
    remedy = (
        "verl tells those of its global_profiler.steps (with profile_continuous_steps the first of "
        "consecutive ones alone); without verl give another step_from"
    )

    def __init__(self, enter: EnterStep) -> None:
        """Tells from now on."""
        self._enter = enter
        verl.listeners.add(enter)
        verl.follow()

    def close(self) -> None:
        """Tells no more."""
        verl.listeners.discard(self._enter)


class OptimizerSteps(Source):
    """Those of one optimizer, the first of its class that steps; others' count for nothing.

    A step that a `GradScaler` skips is none, but for optimizers that scale themselves (fused ones).
    """

    def __init__(self, enter: EnterStep, class_name: str) -> None:
        """Tells from now on; an empty name stands for all classes."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._enter = enter
        self._wanted = class_name
        self._followed: weakref.ref[Any] | None = None
        self._process = os.getpid()
        self.name = f"optimizer {class_name}".rstrip()
        self.remedy = f"{self.name}: none has stepped"
        self._handle = register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """On the thread that steps."""
        if self._process != os.getpid():  # a forked child
            return
        if self._followed is None or self._followed() is None:
            name = type(optimizer).__name__
            if self._wanted not in ("", name):
                return
            self._followed = weakref.ref(optimizer)
            self.name = f"optimizer {name}"
            say_once(f"steps are those of the first {name} that steps, and of no other optimizer")
        if self._followed() is optimizer:
            self._enter(None)

    def close(self) -> None:
        """Tells no more."""
        self._handle.remove()


def follow(step_from: str | None, enter: EnterStep) -> Source:
    """The source that the option `step_from` asks for. What fails is said, not raised."""
    try:
        if step_from == "framework":
            return FrameworkSteps(enter)
        if step_from is not None:
            return OptimizerSteps(enter, step_from.removeprefix("optimizer").removeprefix(":"))
    except Exception as error:  # no torch, say
        say_once(f"no steps from {step_from}: {error!r}")
    return Source()
