"""Simulates the requests of a recording, under its own settings or others."""

from dataclasses import dataclass

from pytracer.analysis.requests import Recording
from pytracer.errors import ConfigError, PytracerError
from pytracer.simulator.rules import AllocatorRules, is_checked, rules_of
from pytracer.simulator.simulate import Simulated, simulate


@dataclass(frozen=True)
class Limits:
    """How much memory a simulated allocator has.

    Attributes:
        fraction_bytes: The limit of the process (`set_per_process_memory_fraction`); None: none.
        device_bytes: What the device has for the allocator; None: more than it can use.
    """

    fraction_bytes: int | None
    device_bytes: int | None


def limits_of(recording: Recording, capacity_bytes: int | None = None) -> Limits:
    """Return the limits of a recording, or the same kind of limit with another capacity."""
    limit_bytes = recording.limit_bytes if capacity_bytes is None else capacity_bytes
    if recording.fraction_bytes is not None:
        return Limits(limit_bytes, None)
    return Limits(None, limit_bytes)


def rules_under(settings: str, recording: Recording) -> AllocatorRules:
    """Return the rules of a recording's allocator under other settings (see `rules_of`)."""
    return rules_of(settings, recording.backend, recording.torch_version)


def own_rules(recording: Recording) -> AllocatorRules:
    """Return the rules of the allocator that made a recording.

    Raises:
        PytracerError: The recording's own settings cannot be simulated.
    """
    try:
        return rules_under(recording.settings, recording)
    except ConfigError as error:
        raise PytracerError(
            f"the recording's own settings cannot be simulated: {error}. `pytracer experiment` "
            "runs the program under other settings"
        ) from error


def version_note(recording: Recording) -> str | None:
    """Return a sentence if no test has compared the simulator with the recording's allocator."""
    if is_checked(recording.backend, recording.torch_version):
        return None
    name = "torch_npu" if recording.backend == "npu" else "torch"
    if recording.torch_version is None:
        return (
            f"The file does not have the version of {name}. The simulator follows the rules of the "
            "newest version that it knows."
        )
    return (
        f"Unchecked: no test has compared the simulator with the allocator of {name} "
        f"{recording.torch_version}."
    )


def simulate_recording(
    recording: Recording, rules: AllocatorRules, limits: Limits, *, with_curve: bool = False
) -> Simulated:
    """Simulate the requests of a recording; with `with_curve`, with the usage after each.

    Raises:
        PytracerError: A request has a value that no allocator can get, as in a damaged file.
    """
    try:
        return simulate(
            recording.requests,
            rules,
            limit_bytes=limits.fraction_bytes,
            device_bytes=limits.device_bytes,
            with_curve=with_curve,
        )
    except ValueError as error:
        raise PytracerError(
            f"the requests of {recording.name} cannot be simulated: {error}"
        ) from error
