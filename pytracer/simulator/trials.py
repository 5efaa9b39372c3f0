"""A few settings that are simulated after each out-of-memory error, also in the job itself."""

import numpy as np

from pytracer.analysis.advice import Trial
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.requests import Recording, extract_recording
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import OOM
from pytracer.simulator.deviation import reference_of
from pytracer.simulator.rules import is_checked
from pytracer.simulator.simulate import limits_of, rules_under, simulate_recording
from pytracer.variables import format_settings, parse_settings, with_settings

TRIED: tuple[dict[str, str], ...] = (
    {"expandable_segments": "True"},
    {"max_split_size_mb": "128"},
    {"roundup_power2_divisions": "8"},
)
"""The changes that are tried, the best first. `pytracer recommend` tries more."""


def try_settings(data: DeviceData) -> list[Trial] | None:
    """Simulate a device that ran out of memory under some settings.

    Returns:
        The settings, the first to be advised first; None if there was no out-of-memory, or if
        settings cannot be judged (see `trials_of`).
    """
    if not data.history.is_known or not np.any(data.trace.action == OOM):
        return None
    try:
        return trials_of(extract_recording(data.snapshot, data.device, data.history))
    except PytracerError:  # the CPU, a file of one phase, or settings that are not simulated
        return None


def trials_of(recording: Recording) -> list[Trial] | None:
    """Simulate a recording under some settings that it does not have.

    Returns:
        The settings; None if a simulation of the recording's own settings does not reproduce the
        recording.

    Raises:
        PytracerError: The recording's own settings cannot be simulated.
    """
    reference = reference_of(recording)
    if reference.why_unknown is not None:
        return None
    is_exact = reference.is_exact and is_checked(recording.backend, recording.torch_version)
    own = parse_settings(recording.settings)
    trials = []
    for change in TRIED:
        if change.items() <= own.items():
            continue
        settings = with_settings(recording.settings, change, recording.backend)
        try:
            rules = rules_under(settings, recording)
            done = simulate_recording(recording, rules, limits_of(recording))
        except PytracerError:  # the allocator of this version has no such setting
            continue
        trials.append(Trial(format_settings(change), settings, done.ooms == 0, is_exact))
    return trials
