"""Moments of a recording that a user names: "oom", "peak", "end", an event, or a time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pytracer.analysis.device_data import DeviceData
from pytracer.errors import NoMomentError, PytracerError
from pytracer.reading.snapshot import NO_TIME, OOM

Answer = TypeVar("Answer")

FORMS = "oom, peak, end, the index of an event, or +SECONDS after the first event"


@dataclass(frozen=True)
class Moment:
    """A moment of a device's history.

    Attributes:
        name: "oom", "peak" or "end", or "event 12".
        entry: The entry of the history's usage: `i + 1` after event i. None: the file's end, of
            which no history is needed.
        event: The event before the moment; None if there is none.
    """

    name: str
    entry: int | None
    event: int | None

    def __str__(self) -> str:
        """Return the moment as text, as in "at the peak" and "after event 12"."""
        names = {"oom": "when memory ran out", "peak": "at the peak", "end": "at the end"}
        return names.get(self.name, f"after {self.name}")


def moment_of(data: DeviceData, text: str | None) -> Moment:
    """Return the moment that a text names.

    Args:
        text: "oom" (the last out-of-memory error), "peak" (of allocated bytes), "end", the index of
            an event, or "+SECONDS" after the first event. None: "oom" if the device ran out of
            memory, or else "peak"; without a history "end".

    Raises:
        NoMomentError: The device has no such moment.
        PytracerError: The text names no moment.
    """
    peak, trace, path = data.history.peak, data.trace, data.snapshot.path
    name = data.snapshot.device_name(data.device)
    if text == "end" or (text is None and peak is None):
        return Moment("end", None, len(trace) - 1 if len(trace) else None)
    if peak is None:
        reason = data.contradiction or "the file has no events"
        raise NoMomentError(f"give --at end, because {path} has only the end state: {reason}")
    ooms = np.flatnonzero(trace.action == OOM)
    if text == "oom" and len(ooms) == 0:
        raise NoMomentError(f"{path} has no out-of-memory error of {name}")
    if text == "oom" or (text is None and len(ooms)):
        return Moment("oom", int(ooms[-1]) + 1, int(ooms[-1]))
    if text in (None, "peak"):
        return Moment("peak", peak, peak - 1 if peak else None)
    assert text is not None
    event = _event(data, text)
    if not 0 <= event < len(trace):
        raise NoMomentError(
            f"{path} has no event {event:,} for {name}: its events are 0 to {len(trace) - 1:,}"
        )
    return Moment(f"event {event:,}", event + 1, event)


def at_moment(
    devices: Iterable[DeviceData],
    text: str | None,
    answer: Callable[[DeviceData, Moment], Answer],
    note: Callable[[str], object],
) -> list[Answer]:
    """Answer a question about each device that has a moment.

    Args:
        text: The moment, as `moment_of` takes it.
        answer: Returns the answer for a device and its moment.
        note: Called with a sentence for each device that has no such moment, if others have it.

    Raises:
        NoMomentError: No device has such a moment: the reason is that of the first.
        PytracerError: The text names no moment.
    """
    found: list[Answer] = []
    missing: list[str] = []
    for data in devices:
        try:
            moment = moment_of(data, text)
        except NoMomentError as error:
            missing.append(str(error))
        else:
            found.append(answer(data, moment))
    if missing and not found:
        raise NoMomentError(missing[0])
    for sentence in missing:
        note(sentence)
    return found


def _event(data: DeviceData, text: str) -> int:
    """Return the event that a text names by its index or its time."""
    times = data.trace.time_us
    try:
        if not text.startswith("+"):
            return int(text)
        after_us = round(float(text[1:]) * 1e6)
    except (ValueError, OverflowError):
        raise PytracerError(f"{text!r} is not a moment: give {FORMS}") from None
    if len(times) == 0 or times[0] == NO_TIME:
        raise NoMomentError(f"{data.snapshot.path} has no times: give the index of an event")
    return int(np.searchsorted(times, times[0] + after_us, "right")) - 1
