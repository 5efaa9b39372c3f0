"""Steps and modules that are alike, as one row: "steps 3 to 12", "layers.*"."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytracer.analysis.steps_and_phases import Step

_NUMBER = re.compile(r"(?<![\w])\d+(?![\w])")
_STEPS_DIFFER = 1.01
_MODULES_DIFFER = 1.1


@dataclass(frozen=True)
class AlikeSteps:
    """Consecutive steps whose peaks differ by at most 1 %.

    Attributes:
        first, last: The first and the last of the steps.
        least_bytes, most_bytes: The lowest and the highest peak of allocated bytes.
    """

    first: int
    last: int
    least_bytes: int
    most_bytes: int


@dataclass(frozen=True)
class AlikeModules:
    """Modules whose paths differ in numbers only, and whose sizes differ by at most 10 %.

    Attributes:
        name: The path, as in "layers.*.attn"; of a single module its own path.
        modules: The number of the modules.
        size_bytes: The bytes of all of them.
        least_bytes, most_bytes: The bytes of the smallest and of the largest of them.
    """

    name: str
    modules: int
    size_bytes: int
    least_bytes: int
    most_bytes: int


def alike_steps(steps: Iterable[Step]) -> list[AlikeSteps]:
    """Return the steps in their order, with those that are alike as one."""
    known = [
        (step.step, step.peak_bytes)
        for step in steps
        if step.step is not None and step.peak_bytes is not None
    ]
    found = []
    for run in alike_runs(known):
        numbers, peaks = zip(*(known[i] for i in run), strict=True)
        found.append(AlikeSteps(numbers[0], numbers[-1], min(peaks), max(peaks)))
    return found


def alike_modules(usages: Sequence[tuple[str, int]]) -> list[AlikeModules]:
    """Return modules, given with their bytes, with those that are alike as one, largest first."""
    found = []
    for name, rows in alike_names(usages):
        sizes = [usages[row][1] for row in rows]
        found.append(AlikeModules(name, len(rows), sum(sizes), min(sizes), max(sizes)))
    return sorted(found, key=lambda modules: -modules.size_bytes)


def alike_runs(values: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return rows of numbers that follow each other and whose bytes differ by at most 1 %.

    `values` has a number and bytes in each row, in the order of the numbers.
    """
    found: list[list[int]] = []
    least = most = 0
    for row, (number, size_bytes) in enumerate(values):
        if found and number == values[row - 1][0] + 1:
            lower, upper = min(least, size_bytes), max(most, size_bytes)
            if upper <= _STEPS_DIFFER * lower:
                found[-1].append(row)
                least, most = lower, upper
                continue
        found.append([row])
        least = most = size_bytes
    return found


def alike_names(values: Sequence[tuple[str, int]]) -> list[tuple[str, list[int]]]:
    """Return rows whose names differ in numbers only and whose bytes differ by at most 10 %.

    `values` has a name and bytes in each row. The returned names have "*" for a number if there are
    several rows.
    """
    patterns: dict[str, list[int]] = {}
    for row in sorted(range(len(values)), key=lambda row: -values[row][1]):
        patterns.setdefault(_NUMBER.sub("*", values[row][0]), []).append(row)
    found = []
    for pattern, rows in patterns.items():
        begin = 0
        for end in range(1, len(rows) + 1):
            most = values[rows[begin]][1]
            if end == len(rows) or most > _MODULES_DIFFER * values[rows[end]][1]:
                alike = rows[begin:end]
                found.append((values[alike[0]][0] if len(alike) == 1 else pattern, alike))
                begin = end
    return found


def ranges_text(numbers: Iterable[int]) -> str:
    """Return numbers as text, as in "0, 2-5, 7"."""
    rows = [(number, 0) for number in sorted(set(numbers))]
    ends = [(rows[run[0]][0], rows[run[-1]][0]) for run in alike_runs(rows)]
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)
