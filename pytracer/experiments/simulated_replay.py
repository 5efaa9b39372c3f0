"""Replay the requests of a recording with the simulator, which needs no device and no torch."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pytracer.analysis.requests import ALLOCATE, FAIL, FREE, Recording
from pytracer.errors import ConfigError, PytracerError
from pytracer.experiments.comparison import Curve, Failures, Outcome, Setting
from pytracer.experiments.replay_result import Answers, Replayed
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


def own_rules(recording: Recording) -> AllocatorRules:
    """Return the rules of the allocator that made a recording.

    Raises:
        PytracerError: The recording's own settings cannot be simulated.
    """
    try:
        return rules_of(recording.settings, recording.backend, recording.torch_version)
    except ConfigError as error:
        raise PytracerError(
            f"the recording's own settings cannot be simulated: {error}. `pytracer replay --real` "
            "asks the real allocator of a device"
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


def run_simulation(
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


def replay_with_simulator(
    recording: Recording,
    changed: Recording,
    settings: Sequence[Setting],
    capacity_bytes: int | None,
    on_progress: Callable[[str], None],
) -> Answers:
    """Replay under each setting, the recording's own first, with the simulator.

    Args:
        recording: The recording.
        changed: The recording with the requests to replay.
        settings: The settings, to which the outcomes are added.
        capacity_bytes: How much the allocator may reserve; None: as much as in the recording.
        on_progress: Called with each setting's name when its replay begins.

    Raises:
        PytracerError: The recording's own settings cannot be simulated.
        ConfigError: The allocator refuses another setting.
    """
    rules = [own_rules(recording)]
    rules += [
        rules_of(setting.settings, recording.backend, recording.torch_version)
        for setting in settings[1:]
    ]
    limits = limits_of(recording, capacity_bytes)
    replayed = []
    for setting, its_rules in zip(settings, rules, strict=True):
        on_progress(setting.name)
        replayed.append(simulate_setting(setting, changed, its_rules, limits))
    reference = replayed[0]
    if changed is not recording or limits != limits_of(recording):
        again = Setting(settings[0].name, settings[0].settings)
        reference = simulate_setting(again, recording, rules[0], limits_of(recording))
    note = version_note(recording)
    limit_bytes = recording.limit_bytes if capacity_bytes is None else capacity_bytes
    return Answers(replayed, reference, limit_bytes, "", [] if note is None else [note])


def simulate_setting(
    setting: Setting, recording: Recording, rules: AllocatorRules, limits: Limits
) -> Replayed:
    """Simulate a recording under one setting, and add the outcome to the setting."""
    began = time.perf_counter()
    done = run_simulation(recording, rules, limits, with_curve=True)
    seconds = time.perf_counter() - began
    setting.outcomes.append(_outcome(done, recording, limits, seconds))
    requests, failed = recording.requests, done.failed_request
    return Replayed(
        setting=setting,
        curve=_curve(done, recording),
        failed_event=None if failed is None else int(requests.event[failed]),
        failed_bytes=None if failed is None else int(requests.size_bytes[failed]),
        end_reserved_bytes=done.end_reserved_bytes,
        end_allocated_bytes=done.end_allocated_bytes,
        limit_bytes=limits.fraction_bytes,
        fitted=done.fitted,
        freed_early=done.freed_early,
        asked_s=seconds,
    )


def _curve(done: Simulated, recording: Recording) -> Curve:
    assert done.reserved_bytes is not None
    assert done.allocated_bytes is not None
    requests, ooms = recording.requests, done.oom_requests
    end = len(requests) if done.failed_request is None else done.failed_request
    (answered,) = np.nonzero(np.isin(requests.kind[:end], (ALLOCATE, FREE)))
    failures = Failures(ooms, requests.size_bytes[ooms], done.reserved_bytes[ooms])
    return Curve(answered, done.reserved_bytes[answered], done.allocated_bytes[answered], failures)


def _outcome(done: Simulated, recording: Recording, limits: Limits, seconds: float) -> Outcome:
    assert done.reserved_bytes is not None
    assert done.allocated_bytes is not None
    requests, ooms = recording.requests, done.oom_requests
    last = int(ooms[-1]) if len(ooms) else None
    asks = requests.kind[np.isin(requests.kind, (ALLOCATE, FAIL))]
    reserved, allocated = done.reserved_bytes, done.allocated_bytes
    return Outcome(
        peak_reserved_bytes=done.peak_reserved_bytes,
        peak_allocated_bytes=done.peak_allocated_bytes,
        peak_unallocated_bytes=done.peak_unallocated_bytes,
        oom_unallocated_bytes=None if last is None else int(reserved[last] - allocated[last]),
        oom_reserved_bytes=None if last is None else int(reserved[last]),
        oom_requested_bytes=None if last is None else int(requests.size_bytes[last]),
        limit_bytes=limits.device_bytes if limits.fraction_bytes is None else limits.fraction_bytes,
        device_allocs=done.device_allocs + done.maps,
        retries=done.retries,
        ooms=done.ooms,
        wall_s=seconds,
        ended_early=done.failed_request is not None or bool(len(asks) and asks[-1] == FAIL),
    )
