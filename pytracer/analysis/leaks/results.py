"""The results of the search for leaks: what `pytracer show --leaks` reports."""

from dataclasses import dataclass
from typing import Literal

from pytracer.reading.snapshot import Frame

Verdict = Literal["leak", "none", "unknown"]


@dataclass(frozen=True)
class Growth:
    """Memory of one call site that grew and was not released.

    Attributes:
        verdict: "leak", or "unknown" if the growth is not certainly a leak.
        reason: Why the verdict is "unknown"; "" for a leak.
        kind: "kept" if the blocks themselves stay, as in a list that grows; "replaced" if each
            block is replaced by a larger one, as with `torch.cat`.
        frames: The call site and its callers in the program, innermost first, as far as all blocks
            share them; [] if the stacks are unknown.
        phase: The phase in which all blocks were allocated, "" if some have none; None if they
            have several, or if it is unknown.
        bytes_per_step: The growth per step (Theil-Sen estimate). Without steps: per second, or
            per file; see `unit` of the device.
        least_bytes_per_step, most_bytes_per_step: The 95% confidence interval of the growth.
        growths: The number of observed steps in which the memory grew.
        period_steps: The median number of steps from one growth to the next.
        first_step: The step of the first growth in the file; None without steps.
        is_older: Whether the growth began before the first event of the file.
        held_bytes: The bytes that these blocks held at the end of the last step.
        blocks: The number of these blocks.
    """

    verdict: Verdict
    reason: str
    kind: Literal["kept", "replaced"]
    frames: tuple[Frame, ...]
    phase: str | None
    bytes_per_step: float
    least_bytes_per_step: float
    most_bytes_per_step: float
    growths: int
    period_steps: float
    first_step: int | None
    is_older: bool
    held_bytes: int
    blocks: int


@dataclass(frozen=True)
class Release:
    """Memory of one call site that grew during some steps, but is no leak.

    Attributes:
        frames: As in `Growth`.
        most_bytes: The most bytes that blocks of the call site held at the end of a step.
        reason: Why the memory is no leak.
    """

    frames: tuple[Frame, ...]
    most_bytes: int
    reason: str


@dataclass(frozen=True)
class DeviceLeaks:
    """The search for leaks on one device of one process.

    Attributes:
        verdict: "leak"; "none": nothing kept growing; "unknown": the files do not tell.
        reason: Why the verdict is "none" or "unknown"; "" for a leak.
        device: The device's name, as in "cuda:0".
        rank, pid: The process; None if unknown.
        path: The file that decided; the last file if several files together decided.
        files: The number of files that decided.
        unit: What the growth was observed over: "step"; "second" or "slice" (a 24th of the events)
            in files without steps; "file" if only the ends of files without steps were compared.
        first, last: The first and the last observed step; None without steps.
        observed: The number of observed complete steps, time slices or files.
        begin_bytes, end_bytes: The allocated bytes at the end of the first and of the last
            observed step.
        growths: The growths, leaks first, the largest first.
        releases: The largest memory that grew for some steps, but is no leak; at most five.
        bytes_per_step: The sum of the growth per step of all leaks; 0 without a leak.
        available_bytes: The bytes from the peak of a step at the end of the file to the limit of
            the process: the memory of the device that no other process held, and at most the memory
            fraction. Negative if the limit has become lower; None if unknown, or without steps.
        exhausted_step: The first step in which the leaks will have taken more than
            `available_bytes`; None if unknown, without a leak, or if memory has already run out.
        oom_step: The step in which memory ran out, if it is the last one of the file; else None.
    """

    verdict: Verdict
    reason: str
    device: str
    rank: int | None
    pid: int | None
    path: str
    files: int
    unit: Literal["step", "second", "slice", "file"]
    first: int | None
    last: int | None
    observed: int
    begin_bytes: int | None
    end_bytes: int | None
    growths: list[Growth]
    releases: list[Release]
    bytes_per_step: float
    available_bytes: int | None
    exhausted_step: int | None
    oom_step: int | None


@dataclass(frozen=True)
class LeakReport:
    """The search for leaks in all files.

    Attributes:
        verdict: "leak" if a device has one; else "unknown" if that of a device is unknown; else
            "none".
        devices: The result for each device of each process.
    """

    verdict: Verdict
    devices: list[DeviceLeaks]
