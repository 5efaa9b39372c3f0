"""Windows: which steps are recorded, and which of them share a file.

A window begins with a selected step, ends with a selected step, and contains everything between
them. Steps are selected by number, and a fixed count of them makes a window. Or a schedule like
those of `torch.profiler` selects them: RECORD selects a step; RECORD_AND_SAVE selects a step and
ends the window with it, and so does a RECORD that no RECORD follows.
"""

import functools
import warnings
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

from pytracer.log import warn_once

# Returns a `torch.profiler.ProfilerAction` for the number of a step, from 0 as torch counts.
Schedule = Callable[[int], object]
# The names of torch's `ProfilerAction`s, so that a check need not import torch.
SELECTING_ACTIONS = ("RECORD", "RECORD_AND_SAVE")
SCHEDULE_ACTIONS = ("NONE", "WARMUP", *SELECTING_ACTIONS)


@dataclass(frozen=True)
class CyclicSchedule:
    """A `torch.profiler.schedule` with these arguments; its first call imports torch."""

    active: int
    wait: int = 0
    warmup: int = 0
    repeat: int = 0
    skip_first: int = 0
    skip_first_wait: int = 0

    def __call__(self, step: int) -> object:
        """Return the action of a step."""
        return self._torch_schedule(step)

    @functools.cached_property
    def _torch_schedule(self) -> Any:
        from torch.profiler import schedule

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no warm-up: only profilers need it
            arguments = asdict(self)
            if not self.skip_first_wait:  # older versions of torch do not have it
                del arguments["skip_first_wait"]
            return schedule(**arguments)


@dataclass(frozen=True)
class Window:
    """A run of consecutive steps that share a file, or a phase in a step that has a file."""

    first: int
    last: int  # if the window was cut short, the last step that had begun
    complete: bool = True  # it was not cut short
    phase: str | None = None  # with the names of the phases around it before it, and "/" between
    occurrence: int | None = None  # counts those of the phase's name in its step, from 1

    @property
    def name(self) -> str:
        """The name of the directory of the window's files, as in verl."""
        return f"step{self.first}" if self.first == self.last else f"steps{self.first}-{self.last}"


def last_of(steps: Collection[int]) -> int:
    """Return the largest step; 0: there are no steps."""
    ends = (steps[0], steps[-1]) if isinstance(steps, range) and steps else steps
    return max(ends, default=0)


class Steps:
    """The current step of a tracer, and its windows. Used by one thread at a time.

    The steps of `selected` or of `schedule` are recorded; without either, everything is.
    `per_window` steps of `selected` make a window; the last window may have fewer.

    Attributes:
        current: The number of the current step; 0: none.
        entered: How many steps have begun.
        windows: How many windows have begun.
        last_selected: The largest step that is selected by number; 0: none.
        last: The last step that began.
    """

    def __init__(
        self,
        selected: Collection[int] | None = None,
        per_window: int = 1,
        schedule: Schedule | None = None,
    ) -> None:
        self.current = self.last = self.entered = self.windows = 0
        # A range may be long, and looks its steps up as fast as a set.
        self._selected: Collection[int] = (
            selected if isinstance(selected, range) else frozenset(selected or ())
        )
        self.last_selected = last_of(self._selected)
        self._per_window = per_window
        self._schedule = schedule
        self._first: int | None = None  # step of the open window
        self._count = 0  # selected steps of the open window that are over
        self._counted = 0  # the last step in `_count`

    @property
    def are_selected(self) -> bool:
        """Whether there are windows; else everything is recorded."""
        return bool(self._selected) or self._schedule is not None

    @property
    def are_recorded(self) -> bool:
        """Whether events are recorded in the current step."""
        return self._first is not None or not self.are_selected

    def enter(self, step: int) -> Window | None:
        """End the current step and begin another, or none (0); return the window that ends."""
        before, self.current = self.current, step
        ended = self._ended_with(before)
        if self._first is not None and 0 < step < self.last:  # a framework began to count anew
            ended = self.cut_short()
        if step:
            self.entered += 1
            self.last = step
            if self._first is None and self._is_selected(step):
                self._first = step
                self._count = self._counted = 0
                self.windows += 1
        return ended

    def cut_short(self) -> Window | None:
        """End the open window early and return it; None: no window is open."""
        first, self._first = self._first, None
        return None if first is None else Window(first, self.last, complete=False)

    def _ended_with(self, step: int) -> Window | None:
        if self._first is None or not self._is_selected(step):
            return None
        if step != self._counted:  # a framework may report a step twice
            self._count += 1
            self._counted = step
        if not self._is_last(step):
            return None
        window = Window(self._first, step)
        self._first = None
        return window

    def _is_selected(self, step: int) -> bool:
        if self._schedule is None or step == 0:
            return step in self._selected
        return self._action(step) in SELECTING_ACTIONS

    def _is_last(self, step: int) -> bool:
        if self._schedule is None:
            return self._count == self._per_window or step == self.last_selected
        return self._action(step) == "RECORD_AND_SAVE" or not self._is_selected(step + 1)

    def _action(self, step: int) -> str:
        """Return the schedule's action; a schedule that fails is not called again."""
        assert self._schedule is not None
        try:
            return str(getattr(self._schedule(step - 1), "name", None))
        except Exception as error:
            warn_once(
                f"the schedule failed for step {step}, so no further step is selected: {error!r}",
                f"a schedule: {type(error)}",
            )
            self._schedule = lambda _: None
            return "NONE"
