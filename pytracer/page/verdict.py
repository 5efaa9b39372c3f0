"""The first lines of a page: what happened, the figures, and the commands to paste."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytracer.analysis.advice import UNTESTED
from pytracer.analysis.answer import one_line
from pytracer.analysis.answer_words import answer_of
from pytracer.analysis.device_data import why_empty
from pytracer.page.open_file import OpenFile, Summary
from pytracer.text import printable, sentence


@dataclass(frozen=True)
class Verdict:
    """The answer of a page.

    Attributes:
        heading: The verdict, and the device and the process that it is about.
        lines: The reasons and the figures.
        commands: What to run next, for a shell.
        is_leak: Whether the heading names a leak.
    """

    heading: str
    lines: list[str]
    commands: list[str]
    is_leak: bool = False


def verdict_of(file: OpenFile, *, is_saved: bool = True) -> Verdict:
    """Return the answer of `pytracer show` about the device that matters.

    Without `is_saved`, commands cannot read the file.
    """
    if not file.devices:
        text = why_empty(file.snapshot.metadata)
        return Verdict(f"{sentence(text)}.", [], [])
    explanation = file.explanations[0]
    answer = answer_of(explanation, is_saved=is_saved)
    lines = [
        f"{line.role.capitalize()}: {one_line(line)}"
        for line in answer.lines
        if not line.is_command
    ]
    untested = [one.command for one in explanation.suggestions if one.evidence == UNTESTED]
    lines += [f"Untested: {command}" for command in untested if is_saved]
    commands = [line.text for line in answer.lines if line.is_command]
    return Verdict(
        heading=printable(f"{answer.verdict} ({answer.where})"),
        lines=[printable(line) for line in lines],
        commands=[printable(command) for command in commands],
        is_leak=answer.kind == "leak",
    )


def of_file_named(verdict: Verdict, summary: Summary) -> Verdict:
    """Return the verdict on one of several files, with the name of the file in its heading."""
    path = Path(summary.path)
    name = printable(f"{path.parent.name}/{path.name}".lstrip("/"))
    return replace(verdict, heading=f"{name}: {verdict.heading}")


def compared(verdict: Verdict, files: Sequence[Summary], difference: Mapping[str, Any]) -> Verdict:
    """Return the verdict on a run and its baseline: the difference, then the verdict on the run."""
    run, baseline = (shlex.quote(file.path) for file in files)
    return Verdict(
        heading=f"Compared with the baseline: {difference['sentence']}",
        lines=[printable(f"{files[0].name}: {verdict.heading}"), *verdict.lines],
        commands=[printable(f"pytracer diff {baseline} {run}"), *verdict.commands],
    )
