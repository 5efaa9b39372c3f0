"""The rows of a report: their attributes are the columns of the tables in `sql/`."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Overview:
    """What was collected of a run.

    Attributes:
        files: The number of files.
        damaged: The number of files that could not be read.
        processes: The number of processes with a file that was read.
        first_step, last_step: The first and the last step that a file has; None without steps.
        first_us, last_us: When the first and the last file were written; None if unknown.
        uncertain: The number of files in which the highest peak may be missing.
    """

    files: int
    damaged: int
    processes: int
    first_step: int | None
    last_step: int | None
    first_us: int | None
    last_us: int | None
    uncertain: int


@dataclass(frozen=True)
class Worst:
    """The highest peak anywhere.

    Attributes:
        process, rank, slot, source, device_name: Where the peak was.
        peak_bytes, reserved_bytes: The peaks of allocated and of reserved memory in this file.
        total_bytes: The device's memory; None if unknown.
    """

    process: str
    rank: int | None
    slot: str
    source: str
    device_name: str
    peak_bytes: int
    reserved_bytes: int | None
    total_bytes: int | None


@dataclass(frozen=True)
class Spread:
    """The peaks of the ranks in one slot: the files of one kind, step and phase.

    Attributes:
        slot: The slot, as in "step 3".
        step: Its step; None if it has none.
        ranks: The number of ranks.
        least_bytes, median_bytes, most_bytes: The lowest peak, the median, and the highest peak.
        reserved_median_bytes, reserved_most_bytes: The same for reserved memory.
        groups: The number of groups of ranks with usual peaks, such as the stages of a pipeline.
        outliers: The number of ranks that differ from their group.
        verdict: "outliers"; "none"; "few": less than eight ranks can be compared; "scattered":
            more than a tenth of the ranks differ.
    """

    slot: str
    step: int | None
    ranks: int
    least_bytes: int
    median_bytes: int
    most_bytes: int
    reserved_median_bytes: int | None
    reserved_most_bytes: int | None
    groups: int
    outliers: int
    verdict: str


@dataclass(frozen=True)
class SiteDifference:
    """A call site by which an outlier differs from the median rank.

    Attributes:
        process: The outlier.
        site: The call site; None: blocks without a stack, and call sites without a row.
        callers, phase, category: Those of the largest part of this memory; None if unknown.
        size_bytes, reference_bytes: The bytes of the outlier and of the median rank.
        delta_bytes: The difference, in the direction in which the outlier differs.
        share: The difference as a share of the outlier's whole difference.
    """

    process: str
    site: str | None
    callers: str | None
    phase: str | None
    category: str | None
    size_bytes: int
    reference_bytes: int
    delta_bytes: int
    share: float


@dataclass(frozen=True)
class Outlier:
    """A rank that uses more or less memory than the others.

    Attributes:
        process, rank: The rank.
        slots: The number of slots in which it is an outlier.
        of_slots: The number of slots that it has, and in which outliers can be named.
        slot, source: The slot in which it differs most, and its file there.
        peak_bytes, median_bytes, delta_bytes: Its peak there, the median of its group (of less than
            eight ranks: of the others), and the difference.
        reference, reference_process: The file there of the rank that is nearest to the median.
        sites: The call sites by which it differs, the largest first.
    """

    process: str
    rank: int | None
    slots: int
    of_slots: int
    slot: str
    source: str
    peak_bytes: int
    median_bytes: int
    delta_bytes: int
    reference: str
    reference_process: str
    sites: list[SiteDifference] = field(default_factory=list)


@dataclass(frozen=True)
class SiteGrowth:
    """A call site whose memory grows from step to step.

    Attributes:
        site: The call site; None if unknown.
        evidence: "trace": `pytracer show --leaks` found it in single files; "files": it is seen
            when the ends of files are compared.
        verdict: "leak": `pytracer show --leaks` is certain; "grows": it grew from file to file, for
            ever or not; "unknown": it may be chance.
        extent: "all": at least nine of ten of the ranks that were observed; else "some".
        ranks, of_ranks: The number of ranks on which it grows, and that were observed.
        bytes_per_step: The median of the growth over these ranks.
        unit: What `bytes_per_step` is per: "step", "second" or "slice".
        held_bytes: The most memory of the call site at the end of a file.
        first_step: The first step with a growth; None if unknown.
        processes: These ranks, the fastest first, at most 20.
        faster: Of many ranks, those on which it grows much faster, at most 20.
        first_source: With "files": the first file of the rank on which it grows fastest.
        source: The last file of this rank.
    """

    site: str | None
    evidence: str
    verdict: str
    extent: str
    ranks: int
    of_ranks: int
    bytes_per_step: float
    unit: str | None
    held_bytes: int | None
    first_step: int | None
    processes: list[str]
    faster: list[str]
    first_source: str | None
    source: str


@dataclass(frozen=True)
class FleetOom:
    """An out-of-memory error.

    Attributes:
        number: 1 is the first.
        process, rank, host: The process; None if unknown.
        device_name: The device.
        time_us: The time, by the clock of the host; None if unknown.
        after_s: The seconds after the first error; None if unknown.
        step, phase, site: Those of the allocation that failed; None if unknown.
        requested_bytes, device_free_bytes, allocated_bytes, reserved_bytes: The size of the
            allocation, and the memory at that moment.
        verdict, explanation: The first verdict of `pytracer show`, and its figures; None if a
            later error in the file hides it.
        source: The file.
    """

    number: int
    process: str
    rank: int | None
    host: str | None
    device_name: str
    time_us: int | None
    after_s: float | None
    step: int | None
    phase: str | None
    site: str | None
    requested_bytes: int | None
    device_free_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    verdict: str | None
    explanation: str | None
    source: str


@dataclass(frozen=True)
class PhaseImbalance:
    """A phase, in the slot in which its highest peak is furthest above the median.

    Attributes:
        phase: The phase; "" for no phase.
        slot: The slot.
        ranks: The number of ranks that were in the phase.
        median_bytes, most_bytes: The median of the ranks' peaks in the phase, and the highest.
        imbalance: `most_bytes` as a multiple of `median_bytes`.
        process, rank: The rank with the highest peak, if it is an outlier; else None: the ranks are
            too few, too many differ, or the difference is usual.
    """

    phase: str
    slot: str
    ranks: int
    median_bytes: int
    most_bytes: int
    imbalance: float
    process: str | None
    rank: int | None


@dataclass(frozen=True)
class SettingValue:
    """A value of a setting that differs between ranks.

    Attributes:
        scope, key: The setting, as in the table `settings`.
        value: The value; None: not set.
        ranks, of_ranks: The number of ranks with this value, and with known settings.
        is_usual: Whether this is the value of more than half of the ranks.
        processes: The ranks with the value, at most 20; [] for the usual value.
        source: A file with the value.
    """

    scope: str
    key: str
    value: str | None
    ranks: int
    of_ranks: int
    is_usual: bool
    processes: list[str]
    source: str


@dataclass(frozen=True)
class MissingRank:
    """A rank that lacks files that most ranks have.

    Attributes:
        rank, role: The rank; the role is "" if it has none.
        slots: The slots without a file of the rank.
        of_slots: The number of slots in which a file is expected.
        has_none: Whether the rank has no file at all.
        reason: "out of memory": the rank ran out of memory before; None if unknown.
    """

    rank: int
    role: str
    slots: list[str]
    of_slots: int
    has_none: bool
    reason: str | None


@dataclass(frozen=True)
class DamagedFile:
    """A file that could not be read.

    Attributes:
        source: The file.
        process, rank, step: From its name; None if unknown.
        error: Why it could not be read.
    """

    source: str
    process: str | None
    rank: int | None
    step: int | None
    error: str


@dataclass(frozen=True)
class PeakChange:
    """The change of the peaks of a slot against the baseline.

    Attributes:
        slot: A slot that both runs have.
        ranks, baseline_ranks: The number of ranks.
        median_bytes, baseline_median_bytes: The median of the peaks.
        most_bytes, baseline_most_bytes: The highest peak.
        delta_bytes: The change of the median.
        threshold_bytes: What the median must change by to count: what makes a rank an outlier in
            either run, at least 2 % and 1 MiB.
    """

    slot: str
    ranks: int
    baseline_ranks: int
    median_bytes: int
    baseline_median_bytes: int
    most_bytes: int
    baseline_most_bytes: int
    delta_bytes: int
    threshold_bytes: int


@dataclass(frozen=True)
class FleetSiteChange:
    """A call site that holds more or less memory than in the baseline.

    Attributes:
        slot: The slot that is compared.
        site: The call site with the most memory in its file and function, of the new run if it is
            there.
        size_bytes, baseline_bytes: The medians over the ranks at their peaks; 0: on less than half
            of the ranks.
        delta_bytes: The difference.
    """

    slot: str
    site: str
    size_bytes: int
    baseline_bytes: int
    delta_bytes: int


@dataclass(frozen=True)
class SettingChange:
    """A setting whose usual value differs from the baseline.

    Attributes:
        scope, key: The setting.
        value, baseline_value: The values of the most files; None: not set in most files.
    """

    scope: str
    key: str
    value: str | None
    baseline_value: str | None
