"""The answer about a device, a file or a run: what happened, why, and what to do; and its text."""

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from typing import Literal

from pytracer.reading.snapshot import Frame
from pytracer.text import BriefRepr, printable, size

MOST_LINES = 20

_LABEL = 9  # the width of the column of roles

# Texts break at spaces. No line break separates a number from its unit, a function from its line,
# or an arrow from the caller.
_TOGETHER = re.compile(
    r"(?<=\d) (?=[KMGTPE]?i?B\b|%)|(?<=:\d) |(?<=:\d\d) |(?<=:\d\d\d) |(?<=:\d\d\d\d) |(?<=←) "
    r"|(?<=step) (?=\d)|(?<=steps) (?=\d)|(?<=rank) (?=\d)"
)
_JOINED = "\N{NO-BREAK SPACE}"

# What is left out first if an answer has too many lines. A "command" is one of "do".
_EXPENDABLE = (
    *("steps", "modules", "command", "others", "lines", "more", "do", "why", "sizes"),
    *("grows", "values", "note"),
)


@dataclass(frozen=True)
class Line:
    """One line of an answer.

    Attributes:
        role: What the line answers. "file": the file of the answer; "ended": how the process ended
            that did not write it; "asked": the request that
            failed; "free": the memory that was free; "why": the reason; "from": the leak's line,
            and when memory runs out; "peak": the highest usage; "leak": whether memory is kept from
            step to step; "host": the host memory of the process; "lost": what the recording lacks;
            "held": what the memory was for; "lines": a call site that held memory; "modules" and
            "steps": those that are alike; "others": further devices or files; "do": what to try;
            "more": a command that shows more. Of an estimate, "check": how far it is from a
            recording; "largest": what fits; "grows": what grows with what; "sizes": other sizes;
            "note": what makes it uncertain.
        text: The text. Of "do" and "more" a command for a shell, unless `is_command` is False.
        note: What explains the text; "" for nothing.
        size_bytes: The bytes that come before the text; None for none.
        frame: The call site in the text; None for none.
        is_command: Whether the text is a command.
        source: The source of the call site, if the snapshot has it; else "".
        segment_bytes: The size of the segment that the allocator needed for `size_bytes`, which
            torch's message names, if it is shown as another size; else None.
    """

    role: str
    text: str
    note: str = ""
    size_bytes: int | None = None
    frame: Frame | None = None
    is_command: bool = False
    source: str = ""
    segment_bytes: int | None = None

    @property
    def amount(self) -> str:
        """The bytes before the text, as in "1 MiB, needs a new segment of 2 MiB"; "" for none."""
        amount = "" if self.size_bytes is None else size(self.size_bytes)
        segment = self.segment_bytes
        return amount if segment is None else f"{amount}, needs a new segment of {size(segment)}"


@dataclass(frozen=True)
class Answer:
    """The answer about a device, a file or a run.

    Attributes:
        kind: "oom": memory ran out; "leak": memory is kept from step to step; "none": no problem
            was found; "unknown": the file does not show whether there was one.
        verdict: The answer in a few words, as in "OUT OF MEMORY: fragmented".
        where: The device, the process, the step and the phase, as in "cuda:0, rank 0, step 4".
        lines: The lines, in their order.
    """

    kind: Literal["oom", "leak", "none", "unknown"]
    verdict: str
    where: str
    lines: list[Line]

    def __str__(self) -> str:
        """Return the answer as a terminal of 80 columns shows it."""
        return "\n".join(text_lines(self))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    @property
    def headline(self) -> str:
        """The verdict with its first figure, in one line."""
        facts = [line for line in self.lines if line.role in ("asked", "peak", "from", "why")]
        if not facts:
            return self.verdict
        first = facts[0]
        if first.role == "why":
            return f"{self.verdict}, {first.text}"
        amount = f"{first.amount} at " if first.amount else ""
        return f"{self.verdict}; {first.role} {amount}{first.text}"

    def texts(self, *roles: str) -> list[str]:
        """Return the texts of the lines that have one of these roles."""
        return [line.text for line in self.lines if line.role in roles]


class Answered(BriefRepr):
    """A result whose text is its answer."""

    answer: Answer

    def __str__(self) -> str:
        """Return the answer as a terminal of 80 columns shows it."""
        return str(self.answer)


