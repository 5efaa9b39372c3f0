"""The results of `pytracer fleet report`."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Literal

Verdict = Literal["found", "none", "unknown"]


class Row(SimpleNamespace):
    """A row of a table that a file in `sql/` makes: an attribute for each of its columns.

    The comments of these files, and `docs/reference/schema.json`, have the columns.
    """


@dataclass(frozen=True)
class Answer:
    """The answer to one question about a run."""

    # "ooms", "peaks", "growth", "phases", "settings", "missing", "damaged" or "baseline".
    topic: str
    # "found": there is something to look at; "none": there is not; "unknown": the files do not
    # tell, and `text` has the reason.
    verdict: Verdict
    text: str  # the answer, one or more sentences


@dataclass(frozen=True)
class Command:
    """A command to look further."""

    command: str  # the command, quoted for a shell
    why: str  # what it shows


@dataclass
class BaselineChange:
    """What changed against another run."""

    # table, run: The dataset or the directory of the baseline, and its run.
    table: str
    run: str | None
    peaks: list[Row]  # the peaks by slot: `compare_peaks`
    sites: list[Row]  # the call sites, the largest change first: `compare_sites`
    settings: list[Row]  # the settings that changed: `compare_settings`
    # ooms, baseline_ooms: The number of out-of-memory errors.
    ooms: int
    baseline_ooms: int
    # new_growth, gone_growth: The call sites that grow in one of the runs only.
    new_growth: list[str]
    gone_growth: list[str]
    # new_outliers, gone_outliers: The ranks that are outliers in one of the runs only.
    new_outliers: list[str]
    gone_outliers: list[str]


@dataclass
class FleetReport:
    """The answers about one run, and the rows of the tables from which they are."""

    table: str  # the dataset, or the directory whose files were read for the report
    run: str | None  # the run
    other_runs: list[str]  # the other runs of the dataset
    is_unfinished: bool  # whether a collection is running, or was interrupted
    observed_ranks: int  # the number of ranks with enough steps to see growth
    # Whether some kind of file is from most ranks, so that a rank can be missing.
    expects_files: bool
    answers: list[Answer]  # the answers, the most urgent first
    commands: list[Command]  # commands to look further
    overview: Row  # what was collected: the row of `overview`
    worst: Row | None  # the highest peak anywhere, a row of `rank_peaks`; None if there is none
    spread: list[Row]  # the peaks of the ranks by slot: `spread`
    # The ranks that use more or less memory than the others: `outliers`, and `sites`, the call
    # sites by which each differs, the largest first: `outlier_sites`.
    outliers: list[Row]
    growth: list[Row]  # the call sites whose memory grows: `growth`
    ooms: list[Row]  # the out-of-memory errors in order of time: `oom_order`
    phases: list[Row]  # the imbalance by phase, the largest difference first: `phase_imbalance`
    settings: list[Row]  # the values of settings that differ between ranks: `setting_differences`
    missing: list[Row]  # the ranks that lack files: `missing`
    damaged: list[Row]  # the files that could not be read: rows of `processes`
    baseline: BaselineChange | None  # what changed against the baseline; None without one
