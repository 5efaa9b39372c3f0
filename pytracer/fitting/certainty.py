"""How sure a prediction is: recordings as they are predicted, the bounds, and what they decide."""

from collections.abc import Sequence

import numpy as np

from pytracer.fitting.alignment import Recorded
from pytracer.fitting.prediction import LEAST, MOST, NO_LIMITS, Peak, Program, peaks, recorded_peak
from pytracer.fitting.results import (
    DOES_NOT_FIT,
    FITS,
    NO_DEVICE,
    UNKNOWN,
    CheckedFile,
    Prediction,
)
from pytracer.fitting.sizes import are_independent
from pytracer.simulator.rules import AllocatorRules
from pytracer.simulator.simulate import own_rules, simulate_recording

MOST_UNCERTAIN = 0.5
"""The largest distance of a bound from the peak, as a part of the peak, that is an answer."""


def checked_files(
    files: Sequence[Recorded], parts: Sequence[Recorded], program: Program
) -> list[CheckedFile]:
    """Compare recordings with what is predicted for them.

    The largest recording that the others do not need is also predicted by the others alone. Where
    parts were made of recordings, the requests of the recordings are simulated.
    """
    found = []
    foretold = _foretold(parts, program.variables) if len(files) == len(parts) else {}
    for file in files:
        part = next(part for part in parts if part.snapshot is file.snapshot)
        if len(files) == len(parts):
            predicted = _peak(program, part)
        else:
            rules = own_rules(file.recording)
            done = simulate_recording(file.recording, rules, NO_LIMITS, with_curve=True)
            predicted = peaks(file, done)["all"]
        found.append(
            CheckedFile(
                path=file.path,
                sizes=part.sizes,
                recorded=recorded_peak(file),
                predicted=predicted,
                foretold=foretold.get(file.path),
                unmatched=program.unmatched[file.path],
            )
        )
    return found


def _foretold(parts: Sequence[Recorded], variables: Sequence[str]) -> dict[str, Peak]:
    """Return by path what the others predict for the largest recording that they do not need."""
    for file in sorted(parts, key=lambda file: -np.prod([file.sizes[name] for name in variables])):
        others = [other for other in parts if other is not file]
        if variables and are_independent([other.sizes for other in others], variables):
            return {file.path: _peak(Program(others, variables), file)}
    return {}


def _peak(program: Program, file: Recorded) -> Peak:
    return peaks(program.base, program.simulate(file.sizes, own_rules(file.recording)))["all"]


def bounds_of(
    program: Program, rules: AllocatorRules, target: Prediction, checked: Sequence[CheckedFile]
) -> tuple[Peak, Peak]:
    """Return the bounds of the target's peak: what is unknown of requests, and the deviations.

    Where sizes depend on values, so does what is reserved and not allocated: it may be none, and at
    most as much as in any of the simulations more than what is allocated.
    """
    possible = [target.peak]
    if program.has_bounds:
        for which in (LEAST, MOST):
            done = program.simulate(target.sizes, rules, which=which)
            possible.append(peaks(program.base, done)["all"])
    allocated = [peak.allocated_bytes for peak in possible]
    reserved = [peak.reserved_bytes for peak in possible]
    if len(program.varying):
        unused = max(two - one for one, two in zip(allocated, reserved, strict=True))
        reserved += [min(allocated), max(allocated) + unused]
    share = max(
        abs(getattr(one, name) / max(getattr(file.recorded, name), 1) - 1)
        for file in checked
        for one in (file.predicted, file.foretold or file.predicted)
        for name in ("allocated_bytes", "reserved_bytes")
    )
    least, most = (
        Peak(*(round(bound(column) * (1 + sign * share)) for column in (allocated, reserved)))
        for bound, sign in ((min, -1), (max, 1))
    )
    return least, most


def kind_of(room_bytes: int | None, target: Prediction, least: Peak, most: Peak) -> str:
    """Return whether the target fits, as `Fit.kind`."""
    reserved = target.peak.reserved_bytes
    if max(most.reserved_bytes - reserved, reserved - least.reserved_bytes) > (
        MOST_UNCERTAIN * reserved
    ):
        return UNKNOWN
    if room_bytes is None:
        return NO_DEVICE
    # What is reserved is more than what has to be.
    is_near = least != most and (
        most.allocated_bytes > room_bytes if target.fits else least.reserved_bytes <= room_bytes
    )
    if is_near:
        return UNKNOWN
    return FITS if target.fits else DOES_NOT_FIT
