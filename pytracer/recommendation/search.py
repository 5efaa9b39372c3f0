"""The search for the best settings: simulations of a coarse grid, then around the best."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from pytracer.analysis.requests import ALLOCATE, FAIL, FREE, LEAVE, Recording, Requests
from pytracer.errors import ConfigError
from pytracer.fleet.memory_budget import cores
from pytracer.recommendation.results import TriedSetting
from pytracer.simulator.simulate import Limits, Simulated, rules_under, simulate_recording
from pytracer.variables import format_settings, merge_settings, parse_settings

ROUNDS = 2  # how often the neighbours of the best settings are tried

UNIT_BYTES = 2 << 20
"""The resolution of the smallest device, or a `RESOLUTION`th of it if that is more."""

RESOLUTION = 500

NEARLY = 0.01
"""Peaks that differ by less than this share are taken for equal: the cheaper setting wins."""


EXPANDABLE = "expandable_segments"
SPLIT = "max_split_size_mb"
DIVISIONS = "roundup_power2_divisions"
COLLECTION = "garbage_collection_threshold"
SEGMENT = "large_segment_size_mb"
ROUNDING = "max_non_split_rounding_mb"

PLACEMENT = (EXPANDABLE, SPLIT, DIVISIONS, COLLECTION, SEGMENT, ROUNDING)
"""The settings that are searched. All other settings stay as the recording has them."""

Choice = dict[str, str]  # the values of the settings in `PLACEMENT` that differ from the defaults

_SPLITS = (32, 64, 128, 256, 512, 1024)
_DIVISIONS = (2, 4, 8, 16)
_SEGMENTS = (40, 80)


class Search:
    """The simulations of one recording."""

    def __init__(self, recording: Recording, limits: Limits) -> None:
        self._recording, self._limits = recording, limits
        self._needed = needed_bytes(recording.requests)

    def own(self) -> TriedSetting:
        """Simulate the recording's own settings.

        Raises:
            ConfigError: The simulator does not know these settings.
        """
        return self.of_settings(self._recording.settings, self._recording.own_name)

    def others(self, own: TriedSetting, on_progress: Callable[[int], None]) -> list[TriedSetting]:
        """Simulate the grid, and the neighbours of the best settings.

        After each simulation, `on_progress` is called with the number of settings.
        """
        found, seen = [own], [placement(own.settings)]
        with ThreadPoolExecutor(cores()) as pool:

            def try_all(choices: Iterable[Choice]) -> None:
                new: list[Choice] = []
                for choice in choices:
                    if choice not in seen:
                        seen.append(choice)
                        new.append(choice)
                for tried in filter(None, pool.map(self._of_choice, new)):
                    found.append(tried)
                    on_progress(len(found))

            try_all(coarse_grid(self._limits.fraction_bytes is not None))
            for _ in range(ROUNDS):
                best = min(found, key=lambda tried: tried.rank)
                try_all(neighbours(placement(best.settings)))
        return found[1:]

    def given(self, changes: Iterable[str]) -> list[TriedSetting]:
        """Simulate changes of the recording's settings, such as "expandable_segments:True".

        Raises:
            ConfigError: The allocator refuses one.
        """
        own = self._recording.settings
        return [self.of_settings(merge_settings(own, change), change) for change in changes]

    def of_settings(self, settings: str, name: str) -> TriedSetting:
        """Simulate settings in the form of the variable.

        Raises:
            ConfigError: The allocator refuses them.
        """
        recording = self._recording
        rules, requests = rules_under(settings, recording), recording.requests
        done = simulate_recording(recording, rules, self._limits, with_curve=True)
        failed, ooms = done.failed_request, done.oom_requests
        assert done.reserved_bytes is not None
        assert done.allocated_bytes is not None
        unallocated = done.reserved_bytes[ooms] - done.allocated_bytes[ooms]
        return TriedSetting(
            name=name,
            settings=settings,
            fits=done.ooms == 0,
            ooms=done.ooms,
            # The rest of the step has no events: it ended with the error.
            failed_event=None if failed is None else int(requests.event[: failed + 1].max()),
            failed_bytes=int(requests.size_bytes[ooms[-1]]) if len(ooms) else None,
            peak_reserved_bytes=done.peak_reserved_bytes,
            waste_bytes=done.peak_reserved_bytes - done.allocated_at_peak_bytes,
            waste_at_oom_bytes=int(unallocated[-1]) if len(ooms) else None,
            retries=done.retries,
            device_allocs=done.device_allocs,
            device_frees=done.device_frees,
            maps=done.maps,
            unmaps=done.unmaps,
        )

    def _of_choice(self, choice: Choice) -> TriedSetting | None:
        items = parse_settings(self._recording.settings)
        kept = {key: value for key, value in items.items() if key not in PLACEMENT}
        with contextlib.suppress(ConfigError):  # another version or backend has the setting
            return self.of_settings(format_settings(kept | choice), name_of(choice))
        return None

    def with_smallest_device(self, tried: list[TriedSetting]) -> list[TriedSetting]:
        """Return the settings with the smallest device on which each fits."""
        with ThreadPoolExecutor(cores()) as pool:
            return list(pool.map(self._with_smallest_device, tried))

    def least_needing(self, tried: list[TriedSetting]) -> list[TriedSetting]:
        """Return the settings with the smallest device, in the order of what they need.

        Settings that do not fit into `NEARLY` more than the least are left out. What the first
        ones need is measured before the others, and bounds them: one simulation, which ends early,
        rejects most. No bound depends on which thread is faster, so neither does the answer.
        """
        first, *others = sorted(tried, key=lambda each: each.rank)
        found = [self._with_smallest_device(first)]
        bound = _nearly(found)

        def measured(one: TriedSetting) -> list[TriedSetting]:
            is_rejected = self._simulate(one, bound).ooms > 0
            return [] if is_rejected else [self._with_smallest_device(one, bound)]

        with ThreadPoolExecutor(cores()) as pool:
            found += itertools.chain.from_iterable(pool.map(measured, others))
        bound = _nearly(found)
        return sorted((each for each in found if _device_bytes(each) <= bound), key=_device_bytes)

    def _with_smallest_device(self, tried: TriedSetting, bound: int | None = None) -> TriedSetting:
        """Bisect the memory that a setting needs; with `bound` bytes it is known to fit."""
        low, high = self._needed, bound
        if high is None:
            high = tried.peak_reserved_bytes
            if not tried.fits or tried.retries:
                unlimited = self._simulate(tried, None)
                if unlimited.ooms:  # no device is large enough
                    return tried
                high = unlimited.peak_reserved_bytes
                while self._simulate(tried, high).ooms:  # retries and reserved ranges differ
                    if high > 4 * unlimited.peak_reserved_bytes:
                        return tried
                    low, high = high, high + high // 8
        while high - low > max(UNIT_BYTES, low // RESOLUTION):
            middle = (low + high) // 2
            low, high = (middle, high) if self._simulate(tried, middle).ooms else (low, middle)
        return replace(tried, smallest_device_bytes=high)

    def _simulate(self, tried: TriedSetting, memory_bytes: int | None) -> Simulated:
        """Simulate with other memory, as the same kind of limit as the recording's."""
        has_fraction = self._limits.fraction_bytes is not None
        limits = Limits(memory_bytes, None) if has_fraction else Limits(None, memory_bytes)
        rules = rules_under(tried.settings, self._recording)
        return simulate_recording(self._recording, rules, limits)


