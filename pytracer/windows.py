"""Windows: which steps are recorded, and which of them share a file.

A window begins with a selected step and ends with one that ends it; all that is between is in it.
Steps are selected by number, and so many of them make a window; or by a schedule of
`torch.profiler`'s kind: RECORD selects a step, and RECORD_AND_SAVE ends the window with it, as does
a RECORD that no other follows.
"""

import functools
import warnings
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

from pytracer.notices import say_once

Schedule = Callable[[int], object]
"""Gives a `torch.profiler.ProfilerAction` for the number of a step, which torch counts from 0."""

SELECTING_ACTIONS = ("RECORD", "RECORD_AND_SAVE")
ACTIONS = ("NONE", "WARMUP", *SELECTING_ACTIONS)
"""Names of torch's `ProfilerAction`s, which are asked for without importing torch."""


@dataclass(frozen=True)
class CyclicSchedule:
    """`torch.profiler.schedule` of these numbers; torch is imported when it is first called."""

    active: int
    wait: int = 0
    warmup: int = 0
    repeat: int = 0
    skip_first: int = 0
    skip_first_wait: int = 0

    def __call__(self, step: int) -> object:
        """The action of a step."""
        return self._of_torch(step)

    @functools.cached_property
    def _of_torch(self) -> Any:
        from torch.profiler import schedule

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warm-up is a profiler's need
            given = asdict(self)
            if not self.skip_first_wait:  # an older torch does not have it
                del given["skip_first_wait"]
            return schedule(**given)


@dataclass(frozen=True)
class Window:
    """Steps that share a file.

    Attributes:
        first: The step it begins with.
        last: The step it ends with; of a window that was cut short, the last that had begun.
        complete: It was not cut short.
    """

    first: int
    last: int
    complete: bool = True

    @property
    def name(self) -> str:
        """As verl calls the directory of its files."""
        return f"step{self.first}" if self.first == self.last else f"steps{self.first}-{self.last}"


def last_of(steps: Collection[int]) -> int:
    """The largest; 0: there are none."""
    ends = (steps[0], steps[-1]) if isinstance(steps, range) and steps else steps
    return max(ends, default=0)


class Steps:
    """The step that a tracer is in, and its windows. One thread at a time.

    Attributes:
        current: Its number; 0: it is in none.
        entered: How many were entered.
        windows: How many windows have begun.
    """

    def __init__(
        self,
        selected: Collection[int] | None = None,
        per_window: int = 1,
        schedule: Schedule | None = None,
    ) -> None:
        """Selects these steps, so many for a window, or those of the schedule; else none.

        The last window is of those that are left.
        """
        self.current = 0
        self.entered = 0
        # A range may be a long one, and finds its steps as fast as a set.
        self._selected: Collection[int] = (
            selected if isinstance(selected, range) else frozenset(selected or ())
        )
        self._last_selected = last_of(self._selected)
        self.windows = 0
        self._per_window = per_window
        self._schedule = schedule
        self._first: int | None = None  # of the window that is open
        self._last = 0
        self._count = 0  # of its steps, those that are selected and over
        self._counted = 0  # the last of them

    @property
    def are_selected(self) -> bool:
        """Whether there are windows; else all is recorded."""
        return bool(self._selected) or self._schedule is not None

    @property
    def are_recorded(self) -> bool:
        """Whether what happens now is."""
        return self._first is not None or not self.are_selected

    def enter(self, step: int) -> Window | None:
        """Ends the current step and begins this one, or none (0); the window that thereby ends."""
        before, self.current = self.current, step
        ended = self._ended_with(before)
        if self._first is not None and 0 < step < self._last:  # a framework began anew
            ended = self.cut_short()
        if step:
            self.entered += 1
            self._last = step
            if self._first is None and self._is_selected(step):
                self._first = step
                self._count = self._counted = 0
                self.windows += 1
        return ended

    def cut_short(self) -> Window | None:
        """Ends the window that is open before its time; None: none is."""
        first, self._first = self._first, None
        return None if first is None else Window(first, self._last, complete=False)

    def _ended_with(self, step: int) -> Window | None:
        if self._first is None or not self._is_selected(step):
            return None
        if step != self._counted:  # a framework may tell one again
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
        """Of its window, of which so many steps are counted."""
        if self._schedule is None:
            return self._count == self._per_window or step == self._last_selected
        return self._action(step) == "RECORD_AND_SAVE" or not self._is_selected(step + 1)

    def _action(self, step: int) -> str:
        """A schedule that fails is not asked again."""
        assert self._schedule is not None
        try:
            return str(getattr(self._schedule(step - 1), "name", None))
        except Exception as error:
            say_once(
                f"the schedule fails for step {step}, and selects none from there on: {error!r}"
            )
            self._schedule = lambda _: None
            return "NONE"
