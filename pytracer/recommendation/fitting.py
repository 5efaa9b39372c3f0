"""Explanations with the settings under which an allocation that failed would have found memory."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data
from pytracer.analysis.explanation import Explanation, explain_device, in_order
from pytracer.analysis.requests import Recording, extract_recording
from pytracer.analysis.suggestions import Suggestion, command_of, joins_segments
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import Snapshot
from pytracer.recommendation.candidates import Choice, name_of, placement, with_choice
from pytracer.recommendation.deviation import reference_of
from pytracer.simulator.recording import Limits, limits_of, simulate_recording
from pytracer.simulator.rules import is_checked, rules_of

TRIED: tuple[Choice, ...] = (
    {"expandable_segments": "True"},
    {"max_split_size_mb": "128"},
    {"roundup_power2_divisions": "8"},
)
"""The settings that an explanation tries; `pytracer recommend` tries more."""


def explain_with_settings(snapshot: Snapshot, device: int | None = None) -> list[Explanation]:
    """Explain a snapshot as `explain`, and simulate its last out-of-memory under some settings.

    Only where a simulation of the recording's own settings equals the recording after each request
    and runs out of memory at the same requests, `fitting_settings` is set. Arguments and errors are
    those of `explain`.
    """
    data = (device_data(snapshot, index) for index in chosen_devices(snapshot, device))
    return in_order([with_settings(each, explain_device(each)) for each in data])


def with_settings(data: DeviceData, explanation: Explanation) -> Explanation:
    """Return the explanation of a device with its `fitting_settings`, as far as they are known."""
    if explanation.oom is None or data.history is None:
        return explanation
    try:
        recording = extract_recording(data.snapshot, data.device, data.history)
        if not is_checked(recording.backend, recording.torch_version) or not _is_exact(recording):
            return explanation
        found = _fitting(recording)
    except PytracerError:  # the CPU, a file of one phase, or settings that are not simulated
        return explanation
    suggestions = [each for each in explanation.suggestions if not joins_segments(each)]
    if found:
        choice = found[0]
        settings = with_choice(recording.settings, choice)
        command = command_of(
            settings, recording.backend, recording.torch_version, recording.settings
        )
        why = (
            f"With {name_of(choice)}, the allocation would have found memory, in a simulation of "
            "the recorded requests. What the program would have allocated next is unknown."
        )
        suggestions.insert(0, Suggestion(command, why))
    return replace(
        explanation,
        fitting_settings=[name_of(choice) for choice in found],
        suggestions=suggestions,
    )


def _is_exact(recording: Recording) -> bool:
    """Return whether a simulation of the recording's own settings equals the recording."""
    if not recording.starts_empty or recording.limit_bytes is None:
        return False
    return reference_of(recording).is_exact


def _fitting(recording: Recording) -> list[Choice]:
    """Return the choices under which every allocation finds memory, the best first."""
    limits, own = limits_of(recording), placement(recording.settings)
    choices = [choice for choice in TRIED if not choice.items() <= own.items()]
    with ThreadPoolExecutor(len(TRIED)) as pool:
        fits = pool.map(lambda choice: _fits(recording, choice, limits), choices)
        return [choice for choice, is_fitting in zip(choices, fits, strict=True) if is_fitting]


def _fits(recording: Recording, choice: Choice, limits: Limits) -> bool:
    try:
        rules = rules_of(
            with_choice(recording.settings, choice), recording.backend, recording.torch_version
        )
    except PytracerError:  # the allocator of this version has no such setting
        return False
    done = simulate_recording(recording, rules, limits)
    return done.ooms == 0
