"""The results of a comparison, as dataclasses."""

from dataclasses import dataclass
from typing import Literal

from pytracer.analysis.diff.changes import CategoryChange, ModuleChange, PhaseChange, SiteChange
from pytracer.analysis.diff.options import OptionChange

At = Literal["peak", "end"]


@dataclass(frozen=True)
class Amount:
    """A number of a device in both snapshots. None means unknown.

    Attributes:
        before: The number in the baseline.
        after: The number in the new snapshot.
        delta: `after - before`.
    """

    before: int | None
    after: int | None
    delta: int | None

    @classmethod
    def between(cls, before: int | None, after: int | None) -> "Amount":
        """Return the amount with its delta."""
        return cls(before, after, None if before is None or after is None else after - before)


@dataclass(frozen=True)
class DeviceDifference:
    """The difference between a device of the baseline and a device of the new snapshot.

    Attributes:
        before: The name of the baseline's device, as in "cuda:0".
        after: The name of the new snapshot's device.
        at: "peak" if each device is compared at its own peak of allocated bytes, "end" if both are
            compared when the snapshots were taken.
        reasons: Why the devices are compared at the end; [] if they are compared at the peak.
        notes: What is unknown, as sentences: why a peak is not certain, why call sites or phases
            are missing.
        is_certain: Whether both peaks are certain; true if the devices are compared at the end. If
            a peak may have been visibly higher, `notes` has its bound.
        amounts: For each name an `Amount`: the values of the compared sample, the largest reserved
            bytes, and the counts of events.
        sites: The call sites, the largest difference first; [] if only one side has stacks.
        phases: The phases, the largest difference first; [] if `at` is "end", or if only one side
            has phases.
        categories: The categories, the largest difference first; [] if a file does not have the
            owners of blocks.
        modules: The modules, the largest difference first; [] if a file has no phases of modules
            (`pytracer.annotate_modules`).
    """

    before: str
    after: str
    at: At
    reasons: list[str]
    notes: list[str]
    is_certain: bool
    amounts: dict[str, Amount]
    sites: list[SiteChange]
    phases: list[PhaseChange]
    categories: list[CategoryChange]
    modules: list[ModuleChange]


@dataclass(frozen=True)
class Difference:
    """The difference between two snapshots.

    Attributes:
        baseline: The path of the baseline.
        new: The path of the new snapshot.
        devices: The devices that both snapshots have.
        only_baseline: The names of the devices that only the baseline has.
        only_new: The names of the devices that only the new snapshot has.
        metadata: The differences in the allocator's settings, in versions, in options and in the
            user's metadata.
    """

    baseline: str
    new: str
    devices: list[DeviceDifference]
    only_baseline: list[str]
    only_new: list[str]
    metadata: list[OptionChange]


@dataclass(frozen=True)
class FileDifference:
    """The difference between a device in two matched files of two directories.

    Attributes:
        place: The step, phase and process of both files, as in "step 3, rank 0".
        baseline: The path of the baseline's file.
        new: The path of the new file.
        before: The name of the baseline's device.
        after: The name of the new file's device.
        at: As in `DeviceDifference`.
        before_bytes: The allocated bytes at the compared sample of the baseline.
        after_bytes: The allocated bytes at the compared sample of the new file.
        delta_bytes: `after_bytes - before_bytes`.
    """

    place: str
    baseline: str
    new: str
    before: str
    after: str
    at: At
    before_bytes: int
    after_bytes: int
    delta_bytes: int


@dataclass(frozen=True)
class DirectoryDifference:
    """The difference between the snapshots of two directories.

    Attributes:
        baseline: The directory of the baseline.
        new: The directory of the new snapshots.
        files: One difference for each device of each pair of files.
        pairs: The number of pairs of files.
        only_baseline: The files of the baseline without a match, and the devices that only the
            baseline's file of a pair has.
        only_new: The new files without a match, and the devices that only the new file of a pair
            has.
        sites: The changes of the call sites, as means over all pairs that have call sites, and the
            pair with the largest delta. Files of one phase count only if there are no others.
        phases, categories, modules: Their changes, in the same form.
        metadata: As in `Difference`.
        reasons: Why some devices were compared at the end.
        notes: What is unknown, as sentences.
        errors: Why pairs of files could not be compared.
    """

    baseline: str
    new: str
    files: list[FileDifference]
    pairs: int
    only_baseline: list[str]
    only_new: list[str]
    sites: list[SiteChange]
    phases: list[PhaseChange]
    categories: list[CategoryChange]
    modules: list[ModuleChange]
    metadata: list[OptionChange]
    reasons: list[str]
    notes: list[str]
    errors: list[str]
