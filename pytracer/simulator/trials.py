"""A few changes that are simulated after each out-of-memory error, also in the job itself."""

from dataclasses import replace
from functools import cached_property

import numpy as np

from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.oom.trials import Trial
from pytracer.analysis.requests import (
    ALLOCATE,
    Recording,
    block_order,
    extract_recording,
)
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import OOM, Column
from pytracer.simulator.deviation import reference_of
from pytracer.simulator.rest_of_step import Continued, continued
from pytracer.simulator.rules import AllocatorRules, is_checked
from pytracer.simulator.simulate import limits_of, own_rules, rules_under, simulate_recording
from pytracer.text import size
from pytracer.variables import format_settings, parse_settings, with_settings

TRIED: tuple[dict[str, str], ...] = (
    {"expandable_segments": "True"},
    {"max_split_size_mb": "128"},
    {"roundup_power2_divisions": "8"},
)
"""The changes that are tried, the best first. `pytracer recommend` tries more."""

_PARTS = 64  # how finely the size of an input that fits is searched


class SimulatedOom:
    """An out-of-memory that can be simulated: a `Simulation`."""

    def __init__(self, data: DeviceData, recording: Recording, *, is_exact: bool) -> None:
        """Continue the recording with the rest of its last step."""
        self._data, self._recording, self._is_exact = data, recording, is_exact
        self._continued = continued(data, recording)

    @cached_property
    def trials(self) -> list[Trial]:
        """The settings that the recording does not have, the first to be advised first."""
        recording, own = self._recording, parse_settings(self._recording.settings)
        found = []
        for change in TRIED:
            if change.items() <= own.items():
                continue
            settings = with_settings(recording.settings, change, recording.backend)
            try:
                rules = rules_under(settings, recording)
                found.append(self._trial(self._continued, rules, format_settings(change), settings))
            except PytracerError:  # the allocator of this version has no such setting
                continue
        return found

    def without(self, rows: Column) -> Trial:
        """Simulate that these blocks of the history were free when the allocation failed."""
        order = block_order(self._recording.history.blocks)
        blocks = np.flatnonzero(np.isin(order, rows))
        rules = own_rules(self._recording)
        return self._trial(self._continued.without(blocks), rules, "", self._recording.settings)

    def fitting_bytes(self) -> int | None:
        """Return what the line may request at most, with a smaller input; None: unknown.

        The inputs are between that of the step that the rest is taken from and that which failed.
        """
        begun, rules = self._continued, own_rules(self._recording)
        if not begun.like or not len(begun.smaller):
            return None
        asked = int(begun.requests.size_bytes[begun.failing])
        least = int(begun.smaller[begun.failing - begun.begin])
        if not 0 < least < asked:
            return None
        low, high = -1, _PARTS  # of which low fits, and high does not
        while high - low > 1:
            middle = (low + high) // 2
            trial = self._trial(begun.at(middle / _PARTS), rules, "", self._recording.settings)
            low, high = (middle, high) if trial.is_proven else (low, middle)
        return None if low < 0 else int(least * (asked / least) ** (low / _PARTS))

    def _trial(self, begun: Continued, rules: AllocatorRules, name: str, settings: str) -> Trial:
        recording = replace(self._recording, requests=begun.requests)
        done = simulate_recording(recording, rules, limits_of(recording), with_curve=True)
        assert done.allocated_bytes is not None
        failed = len(begun.requests) if done.failed_request is None else done.failed_request
        again, later = "", 0
        if done.failed_request is not None:
            stack, stacks = int(begun.stack[failed]), self._data.snapshot.stacks
            site = self._data.chains.site(stack)
            node = stacks.strings[stacks.node[stack]]
            where = f"in {node}" if site is None and node else f"at {call_site_text(site)}"
            again = f"{size(int(begun.requests.size_bytes[failed]))} {where}"
            later = int(np.count_nonzero(begun.requests.kind[begun.failing : failed] == ALLOCATE))
        steps = sum(end <= failed for end in begun.ends)
        until = begun.ends[0] if begun.ends else begun.failing + 1
        return Trial(
            name=name,
            settings=settings,
            fits=failed > begun.failing and not (done.oom_requests < begun.failing).any(),
            is_exact=self._is_exact,
            like=begun.like,
            steps=steps,
            is_all=steps == len(begun.ends),
            later=later,
            again=again,
            peak_bytes=int(done.allocated_bytes[begun.failing : until].max()),
            limit_bytes=recording.limit_bytes,
        )


def try_settings(data: DeviceData) -> SimulatedOom | None:
    """Return what simulates a device that ran out of memory.

    Returns:
        None if there was no out-of-memory, or if a simulation of the recording's own settings does
        not reproduce the recording, so that other settings cannot be judged.
    """
    if not data.history.is_known or not np.any(data.trace.action == OOM):
        return None
    try:
        recording = extract_recording(data.snapshot, data.device, data.history)
        reference = reference_of(recording)
    except PytracerError:  # the CPU, a file of one phase, or settings that are not simulated
        return None
    if reference.why_unknown is not None:
        return None
    is_exact = reference.is_exact and is_checked(recording.backend, recording.torch_version)
    return SimulatedOom(data, recording, is_exact=is_exact)
