"""The results of `pytracer fleet report`."""

from dataclasses import dataclass
from typing import Literal

from pytracer.fleet.report_rows import (
    DamagedFile,
    FleetOom,
    FleetSiteChange,
    MissingRank,
    Outlier,
    Overview,
    PeakChange,
    PhaseImbalance,
    SettingChange,
    SettingValue,
    SiteGrowth,
    Spread,
    Worst,
)

Verdict = Literal["found", "none", "unknown"]


@dataclass(frozen=True)
class Answer:
    """The answer to one question about a run.

    Attributes:
        topic: "ooms", "peaks", "growth", "phases", "settings", "missing", "damaged" or "baseline".
        verdict: "found": there is something to look at; "none": there is not; "unknown": the files
            do not tell, and `text` has the reason.
        text: The answer, one or more sentences.
    """

    topic: str
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Command:
    """A command to look further.

    Attributes:
        command: The command, quoted for a shell.
        why: What it shows.
    """

    command: str
    why: str


@dataclass(frozen=True)
class BaselineChange:
    """What changed against another run.

    Attributes:
        table, run: The dataset or the directory of the baseline, and its run.
        peaks: The peaks by slot.
        sites: The call sites, the largest change first.
        settings: The settings that changed.
        ooms, baseline_ooms: The number of out-of-memory errors.
        new_growth, gone_growth: The call sites that grow in one of the runs only.
        new_outliers, gone_outliers: The ranks that are outliers in one of the runs only.
    """

    table: str
    run: str | None
    peaks: list[PeakChange]
    sites: list[FleetSiteChange]
    settings: list[SettingChange]
    ooms: int
    baseline_ooms: int
    new_growth: list[str]
    gone_growth: list[str]
    new_outliers: list[str]
    gone_outliers: list[str]


@dataclass(frozen=True)
class FleetReport:
    """The answers about one run.

    Attributes:
        table: The dataset, or the directory whose files were read for the report.
        run: The run.
        other_runs: The other runs of the dataset.
        is_unfinished: Whether a collection is running, or was interrupted.
        observed_ranks: The number of ranks with enough steps to see growth.
        expects_files: Whether some kind of file is from most ranks, so that a rank can be missing.
        answers: The answers, the most urgent first.
        commands: Commands to look further.
        overview: What was collected.
        worst: The highest peak anywhere; None if there is none.
        spread: The peaks of the ranks by slot.
        outliers: The ranks that use more or less memory than the others.
        growth: The call sites whose memory grows.
        ooms: The out-of-memory errors in order of time.
        phases: The imbalance by phase, the largest difference first.
        settings: The values of settings that differ between ranks.
        missing: The ranks that lack files.
        damaged: The files that could not be read.
        baseline: What changed against the baseline; None without one.
    """

    table: str
    run: str | None
    other_runs: list[str]
    is_unfinished: bool
    observed_ranks: int
    expects_files: bool
    answers: list[Answer]
    commands: list[Command]
    overview: Overview
    worst: Worst | None
    spread: list[Spread]
    outliers: list[Outlier]
    growth: list[SiteGrowth]
    ooms: list[FleetOom]
    phases: list[PhaseImbalance]
    settings: list[SettingValue]
    missing: list[MissingRank]
    damaged: list[DamagedFile]
    baseline: BaselineChange | None
