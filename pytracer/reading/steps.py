"""The steps and the annotations of a file. The file is not trusted: any value may have any type."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pytracer.reading.metadata import Boundaries
from pytracer.reading.snapshot import NO_TIME, Column, Snapshot


class Annotation(NamedTuple):
    """An entry of `external_annotations`: a beginning (stage "START") or an end ("END")."""

    time_us: int
    name: str
    stage: str
    device: str


def annotations(snapshot: Snapshot) -> Iterator[Annotation]:
    """Yield the valid annotations of a snapshot."""
    for entry in snapshot.external_annotations:
        if (
            isinstance(entry, dict)
            and type(entry.get("time_us")) is int
            and 0 <= entry["time_us"] < 2**63
            and isinstance(entry.get("name"), str)
            and isinstance(entry.get("stage"), str)
        ):
            yield Annotation(
                entry["time_us"], entry["name"], entry["stage"], str(entry.get("device"))
            )


_PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)")


def step_boundaries(snapshot: Snapshot, device: int) -> Boundaries:
    """Return the boundaries of the steps in a trace.

    pytracer's files contain them. In files of other recorders they are the annotations
    `ProfilerStep#N`, which torch's recorder writes while torch.profiler is on and the recorder was
    started with `global_record_annotations=True`.
    """
    events = len(snapshot.traces[device])
    boundaries = (
        snapshot.metadata.device(device).steps
        if snapshot.metadata.is_pytracers
        else _profiler_steps(snapshot, device)
    )
    return sorted(
        ((step, first) for step, first in boundaries if 0 <= first < events),
        key=lambda boundary: boundary[1],
    )


def step_at(boundaries: Boundaries, event: int) -> int | None:
    """Return the step of an event; None if the event is before the first boundary."""
    after = bisect_right(boundaries, event, key=lambda boundary: boundary[1])
    return boundaries[after - 1][0] if after else None


def steps_at(boundaries: Boundaries, events: Column, before: Column | int = 0) -> Column:
    """Return the step of each event: int64; `before`: of those before the first boundary."""
    steps = np.array([0, *(step for step, _ in boundaries)], np.int64)
    begins = np.array([first for _, first in boundaries], np.int64)
    place = np.searchsorted(begins, events, "right")
    found: Column = np.where(place == 0, before, steps[place])
    return found


def begin_of_step(boundaries: Boundaries, event: int) -> int:
    """Return the first event of the step of an event; 0 if it is before the first boundary."""
    after = bisect_right(boundaries, event, key=lambda boundary: boundary[1])
    return boundaries[after - 1][1] if after else 0


def _profiler_steps(snapshot: Snapshot, device: int) -> Iterator[tuple[int, int]]:
    time_us = snapshot.traces[device].time_us
    if len(time_us) == 0 or time_us.min() == NO_TIME:
        return
    for annotation in annotations(snapshot):
        step = _PROFILER_STEP.fullmatch(annotation.name)
        if step and annotation.stage == "START":
            yield int(step[1][:10]), int(np.searchsorted(time_us, annotation.time_us))


@dataclass
class Span:
    """The time of a step or a phase.

    Attributes:
        name: The name of the phase, or "step 3" or "ProfilerStep#3".
        begin_us, end_us: Times in microseconds since the Unix epoch.
    """

    name: str
    begin_us: int
    end_us: int

    @property
    def is_step(self) -> bool:
        """Whether the span is that of a step."""
        return re.fullmatch(r"step \d+|ProfilerStep#\d+", self.name) is not None


def spans(snapshot: Snapshot) -> list[Span]:
    """Return the steps and phases of a snapshot's annotations.

    An end belongs to the last open beginning of the same name. A span without an end lasts to the
    last annotation, and a span without a beginning starts at the first.
    """
    timed = sorted(annotations(snapshot), key=lambda annotation: annotation.time_us)
    found: list[Span] = []
    unfinished: dict[tuple[str, str], list[Span]] = {}
    for time_us, name, stage, device in timed:
        same = unfinished.setdefault((name, device), [])
        if stage == "START":
            same.append(Span(name, time_us, timed[-1].time_us))
            found.append(same[-1])
        elif stage == "END" and same:
            same.pop().end_us = time_us
        elif stage == "END":
            found.append(Span(name, timed[0].time_us, time_us))
    return found
