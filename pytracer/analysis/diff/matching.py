"""Which call sites of two recordings are the same line of the program.

Files are paired by their paths, and the lines of two files in their order: an edit inserts and
removes lines, so all lines up to the next edit have moved by the same number. All lines of the
program in the recordings' stacks count, not only those that held memory. Two lines of one side
never become one.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import takewhile
from typing import Literal

from pytracer.reading.snapshot import Frame

Rule = Literal["line", "function", "path", "file name"]

Line = tuple[int, str]  # the number of a line, and the name of its function

Lines = Mapping[str, frozenset[Line]]  # the lines in the stacks of a recording, by file

_MOVE_COST = 0.75
"""What a change of the distance costs, in matched lines: one line alone may have moved."""

_MOST_CANDIDATES, _MOST_LINES = 50_000, 4_000_000
"""Of files with more possible pairs of lines, or a larger product of the numbers of their lines,
only lines with the same number are matched."""


def match_sites(
    before: Iterable[Frame | None],
    after: Iterable[Frame | None],
    lines_before: Lines,
    lines_after: Lines,
) -> dict[Frame | None, tuple[Frame | None, Rule]]:
    """Return for call sites of the baseline the same line on the other side, and the rule."""
    old, new = dict.fromkeys(before), set(after)
    old_lines, new_lines = _with_lines_of(old, lines_before), _with_lines_of(new, lines_after)
    files = _paired_files(old_lines.keys(), new_lines.keys())
    moved = {
        filename: _paired_lines(old_lines[filename], new_lines[other])
        for filename, (other, _) in files.items()
    }
    found: dict[Frame | None, tuple[Frame | None, Rule]] = {}
    for frame in old:
        counterpart: Frame | None = None  # memory without a stack
        rule: Rule = "line"
        if frame is not None:
            other, rule = files.get(frame.filename, ("", rule))
            line = moved.get(frame.filename, {}).get((frame.line, frame.name))
            if line is None:
                continue
            if rule == "line" and line != frame.line:
                rule = "function"
            counterpart = Frame(other, frame.name, line)
        if counterpart in new:
            new.remove(counterpart)
            found[frame] = counterpart, rule
    return found


def _with_lines_of(sites: Iterable[Frame | None], lines: Lines) -> dict[str, set[Line]]:
    """Return the lines of the files that have call sites: nodes of autograd are in no stack."""
    found: dict[str, set[Line]] = {}
    for frame in sites:
        if frame is not None:
            inside = found.setdefault(frame.filename, {*lines.get(frame.filename, ())})
            inside.add((frame.line, frame.name))
    return found


def _paired_files(before: Set[str], after: Set[str]) -> dict[str, tuple[str, Rule]]:
    """Pair the files of two recordings, whose folders differ between machines.

    Two files of other paths are a pair if the ends of their paths have more in common than those of
    any other files.
    """
    found: dict[str, tuple[str, Rule]] = {name: (name, "line") for name in before & after}
    old, new = _by_file_name(before - after), _by_file_name(after - before)
    for file_name in old.keys() & new.keys():
        for name, parts in old[file_name].items():
            length, other = _closest(parts, new[file_name])
            if length > 0 and _closest(new[file_name][other], old[file_name]) == (length, name):
                found[name] = other, "path" if length > 1 else "file name"
    return found


def _by_file_name(paths: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """Return the parts of paths, the last first, by file name and path."""
    found: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for path in paths:
        parts = re.split(r"[/\\]", path)[::-1]
        found[parts[0]][path] = parts
    return found


def _closest(parts: Sequence[str], others: Mapping[str, Sequence[str]]) -> tuple[int, str]:
    """Return the path with the longest common end, and its common parts; 0 if it is not unique."""
    common = sorted((_common(parts, other), name) for name, other in others.items())
    is_unique = len(common) == 1 or (len(common) > 1 and common[-1][0] > common[-2][0])
    return common[-1] if is_unique else (0, "")


def _common(parts: Sequence[str], others: Sequence[str]) -> int:
    pairs = zip(parts, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _paired_lines(before: Set[Line], after: Set[Line]) -> dict[Line, int]:
    """Pair the lines of two versions of a file; return the new number of each line."""
    if before == after:
        return {line: line[0] for line in before}
    found = _in_order(sorted(before), sorted(after))
    # A function of which no line was matched may have been moved above or below others.
    moved = {name for _, name in before & found.keys()}
    for name in {name for _, name in before} - moved:
        old, new = (sorted(line for line in side if line[1] == name) for side in (before, after))
        found |= _in_order(old, new)
    return found


def _in_order(old: Sequence[Line], new: Sequence[Line]) -> dict[Line, int]:
    """Pair lines in their order; return the new number of each.

    Of all such pairs of lines of functions with the same name, those are returned that match the
    most lines with the fewest changes of the distance.
    """
    places: dict[str, list[int]] = defaultdict(list)
    for place, (_, name) in enumerate(new):
        places[name].append(place)
    candidates = sum(len(places[name]) for _, name in old if name in places)
    if candidates > _MOST_CANDIDATES or len(old) * len(new) > _MOST_LINES:
        return {line: line[0] for line in {*old} & {*new}}
    pairs: list[tuple[Line, int, int]] = []  # a line, its new number, and the pair before it or -1
    # The best score and its last pair: of the lines before each place, and for each distance.
    best = [(0.0, -1)] * (len(new) + 1)
    with_distance = {0: (0.0, -1)}
    for line in old:
        added = []
        for place in places.get(line[1], ()):
            distance = new[place][0] - line[0]
            score, previous = best[place][0] - _MOVE_COST, best[place][1]
            if distance in with_distance and with_distance[distance][0] >= score:
                score, previous = with_distance[distance]
            added.append((place, distance, score + 1, len(pairs)))
            pairs.append((line, new[place][0], previous))
        for place, distance, score, pair in added:
            with_distance[distance] = score, pair
            for later in range(place + 1, len(best)):
                if best[later][0] >= score:
                    break  # scores never fall from place to place
                best[later] = score, pair
    found: dict[Line, int] = {}
    _, pair = best[-1]
    while pair >= 0:
        line, number, pair = pairs[pair]
        found[line] = number
    return found
