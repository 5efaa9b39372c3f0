"""How the allocator of the next run would serve a program, and with how much memory."""

from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np

from pytracer.fitting.alignment import Recorded
from pytracer.fitting.prediction import NO_LIMITS, Program, peaks
from pytracer.fitting.results import OWN, Failed, Largest, Prediction
from pytracer.fitting.sizes import Sizes
from pytracer.recommendation.search import Search
from pytracer.simulator.simulate import Limits, Simulated, limits_of, own_rules, rules_under

_MOST_VALUE = 2**30


@dataclass(frozen=True)
class Device:
    """The device of the next run."""

    memory_bytes: int | None  # its memory; None: unknown
    outside_bytes: int  # the part of it that the allocator does not get
    room_bytes: int | None  # what the allocator can get; None: unknown
    # The same as a limit of the kind that the recorded device had; None: unknown.
    limits: Limits | None


def device_of(base: Recorded, memory_bytes: int | None) -> Device:
    """Return the recorded device, or one like it with another memory."""
    recording = base.recording
    total_bytes = base.snapshot.metadata.device(recording.device).total_bytes
    room_bytes, outside_bytes = memory_bytes or total_bytes, 0
    if room_bytes is None:
        return Device(None, 0, None, None)
    if recording.fraction_bytes is not None and total_bytes:
        room_bytes = round(recording.fraction_bytes / total_bytes * room_bytes)
    elif recording.limit_bytes is not None and total_bytes:
        outside_bytes = max(total_bytes - recording.limit_bytes, 0)
        room_bytes = max(room_bytes - outside_bytes, 0)
    limits = limits_of(recording, room_bytes)
    return Device(memory_bytes or total_bytes, outside_bytes, room_bytes, limits)


class Allocator:
    """A program's allocator under some settings."""

    def __init__(self, program: Program, device: Device, name: str, settings: str) -> None:
        """Prepare simulations; `name` is `OWN` or the change of the recording's settings.

        Raises:
            PytracerError: The settings cannot be simulated.
        """
        self.name = name
        self._program, self._device, self._settings = program, device, settings
        recording = program.base.recording
        is_own = name == OWN
        self.rules = own_rules(recording) if is_own else rules_under(settings, recording)

    def _limited(self, sizes: Sizes) -> tuple[bool, Failed | None]:
        """Return whether the program fits into the device, and the request that does not."""
        done: Simulated = self._program.simulate(
            sizes, self.rules, self._device.limits or NO_LIMITS
        )
        if done.failed_request is None:
            return done.ooms == 0, None
        base = self._program.base
        allocation = int(np.searchsorted(base.rows, done.failed_request))
        size_bytes = int(self._program.size_bytes(sizes)[allocation])
        return False, Failed(size_bytes, base.frame(allocation))

    def predicted(self, sizes: Sizes) -> Prediction:
        """Simulate the program at other sizes."""
        found = peaks(self._program.base, self._program.simulate(sizes, self.rules))
        fits, failed = None, None
        if self._device.limits is not None:
            fits, failed = self._limited(sizes)
        first, steady = found.get("first"), found.get("steady")
        return Prediction(sizes, self.name, found["all"], first, steady, fits, failed)

    def largest(self, target: Sizes, variable: str) -> Largest:
        """Return the largest value of a variable that fits, by bisection.

        It is searched below the first value whose blocks alone need more memory than there is: to
        add them up takes a tenth of the time of a simulation.
        """
        room_bytes, high = self._device.room_bytes or 0, target[variable]

        def is_too_large(value: int) -> bool:
            return self._program.held_bytes({**target, variable: value}) > room_bytes

        def limited(value: int) -> tuple[bool, Failed | None]:
            return self._limited({**target, variable: value})

        while high < _MOST_VALUE and not is_too_large(high):
            high *= 2
        if high >= _MOST_VALUE and limited(high)[0]:
            return Largest(variable, self.name, None, None)
        high = bisect_left(range(1, high), True, key=is_too_large) + 1
        low, step = high - 1, max(high // 32, 1)
        while low > 0 and not limited(low)[0]:
            low, high, step = max(low - step, 0), low, 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if limited(middle)[0] else (low, middle)
        return Largest(variable, self.name, low, limited(high)[1])

    def smallest_device(self, target: Sizes) -> int | None:
        """Return the least memory for the allocator with which the target fits; None: none is."""
        has_fraction = self._device.limits and self._device.limits.fraction_bytes is not None
        search = Search(
            replace(self._program.at(target), settings=self._settings),
            Limits(1 << 50, None) if has_fraction else NO_LIMITS,
        )
        (found,) = search.with_smallest_device([search.own()])
        return found.smallest_device_bytes
