"""The steps and phases of a snapshot as spans of time."""

import re
from dataclasses import dataclass

from pytracer.reading.snapshot import Snapshot
from pytracer.reading.steps import annotations

_STEP = re.compile(r"step \d+|ProfilerStep#\d+")


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


def is_step(span: Span) -> bool:
    """Return whether a span is that of a step."""
    return _STEP.fullmatch(span.name) is not None


def spans(snapshot: Snapshot) -> list[Span]:
    """Return the spans of a snapshot's annotations.

    An end belongs to the last open beginning of the same name. A span without an end lasts to the
    last annotation, and a span without a beginning starts at the first.
    """
    timed = sorted(annotations(snapshot), key=lambda annotation: annotation.time_us)
    if not timed:
        return []
    first_us, last_us = timed[0][0], timed[-1][0]
    found: list[Span] = []
    unfinished: dict[tuple[str, str], list[Span]] = {}
    for time_us, name, stage, device in timed:
        same = unfinished.setdefault((name, device), [])
        if stage == "START":
            same.append(Span(name, time_us, last_us))
            found.append(same[-1])
        elif stage == "END" and same:
            same.pop().end_us = time_us
        elif stage == "END":
            found.append(Span(name, first_us, time_us))
    return found
