"""How much memory a recording needs under settings, by the simulator."""

from reference_history import MIB

from pytracer.analysis.requests import Recording
from pytracer.simulator.rules import rules_of
from pytracer.simulator.simulate import simulate

JOINED = "expandable_segments:True"


def fits(recording: Recording, settings: str, memory_bytes: int) -> bool:
    rules = rules_of(settings, recording.backend, recording.torch_version)
    done = simulate(recording.requests, rules, limit_bytes=None, device_bytes=memory_bytes)
    return done.ooms == 0


def peak_bytes(recording: Recording, settings: str) -> int:
    rules = rules_of(settings, recording.backend, recording.torch_version)
    done = simulate(recording.requests, rules, limit_bytes=None, device_bytes=None)
    return int(done.peak_reserved_bytes)


def least_device(recording: Recording, settings: str) -> int:
    """Return the least memory, to 2 MiB, with which every allocation finds memory."""
    low, high = 0, peak_bytes(recording, settings)
    while high - low > 2 * MIB:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(recording, settings, middle) else (middle, high)
    return high
