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
    """The answer to one question about a run.

    Attributes:
        topic: "ooms", "peaks", "growth", "settings" or "damaged".
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


@dataclass
class FleetReport:
    """The answers about one run, and the rows of the tables from which they are.

    Attributes:
        table: The dataset, or the directory whose files were read for the report.
        run: The run.
        other_runs: The other runs of the dataset.
        answers: The answers, the most urgent first.
        commands: Commands to look further.
        overview: What was collected: the row of `overview`.
        worst: The highest peak anywhere, a row of `rank_peaks`; None if there is none.
        spread: The peaks of the ranks by slot: `spread`.
        outliers: The ranks that use more or less memory than the others: `outliers`.
        outlier_sites: The call sites by which each differs, the largest first: `outlier_sites`.
        growth: The call sites whose memory grows: `growth`.
        oom_order: The out-of-memory errors in order of time: `oom_order`.
        setting_differences: The values of settings that differ between ranks:
            `setting_differences`.
        damaged: The files that could not be read: rows of `processes`.
    """

    table: str
    run: str | None
    other_runs: list[str]
    answers: list[Answer]
    commands: list[Command]
    overview: Row
    worst: Row | None
    spread: list[Row]
    outliers: list[Row]
    outlier_sites: list[Row]
    growth: list[Row]
    oom_order: list[Row]
    setting_differences: list[Row]
    damaged: list[Row]

    def sites_of(self, outlier: Row) -> list[Row]:
        """Return the call sites by which an outlier differs, the largest first."""
        return [site for site in self.outlier_sites if site.process == outlier.process]