def text_lines(
    answer: Answer,
    width: int = 80,
    source_of: Callable[[Line], str] = lambda _: "",
    *,
    has_all: bool = False,
) -> list[str]:
    """Return an answer as at most `MOST_LINES` lines for a terminal.

    A line is longer than `width` only if a path, a name or a command is.

    Args:
        width: The width of the terminal, in characters.
        source_of: Returns the source of a call site that the snapshot lacks, "" if it is unknown.
        has_all: Whether to return every line: every figure follows.
    """
    lines = list(answer.lines)
    if has_all:
        lines = [line for line in lines if not line.text.endswith(" --all")]
        return _rendered(answer, lines, width, source_of)
    while True:
        found = _rendered(answer, lines, width, source_of)
        if len(found) <= MOST_LINES:
            return found
        for role in _EXPENDABLE:
            same = [i for i, line in enumerate(lines) if _kind(line) == role]
            if role == "others" and len(same) > 1:
                lines[same[-2] :] = [Line(role, _FOLDED), *lines[same[-1] + 1 :]]
                break
            if role == "lines" and len(same) > 1:  # the first call site stays
                if len(same) == 2 and lines[same[-1]].text == _FOLDED:
                    continue
                lines[same[max(len(same) - 2, 1)] :] = [Line(role, _FOLDED), *lines[same[-1] + 1 :]]
                break
            if len(same) > (role not in ("steps", "modules")):  # of the others, the first stays
                del lines[same[-1]]
                break
        else:
            lines = [replace(line, note="") if line.is_command else line for line in lines]
            for most_rows in _FEWER_ROWS:
                found = _rendered(answer, lines, width, source_of, most_rows)
                if len(found) <= MOST_LINES:
                    break
            return found[:MOST_LINES]


# The most rows of each line of an answer that is still too long: what decided and what to do stay.
_FEWEST = {"file": 1, "asked": 2, "free": 2, "held": 2, "lines": 2}
_FEWER_ROWS: list[dict[str, int]] = [{}, {"held": 3, "lines": 3}, _FEWEST, {**_FEWEST, "why": 3}]


def _kind(line: Line) -> str:
    return "command" if line.role == "do" and line.is_command else line.role


_FOLDED = "and others, which --all shows"
_LOGGED = (
    *("ended", "asked", "free", "why", "from", "peak"),
    *("leak", "host", "lost", "held", "lines", "do"),
)


def log_lines(answer: Answer, roles: Sequence[str] = _LOGGED) -> list[str]:
    """Return an answer as lines for a job's log: the verdict, then one line for each role."""
    found = [f"{answer.verdict} ({answer.where})"]
    for role, same in groupby(answer.lines, key=lambda line: line.role):
        if role in roles:
            lines = [*same]
            if role == "do":
                first = next((i for i, line in enumerate(lines, 1) if line.is_command), None)
                lines = lines[:first]
            found.append(f"{role}: {'; '.join(one_line(line).rstrip('.') for line in lines)}")
    return [printable(line) for line in found]


def one_line(line: Line) -> str:
    """Return a line of an answer as one line of text, whatever its length."""
    amount = f"{line.amount} " if line.amount else ""
    note = f" ({line.note.rstrip('.')})" if line.note else ""
    return f"{amount}{line.text}{note}"


def _rendered(
    answer: Answer,
    lines: Sequence[Line],
    width: int,
    source_of: Callable[[Line], str],
    most_rows: Mapping[str, int] | None = None,
) -> list[str]:
    space = width - len(answer.verdict) - len(answer.where)
    if space >= 2:
        found = [answer.verdict + " " * space * bool(answer.where) + answer.where]
    else:
        found = [answer.verdict, " " + answer.where]
    for role, same in groupby(lines, key=lambda line: line.role):
        rows = list(same)
        sizes = [row.amount for row in rows]
        column = max(map(len, sizes))
        label = f" {role}"
        for row, amount in zip(rows, sizes, strict=True):
            first = f"{label:<{_LABEL}}" + (f"{amount:>{column}}  " if column else "")
            source = row.source or source_of(row)
            if source and row.frame is not None:
                source = f"{row.frame.line}: {source}"
            texts = [*_row(row, first, width, source)]
            most = (most_rows or {}).get(role, MOST_LINES)
            if len(texts) > most:
                last = texts[most - 1]
                texts[most - 1 :] = [f"{last.rpartition(' · ')[0] or last.rpartition(' ')[0]} …"]
            found += texts
            label = ""
    return [printable(line).rstrip() for line in found]


def _row(row: Line, first: str, width: int, source: str) -> Iterable[str]:
    indent = " " * len(first)
    lines = [first + row.text] if row.is_command else _wrapped(row.text, first, indent, width)
    note = f"({row.note})" if row.note and not row.is_command else row.note
    for text in filter(None, (note, source)):
        if not row.is_command and len(lines[-1]) + 2 + len(text) <= width:
            lines[-1] += f"  {text}"
        elif text == source:  # code is cut, not wrapped
            lines.append(indent + text[: max(width - len(indent), 20)])
        else:
            lines += _wrapped(text, indent, indent, width)
    return lines


def _wrapped(text: str, first: str, indent: str, width: int) -> list[str]:
    joined = _TOGETHER.sub(_JOINED, text)
    found = textwrap.wrap(
        joined,
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_JOINED, " ") for line in found] or [first]
