"""The first lines of a page: what happened, the figures, and the commands to paste."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytracer.analysis.advice import UNTESTED
from pytracer.analysis.device_data import why_empty
from pytracer.analysis.explanation_lines import (
    fitting_text,
    holder_text,
    purposes_text,
    verdict_text,
)
from pytracer.page.open_file import OpenFile, Summary
from pytracer.text import printable

SHOWN_HOLDERS = 3


@dataclass(frozen=True)
class Verdict:
    """The answer of a page.

    Attributes:
        heading: What happened, in one or two sentences.
        lines: The reasons and the figures.
        commands: What to run next, for a shell.
        is_leak: Whether the heading names a leak.
    """

    heading: str
    lines: list[str]
    commands: list[str]
    is_leak: bool = False


def verdict_of(file: OpenFile, *, is_saved: bool = True) -> Verdict:
    """Return the answer of `explain` after an out-of-memory, else those of `leaks` and `stats`.

    Args:
        file: The file.
        is_saved: Whether commands can read the file.
    """
    if not file.devices:
        text = why_empty(file.snapshot.metadata)
        return Verdict(f"{text[0].upper()}{text[1:]}.", [], [])
    explanation = file.explanations[0]
    lines, is_leak = [explanation.what], explanation.leak == "leak"
    if explanation.oom is not None:
        lines += [f"Verdict: {verdict_text([one])}" for one in explanation.verdicts]
        lines += filter(None, [fitting_text(explanation)])
    elif explanation.leak_answer:
        lines.insert(0 if is_leak else 1, explanation.leak_answer)
    if explanation.holders:
        held = "; ".join(map(holder_text, explanation.holders[:SHOWN_HOLDERS]))
        lines.append(f"Held at the {_MOMENTS[explanation.held_at]} by: {held}.")
    if purposes := purposes_text(explanation):
        lines.append(f"It was for: {purposes}.")
    lines += [f"Try: {one.why}" for one in explanation.suggestions if not one.command]
    if is_saved:
        untested = (one for one in explanation.suggestions if one.evidence == UNTESTED)
        lines += [f"Untested: {one.command}" for one in untested]
    commands = [one.command for one in explanation.suggestions if one.command and is_saved]
    heading, *rest = map(printable, lines)
    return Verdict(heading, rest, [printable(command) for command in commands], is_leak)


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


_MOMENTS = {"oom": "out-of-memory", "peak": "peak", "end": "end"}
