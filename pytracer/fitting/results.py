"""The results of a prediction; `pytracer fit --json` writes the dataclasses."""

from dataclasses import dataclass

from pytracer.analysis.answer import Answer
from pytracer.fitting.prediction import Peak
from pytracer.fitting.sizes import Sizes
from pytracer.reading.snapshot import Frame

FITS, DOES_NOT_FIT, UNKNOWN, NO_DEVICE = "fits", "does not fit", "can't tell", "no device"

OWN = "own settings"
"""The name of the recording's own settings."""


@dataclass(frozen=True)
class CheckedFile:
    """A recording, and what is predicted for its own sizes.

    Attributes:
        path: The file.
        sizes: The sizes of the program's data in it; of several steps, those of the first.
        recorded: The peak in the recording.
        predicted: The peak that the simulation of the matched requests has at these sizes.
        foretold: The peak that the other recordings alone predict, of the largest recording that
            they do not need; else None.
        unmatched: How many allocations the largest recording does not have.
    """

    path: str
    sizes: Sizes
    recorded: Peak
    predicted: Peak
    foretold: Peak | None
    unmatched: int


@dataclass(frozen=True)
class Failed:
    """The request for which there is no memory: its bytes, and its call site if it is known."""

    size_bytes: int
    frame: Frame | None


@dataclass(frozen=True)
class Prediction:
    """The program at one choice of sizes, under one choice of settings.

    Attributes:
        sizes: The sizes of the program's data.
        settings: "own settings" of the recording, or those given, as given.
        peak: The peak of what was recorded of the program, without a limit of memory.
        first, steady: The peaks of the first step, with all that comes before it, and of the last
            complete step; None: the recordings do not have such a step.
        fits: Whether every request finds memory on the device; None: no device is known.
        failed: The first request that finds none; None: all do.
    """

    sizes: Sizes
    settings: str
    peak: Peak
    first: Peak | None
    steady: Peak | None
    fits: bool | None
    failed: Failed | None


@dataclass(frozen=True)
class Largest:
    """The largest value of a variable with which the program fits; the others are the target's.

    Attributes:
        variable: The name.
        settings: As in `Prediction`.
        value: The value; 0: not even 1 fits; None: no limit was found.
        failed: The request that finds no memory with the next value.
    """

    variable: str
    settings: str
    value: int | None
    failed: Failed | None


@dataclass(frozen=True)
class Grown:
    """Memory at the target's peak, and how it grows.

    Attributes:
        category: What the memory is for, as in "activation"; "" for one call site.
        frame: The call site; None for one category, or if it is unknown.
        size_bytes: The requested bytes at the peak.
        more_bytes: The additional bytes for each variable that is larger by one.
    """

    category: str
    frame: Frame | None
    size_bytes: int
    more_bytes: dict[str, int]


@dataclass(frozen=True)
class Fit:
    """What a program needs at other sizes of its data.

    Attributes:
        kind: "fits"; "does not fit"; "can't tell": the bounds are on both sides of the device's
            memory, or too far apart; "no device": the memory of the device is unknown.
        device: The device, as in "cuda:0".
        torch_version: The version of torch (of torch_npu on an NPU); None if unknown.
        device_memory_bytes: The memory of the device; None if unknown.
        outside_bytes: The part of it that the allocator does not get.
        requests: The number of simulated requests.
        target: The prediction for the target: the last sizes under the recording's own settings.
        least, most: The bounds of the target's peak; both are the peak itself if it is exact.
        is_exact: Whether a recording confirms how each request grows, and each recording is
            reproduced to the byte.
        smallest_device_bytes: By settings, the least memory for the allocator with which the target
            fits, to 2 MiB or 0.2 %; without settings that fit into no device.
        largest: The largest values that fit, of each variable under each setting.
        categories, lines: How memory grows, the largest first.
        predictions: All sizes that were asked for, under all settings.
        files: The recordings.
        is_estimate: Whether the growth or a change of the program is an estimate, which the first
            notes explain.
        unchecked, unseen, varying: How many allocations grow in a way that no recording confirms,
            of them are not in all recordings, and depend on values.
        notes: What makes the prediction inexact, in sentences.
        process: The process of the recordings, as in "rank3"; "" for files.
        processes: By process, the peak that is predicted for the target. This one is the worst.
        answer: The answer in lines.
    """

    kind: str
    device: str
    torch_version: str | None
    device_memory_bytes: int | None
    outside_bytes: int
    requests: int
    target: Prediction
    least: Peak
    most: Peak
    is_exact: bool
    smallest_device_bytes: dict[str, int]
    largest: list[Largest]
    categories: list[Grown]
    lines: list[Grown]
    predictions: list[Prediction]
    files: list[CheckedFile]
    is_estimate: bool
    unchecked: int
    unseen: int
    varying: int
    notes: list[str]
    process: str
    processes: dict[str, Peak]
    answer: Answer

    def __str__(self) -> str:
        """Return the answer as a terminal of 80 columns shows it."""
        return str(self.answer)