def _device_bytes(tried: TriedSetting) -> int:
    return tried.smallest_device_bytes or 0


def _nearly(found: list[TriedSetting]) -> int:
    return round(min(map(_device_bytes, found)) * (1 + NEARLY))


def is_tight(own: TriedSetting) -> bool:
    """Return whether the recording's own settings have little memory to spare.

    Then the best settings are those that fit into the smallest device. Otherwise they are those
    with the lowest peak.
    """
    return not own.fits or own.retries > 0


def best_of(own: TriedSetting, tried: Sequence[TriedSetting]) -> TriedSetting:
    """Return the best settings; of those that are nearly equal, the simplest and cheapest.

    Args:
        own: The recording's own settings, which win if they are nearly as good as the best.
        tried: The settings to choose from. If memory is tight, all have the smallest device.
    """
    fitting = [each for each in tried if each.fits]
    if not fitting:
        return min(tried, key=lambda each: each.rank)

    def amount(each: TriedSetting) -> int:
        return (is_tight(own) and each.smallest_device_bytes) or each.peak_reserved_bytes

    least = min(map(amount, fitting))

    def price(each: TriedSetting) -> tuple[int, bool, int, int]:
        differing = placement(each.settings).items() ^ placement(own.settings).items()
        changed = {key for key, _ in differing}
        return len(changed), each.retries > 0, each.device_calls, amount(each)

    return min((each for each in fitting if amount(each) <= least * (1 + NEARLY)), key=price)


