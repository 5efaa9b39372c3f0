"""The results of a recommendation. `pytracer recommend --json` writes these dataclasses."""

from dataclasses import dataclass

from pytracer.simulator.deviation import Deviation

CHANGE = "change"
KEEP = "keep"
TOO_LARGE = "too large"
NO_SETTING = "no setting"
UNKNOWN = "can't tell"
LEAK = "leak"


@dataclass(frozen=True)
class TriedSetting:
    """The simulation of a recording under one setting.

    Attributes:
        name: The placement settings alone, as in "expandable_segments:True"; "defaults" without
            any; "own settings (...)" for those of the recording. Given settings: as given.
        settings: All settings, in the form of the allocator's variable.
        fits: Whether every allocation found memory, also those that failed in the recording.
        ooms: The number of allocations that found no memory.
        failed_event: The event of the recording at which the simulation ended, because an
            allocation found no memory that found some in the recording; None: it did not end there.
        failed_bytes: The bytes that the last failed allocation requested; None: none failed.
        peak_reserved_bytes: The most bytes that the allocator had reserved.
        waste_bytes: The part of these bytes that was not allocated at that moment.
        waste_at_oom_bytes: The bytes that were reserved and not allocated when the last allocation
            failed; None: none failed.
        retries: How often the allocator gave its cache back in order to allocate.
        device_allocs, device_frees: How often segments were taken from the device and given back.
        maps, unmaps: How often memory of expandable segments was mapped and unmapped.
        smallest_device_bytes: The least memory with which every allocation finds memory, to
            `UNIT_BYTES`; None: not computed for this setting.
    """

    name: str
    settings: str
    fits: bool
    ooms: int
    failed_event: int | None
    failed_bytes: int | None
    peak_reserved_bytes: int
    waste_bytes: int
    waste_at_oom_bytes: int | None
    retries: int
    device_allocs: int
    device_frees: int
    maps: int
    unmaps: int
    smallest_device_bytes: int | None = None

    @property
    def device_calls(self) -> int:
        """The calls to the device, which are the price of a setting."""
        return self.device_allocs + self.device_frees + self.maps + self.unmaps


@dataclass(frozen=True)
class RankOutcome:
    """One file of a job with several.

    Attributes:
        path: The file.
        rank: The process's rank; None if unknown.
        own: The simulation under the recording's own settings.
        why_unknown: Why the file says nothing about other settings; None if it does.
        recommended: The simulation under the settings that are recommended for the job; None
            without a recommendation, or with `why_unknown`.
    """

    path: str
    rank: int | None
    own: TriedSetting
    why_unknown: str | None
    recommended: TriedSetting | None


@dataclass(frozen=True)
class Recommendation:
    """The settings that a recorded program needs.

    Attributes:
        path: The file that decides: of several ranks, that of the worst.
        rank: The rank of the process that wrote it; None if unknown.
        device: The device, as in "cuda:0".
        torch_version: The version of torch (of torch_npu on an NPU); None if unknown.
        capacity_bytes: How much the allocator can reserve; None: unknown, so that no allocation can
            fail in the simulation.
        requests: The number of simulated requests.
        kind: "change": the recommended settings are better. "keep": no setting is much better than
            the recording's own. "too large": the program holds more than the capacity, so that no
            setting helps. "no setting": none of the settings fits, but another allocator might.
            "can't tell": a simulation of the recording's own settings does not reproduce the
            recording, or the difference is within the error bar. "leak": memory is kept from step
            to step, which no setting stops.
        answer: The answer, in a sentence.
        command: The line to paste into a shell; "" without a change.
        why: The figures that decided, in sentences.
        needed_bytes: The most bytes that the program requested and held at one moment, with the
            allocation that failed.
        deviation: How far a simulation of the recording's own settings is from the recording.
        own: The simulation under the recording's own settings.
        recommended: The simulation under the recommended settings; None without a change.
        settings: The given settings, which were simulated and no others; []: many were searched.
        tried: All simulated settings, the best first.
        ranks: The files of a job with several; [] for one file.
        notes: What makes the answer inexact, or what could not be judged.
        is_estimate: Whether allocations were left out or scaled.
    """

    path: str
    rank: int | None
    device: str
    torch_version: str | None
    capacity_bytes: int | None
    requests: int
    kind: str
    answer: str
    command: str
    why: str
    needed_bytes: int
    deviation: Deviation
    own: TriedSetting
    recommended: TriedSetting | None
    settings: list[str]
    tried: list[TriedSetting]
    ranks: list[RankOutcome]
    notes: list[str]
    is_estimate: bool
