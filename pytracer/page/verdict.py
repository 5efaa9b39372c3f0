"""The first lines of a page: what happened, the figures, and the commands to paste."""

from dataclasses import dataclass

from pytracer.analysis.explanation_lines import (
    fitting_text,
    holder_text,
    purposes_text,
    verdict_text,
)
from pytracer.analysis.leaks.one_file import leaks_on_device
from pytracer.analysis.leaks.texts import answer
from pytracer.page.open_file import OpenFile
from pytracer.text import printable

SHOWN_HOLDERS = 3


@dataclass(frozen=True)
class Verdict:
    """The answer of a page.

    Attributes:
        heading: What happened, in one or two sentences.
        lines: The reasons and the figures.
        commands: What to run next, for a shell.
    """

    heading: str
    lines: list[str]
    commands: list[str]


def verdict_of(file: OpenFile, *, is_saved: bool = True) -> Verdict:
    """Return the answer of `explain` after an out-of-memory, else those of `leaks` and `stats`.

    Args:
        file: The file.
        is_saved: Whether commands can read the file.
    """
    if not file.devices:
        return Verdict("The file has no events and no segments.", [], [])
    data, explanation = file.devices[0], file.explanations[0]
    lines, is_leak = [explanation.what], False
    if explanation.oom is not None:
        lines += [f"Verdict: {verdict_text([one])}" for one in explanation.verdicts]
        lines += filter(None, [fitting_text(explanation)])
    elif data.history is not None:
        leaks = leaks_on_device(data.snapshot, data.device, data.history)
        is_leak = leaks.verdict == "leak"
        if is_leak:
            lines.insert(0, answer(leaks))
        elif leaks.verdict == "none":
            lines.append(answer(leaks))
    if explanation.holders:
        held = "; ".join(map(holder_text, explanation.holders[:SHOWN_HOLDERS]))
        lines.append(f"Held at the {_MOMENTS[explanation.held_at]} by: {held}.")
    if purposes := purposes_text(explanation):
        lines.append(f"It was for: {purposes}.")
    lines += [f"Try: {one.why}" for one in explanation.suggestions if not one.command]
    commands = [one.command for one in explanation.suggestions if one.command and is_saved]
    if is_leak:
        commands.sort(key=lambda command: not command.startswith("pytracer leaks "))
    heading, *rest = map(printable, lines)
    return Verdict(heading, rest, [printable(command) for command in commands])


_MOMENTS = {"oom": "out-of-memory", "peak": "peak", "end": "end"}
