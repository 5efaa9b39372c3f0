"""The results of a comparison, as dataclasses."""

from dataclasses import dataclass
from typing import Literal

from pytracer.analysis.diff.changes import Change

At = Literal["peak", "end"]


@dataclass(frozen=True)
class OptionChange:
    """A version, option or setting that differs between two snapshots.

    Attributes:
        name: The name, as in "torch", "metadata.lr" or "allocator_settings.expandable_segments".
            The name "pytracer" alone means that one file has no metadata of pytracer, and
            "allocator_settings" alone means that one file has no allocator settings.
        before: The value in the baseline, as text; None if the baseline does not have it.
        after: The value in the new snapshot, as text; None if the new snapshot does not have it.
        falsifies: Which part of the comparison shows the options instead of the program, as a
            sentence; "" if none does.
        pairs: The number of pairs of files with this difference.
    """

    name: str
    before: str | None
    after: str | None
    falsifies: str
    pairs: int


@dataclass(frozen=True)
class Amount:
    """A number of a device in both recordings. None means unknown."""

    # The number in the baseline. With several pairs of files, the mean over all pairs.
    before: int | None
    after: int | None  # the number in the new recording, in the same form
    delta: int | None  # `after - before`


@dataclass(frozen=True)
class DeviceDifference:
    """The difference between a device of the baseline and a device of the new recording.

    In directories, a difference has all devices of one kind. Files of one phase count only if there
    are no others.

    Attributes:
        before: The name of the baseline's device, as in "cuda:0"; "cuda" for several devices.
        after: The name of the new recording's device, in the same form.
        pairs: The number of pairs of files. With several, all figures are means over the pairs.
        at: "peak" if each device is compared at its own peak of allocated bytes, "end" if devices
            are compared when the snapshots were taken. Of several pairs, some are at their peaks.
        reasons: Why devices are compared at the end; [] if all are compared at their peaks.
        notes: What is unknown, as sentences: why a peak is not certain, why call sites or phases
            are missing.
        amounts: For each name an `Amount`: the values of the compared sample, the largest reserved
            bytes, and the counts of events.
        changes: What changed by "line", "category", "module" and "phase", the largest difference
            first. "line" is [] if only one side has stacks, "category" if a file does not have the
            owners of blocks, "module" if a file has no phases of modules, "phase" if only one side
            has phases, or if `at` is "end".
    """

    before: str
    after: str
    pairs: int
    at: At
    reasons: list[str]
    notes: list[str]
    amounts: dict[str, Amount]
    changes: dict[str, list[Change]]


@dataclass(frozen=True)
class Difference:
    """The difference between two files, or between the files of two directories.

    Attributes:
        baseline: The path of the baseline.
        new: The path of the new recording.
        pairs: The number of pairs of files: 1 for two files.
        metadata: The differences in options, in versions, in the allocator's settings and in the
            user's metadata. Those that falsify the comparison come first.
        files: The allocated bytes of each pair of files at the compared sample, by step, phase and
            process, as in "step 3, rank 0", and by device if the files have several; [] for two
            files. The counts are those of allocations.
        devices: One difference for each device of two files, or for each kind of device of two
            directories.
        only_baseline: The files of the baseline without a match, and the devices that only the
            baseline's file of a pair has.
        only_new: The new files without a match, and the devices that only the new file of a pair
            has.
        errors: Why files could not be compared.
    """

    baseline: str
    new: str
    pairs: int
    metadata: list[OptionChange]
    files: list[Change]
    devices: list[DeviceDifference]
    only_baseline: list[str]
    only_new: list[str]
    errors: list[str]
