"""A few changes that are simulated after each out-of-memory error, also in the job itself."""

import contextlib
from dataclasses import replace
from functools import cached_property

import numpy as np

from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.oom.trials import Trial
from pytracer.analysis.requests import (
    ALLOCATE,
    EMPTY_CACHE,
    FREE,
    RELEASE_POOL,
    Recording,
    block_order,
    extract_recording,
)
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import OOM, Column
from pytracer.simulator.deviation import reference_of
from pytracer.simulator.rest_of_step import Continued, continued
from pytracer.simulator.rules import is_checked
from pytracer.simulator.simulate import (
    Limits,
    begins_as_recorded,
    limits_of,
    rules_under,
    simulate_recording,
)
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
            with contextlib.suppress(PytracerError):  # this allocator has no such setting
                name = format_settings(change)
                found.append(self._trial(self._continued, settings=settings, name=name))
        return found

    @property
    def like(self) -> str:
        """The step that the rest of the last one is taken from, as in "step 3".

        "": it is unknown, or not needed, because the program went on.
        """
        later = self._recording.requests.kind[self._continued.failing :]
        return "" if (later == ALLOCATE).any() else self._continued.like or ""

    def recording(self) -> Recording:
        """Return the recording with the rest of its last step, if that is known."""
        begun = self._continued
        if not self.like:
            return self._recording
        return replace(self._recording, requests=begun.requests(end=begun.ends[0]))

    def without(self, rows: Column) -> Trial:
        """Simulate that these blocks of the history were free when the allocation failed."""
        order = block_order(self._recording.history.blocks)
        begun = self._continued.after(FREE, block=np.flatnonzero(np.isin(order, rows)))
        return self._trial(begun)

    def without_limit(self) -> Trial:
        """Simulate that the process may take all that is free on the device."""
        recording = self._recording
        event = int(np.flatnonzero(recording.trace.action == OOM)[-1])
        free_bytes = int(recording.trace.address[event])
        device_bytes = int(recording.history.usage.reserved_bytes[event]) + free_bytes
        return self._trial(self._continued, limits=Limits(None, device_bytes))

    def without_other_pools(self) -> Trial:
        """Simulate that other pools are given up just before the allocation that failed."""
        begun = self._continued
        own, start = int(begun.rows["pool"][begun.failing]), begun.recorded.start
        pools = np.unique(np.append(begun.rows["pool"], [] if start is None else start.pool))
        freed = begun.after(RELEASE_POOL, pool=pools[(pools != own) & (pools > 0)])
        return self._trial(freed.after(EMPTY_CACHE, pool=np.zeros(int(own > 0), np.int64)))

    def in_one_pool(self) -> Trial | None:
        """Simulate that private pools are that of the allocation that failed; or else are one."""
        rows = self._continued.rows.copy()
        failing = rows[self._continued.failing]
        is_private = (rows["pool"] > 0) & (rows["kind"] != RELEASE_POOL)
        pools = np.unique(rows["pool"][is_private])
        # Graphs share a pool, and do not have the default one.
        if failing["pool"] == 0 and len(pools) < 2:
            return self._trial(self._continued)
        rows["stream"][is_private] = failing["stream"]
        rows["pool"][is_private] = failing["pool"] or pools[0]
        return self._placed(rows)

    def on_same_streams(self, *, in_turn: bool) -> Trial | None:
        """Simulate that each step uses the same streams, or one for all that it uses in turn."""
        rows, begins = self._continued.rows.copy(), [first for _, first in self._data.boundaries]
        used = np.flatnonzero((rows["kind"] == ALLOCATE) & (rows["stream"] > 0))
        _, first, which = np.unique(rows["stream"][used], return_index=True, return_inverse=True)
        order = np.argsort(first)
        step = np.searchsorted(begins, rows["event"][used[first[order]]], "right")
        place = np.ones(len(order), np.int64)
        if not in_turn:  # the n-th stream that a step begins with is the n-th one in each step
            place[order] += np.arange(len(order)) - np.searchsorted(step, step)
        rows["stream"][used] = place[which]
        return self._placed(rows)

    def _placed(self, rows: Column) -> Trial | None:
        """Simulate requests of other pools or streams, all anew; None: that alone helps."""
        begun = self._continued
        fresh = replace(begun, recorded=replace(begun.recorded, start=None))
        if begun.recorded.start is not None and not self._trial(fresh).is_refuted:
            return None
        return self._trial(replace(fresh, rows=rows))

    def fitting_bytes(self) -> int | None:
        """Return what the line may request at most, with a smaller input; None: unknown.

        The inputs are between that of the step that the rest is taken from and that which failed.
        """
        begun = self._continued
        names = ("small_bytes", "size_bytes")
        least, asked = (int(begun.rows[name][begun.failing]) for name in names)
        if not begun.is_growth_known or not begun.like or not 0 < least < asked:
            return None
        low, high = -1, _PARTS  # of which low fits, and high does not
        while high - low > 1:
            middle = (low + high) // 2
            fits = self._trial(begun, part=middle / _PARTS).is_proven
            low, high = (middle, high) if fits else (low, middle)
        return None if low < 0 else int(least * (asked / least) ** (low / _PARTS))

    def _trial(
        self,
        begun: Continued,
        *,
        settings: str | None = None,
        name: str = "",
        part: float = 1.0,
        limits: Limits | None = None,
    ) -> Trial:
        requests = begun.requests(part)
        recording = replace(self._recording, requests=requests)
        settings = recording.settings if settings is None else settings
        rules, limits = rules_under(settings, recording), limits or limits_of(recording)
        done = simulate_recording(recording, rules, limits, with_curve=True)
        assert done.allocated_bytes is not None
        failed = len(requests) if done.failed_request is None else done.failed_request
        again, later = "", 0
        until = begun.ends[0] if begun.ends else begun.failing + 1
        peak_bytes = int(done.allocated_bytes[begun.failing : until].max())
        if done.failed_request is not None:
            asked_bytes = int(requests.size_bytes[failed])
            if begun.failing < failed < until:
                peak_bytes = max(peak_bytes, int(done.allocated_bytes[failed - 1]) + asked_bytes)
            stack, stacks = int(begun.rows["stack"][failed]), self._data.snapshot.stacks
            site = self._data.chains.site(stack)
            node = stacks.strings[stacks.node[stack]]
            where = f"in {node}" if site is None and node else f"at {call_site_text(site)}"
            again = f"{size(asked_bytes)} {where}"
            later = int(np.count_nonzero(requests.kind[begun.failing : failed] == ALLOCATE))
        # A setting would have been there when earlier allocations failed.
        has_earlier = bool(name) and bool((done.oom_requests < begun.failing).any())
        steps = sum(end <= failed for end in begun.ends)
        before, after = done.allocated_bytes[[begun.failing - 1, (begun.ends or [0])[-1] - 1]]
        grows = begun.like == "" and after > before
        # Without its start, older blocks are not in the segments that the recording had.
        start = self._recording.requests.start
        has_start = requests.start is start and (
            start is None or begins_as_recorded(requests, rules)
        )
        return Trial(
            name=name,
            settings=settings,
            fits=failed > begun.failing and not has_earlier,
            is_exact=self._is_exact and has_start,
            like=begun.like,
            steps=steps,
            is_all=steps == len(begun.ends) and not grows,
            later=later,
            again=again,
            peak_bytes=peak_bytes,
            limit_bytes=limits.device_bytes or limits.fraction_bytes,
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
