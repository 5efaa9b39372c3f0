"""How far a simulation of a recording's own settings is from the recording: the error bar."""

from dataclasses import dataclass

import numpy as np

from pytracer.analysis.requests import ALLOCATE, FAIL, FREE, Recording
from pytracer.simulator.simulate import Simulated, limits_of, own_rules, simulate_recording
from pytracer.text import number, size

LARGE = 0.05
"""The deviation of the peaks from which there is no answer, as a share of the recording's peak."""


@dataclass(frozen=True)
class Deviation:
    """How far the simulation of a recording's own settings and limit is from the recording.

    The deviation is the error bar of all simulations of the recording. It compares reserved bytes.

    Attributes:
        requests: The number of compared allocations and frees.
        equal: After how many of them both have reserved the same.
        missed: The number of allocations and frees that the simulation did not reach.
        largest_bytes: The largest difference; positive: the simulation has reserved more.
        largest_event: The event of the recording with the largest difference; None: there is no
            difference.
        mean_bytes: The mean of the absolute differences.
        peak_bytes: The difference of the peaks.
        peak_share: The difference of the peaks as a share of the recording's peak.
    """

    requests: int
    equal: int
    missed: int
    largest_bytes: int
    largest_event: int | None
    mean_bytes: float
    peak_bytes: int
    peak_share: float

    @property
    def is_none(self) -> bool:
        """Whether both reserved the same after each request."""
        return self.equal == self.requests and not self.missed


@dataclass(frozen=True)
class Reference:
    """The simulation of a recording's own settings, compared with the recording."""

    deviation: Deviation  # how far the simulation is from the recording
    # Why the recording says nothing about other settings, as a clause; None if the simulation
    # reproduces the recording.
    why_unknown: str | None

    @property
    def is_exact(self) -> bool:
        """Whether both reserved the same after each request, and ran out at the same requests."""
        return self.why_unknown is None and self.deviation.is_none


def reference_of(recording: Recording, capacity_bytes: int | None = None) -> Reference:
    """Simulate a recording under its own settings and limit, and compare the two.

    Args:
        capacity_bytes: The limit to assume if memory does not run out under the recording's limit
            where it ran out in the recording, so that this limit was another one; None: unknown.

    Raises:
        PytracerError: The recording's own settings cannot be simulated.
    """
    rules = own_rules(recording)
    done = simulate_recording(recording, rules, limits_of(recording), with_curve=True)
    if done.fitted and capacity_bytes is not None:
        limits = limits_of(recording, capacity_bytes)
        limited = simulate_recording(recording, rules, limits, with_curve=True)
        if limited.failed_request is None and not limited.fitted:
            done = limited
    deviation = deviation_of(recording, done)
    return Reference(deviation, _why_unknown(recording, done, deviation))


def deviation_of(recording: Recording, done: Simulated) -> Deviation:
    """Compare a recording with a simulation that has the bytes after each request."""
    assert done.reserved_bytes is not None
    requests, usage = recording.requests, recording.history.usage
    is_in_trace = (requests.event >= 0) & np.isin(requests.kind, (ALLOCATE, FREE))
    (compared,) = np.nonzero(is_in_trace)
    end = len(requests) if done.failed_request is None else done.failed_request
    reached = compared[compared < end]
    event = requests.event[reached]
    difference = done.reserved_bytes[reached] - usage.reserved_bytes[event + 1]
    is_equal = not np.any(difference)
    largest = 0 if is_equal else int(np.argmax(np.abs(difference)))
    peak_bytes = int(usage.reserved_bytes.max())
    return Deviation(
        requests=len(difference),
        equal=int(np.count_nonzero(difference == 0)),
        missed=len(compared) - len(reached),
        largest_bytes=0 if is_equal else int(difference[largest]),
        largest_event=None if is_equal else int(event[largest]),
        mean_bytes=float(np.abs(difference).mean()) if len(difference) else 0.0,
        peak_bytes=done.peak_reserved_bytes - peak_bytes,
        peak_share=(done.peak_reserved_bytes - peak_bytes) / peak_bytes,
    )


def _why_unknown(recording: Recording, done: Simulated, deviation: Deviation) -> str | None:
    """Return why a recording says nothing about other settings, as a clause; None if it does."""
    own, requests = "the simulation of the recording's own settings", recording.requests
    if done.failed_request is not None:
        event = int(requests.event[done.failed_request])
        when = f"at event {event:,}" if event >= 0 else "for blocks that are older than the trace"
        return (
            f"{own} runs out of memory {when}, at a request for "
            f"{size(int(requests.size_bytes[done.failed_request]))}, but the recording did not"
        )
    if done.fitted:
        failed = number(int(np.count_nonzero(requests.kind == FAIL)), "allocation")
        return f"of {failed} that failed in the recording, {done.fitted} succeeded in {own}"
    if abs(deviation.peak_share) > LARGE:
        return (
            f"{own} reserves {size(done.peak_reserved_bytes)} at the peak; the recording "
            f"reserved {size(done.peak_reserved_bytes - deviation.peak_bytes)}"
        )
    return None


def deviation_text(deviation: Deviation) -> str:
    """Return how near a simulation is to the recording, in a few sentences."""
    compared = number(deviation.requests, "allocation and free", "allocations and frees")
    if deviation.is_none:
        return (
            "The simulation is exact: with the recording's settings and limit, it reserves as much "
            f"as the recording did after each of {compared}."
        )
    event, missed = deviation.largest_event, ""
    largest = "" if event is None else f" (event {event:,})"
    if deviation.missed:
        missed = (
            f" That simulation lacks the last {deviation.missed:,} allocations and frees of the "
            "recording."
        )
    share = f"{deviation.peak_share:+.1%}".replace("%", " %")
    return (
        f"Error bar: {size(abs(deviation.peak_bytes))} ({share}). A simulation with the "
        "recording's own settings and limit is off by this much at its peak, and after each "
        f"request by {size(round(deviation.mean_bytes))} on average and "
        f"{size(abs(deviation.largest_bytes))} at most{largest}. Smaller differences between "
        f"settings mean nothing.{missed}"
    )