def needed_bytes(requests: Requests) -> int:
    """Return the most bytes that the program requested and held at one moment.

    An allocation that failed counts at its moment.
    """
    kind, block = requests.kind, requests.block
    (allocated,) = np.nonzero(kind == ALLOCATE)
    size_of = np.zeros(int(block.max(initial=-1)) + 1, np.int64)
    size_of[block[allocated]] = requests.size_bytes[allocated]
    change = np.zeros(len(requests), np.int64)
    change[allocated] = requests.size_bytes[allocated]
    # The program gives a block up by the first of LEAVE and FREE.
    (given,) = np.nonzero((kind == LEAVE) | (kind == FREE))
    blocks, first = np.unique(block[given], return_index=True)
    change[given[first]] = -size_of[blocks]
    held = np.cumsum(change)
    (failed,) = np.nonzero(kind == FAIL)
    held[failed] += requests.size_bytes[failed]
    return int(held.max(initial=0))


def placement(settings: str) -> Choice:
    """Return the placement settings among all settings, without defaults.

    Raises:
        ConfigError: The settings are malformed.
    """
    found = {key: value for key, value in parse_settings(settings).items() if key in PLACEMENT}
    if found.get(EXPANDABLE) == "False":
        del found[EXPANDABLE]
    return found


def name_of(choice: Choice) -> str:
    """Return a choice as text, as in "expandable_segments:True"."""
    return format_settings(choice) or "defaults"


def coarse_grid(has_fraction: bool) -> Iterator[Choice]:
    """Yield the choices of the coarse grid; the defaults come first.

    Args:
        has_fraction: Whether the process has a limit (`set_per_process_memory_fraction`), without
            which `garbage_collection_threshold` has no effect.
    """
    joined = {EXPANDABLE: "True"}
    yield {}
    yield joined
    for divisions in _DIVISIONS:
        yield {DIVISIONS: str(divisions)}
        yield {**joined, DIVISIONS: str(divisions)}
    for split in _SPLITS:
        yield {SPLIT: str(split)}
        yield {SPLIT: str(split), DIVISIONS: "8"}
    for split in _SPLITS[1:4]:
        yield {SPLIT: str(split), ROUNDING: "200"}
        yield {**joined, SPLIT: str(split)}
    for segment in _SEGMENTS:
        yield {SEGMENT: str(segment)}
        yield {**joined, SEGMENT: str(segment)}
    for threshold in ("0.6", "0.8", "0.9") if has_fraction else ():
        yield {COLLECTION: threshold}
        yield {COLLECTION: threshold, SPLIT: "128"}


def neighbours(choice: Choice) -> Iterator[Choice]:
    """Yield the choices next to one: one value finer, or one setting more or less."""
    for key in choice:
        yield {other: value for other, value in choice.items() if other != key}
    for key, least in ((SPLIT, 21), (SEGMENT, 20), (ROUNDING, 20)):
        if key in choice:
            value = int(choice[key])
            for other in (value * 3 // 4, value * 3 // 2):
                yield {**choice, key: str(max(other, least))}
    if DIVISIONS in choice:
        if choice[DIVISIONS].isdecimal():
            value = int(choice[DIVISIONS])
            yield from ({**choice, DIVISIONS: str(other)} for other in (value // 2, value * 2))
    else:
        yield from ({**choice, DIVISIONS: str(other)} for other in _DIVISIONS)
    if SPLIT not in choice:
        yield from ({**choice, SPLIT: str(other)} for other in (96, 384))
    if SEGMENT not in choice:
        yield {**choice, SEGMENT: "30"}
