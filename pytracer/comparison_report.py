"""What a comparison says: in sentences, and as JSON has it."""

from typing import Any

from pytracer.comparison import Comparison, Setting
from pytracer.reading.plain import plain
from pytracer.reading.text import duration, folded, size

SCHEMA_VERSION = 1

LEAST_RUNS_FOR_TIMES = 4
"""Of each setting. Where there is no difference, the ranges of 4 runs and 4 are apart in 3 % of all
experiments, those of 2 and 2 in 33 %."""


def report(comparison: Comparison) -> dict[str, Any]:
    """All of it, with its conclusions."""
    told: dict[str, Any] = plain(comparison)
    about = told.pop("about")
    return {
        "schema_version": SCHEMA_VERSION,
        **about,
        **told,
        "conclusions": conclusions(comparison),
    }


def conclusions(comparison: Comparison) -> list[str]:
    """A sentence for each setting but the first, or why there is none.

    Nothing is said that the numbers leave open: of ranges that overlap none is called lower, and a
    run that ended early has no peak but a lower bound of one.
    """
    first, *others = comparison.settings
    if not first.measured:
        return [f"Nothing is compared: {_nothing(first)}."]
    return [_conclusion(first, other) for other in others]


def _conclusion(first: Setting, other: Setting) -> str:
    if not other.measured:
        return f"{other.name} is not compared: {_nothing(other)}."
    parts = [_reserved(first, other), _ooms(first, other), _steps(first, other)]
    told = "; ".join(filter(None, parts)) or "the numbers that would tell are not known"
    return f"{other.name}: {told}."


def _nothing(setting: Setting) -> str:
    return f"no run of {setting.name} {'ended well' if setting.outcomes else 'is over'}"


def out_of_memory_runs(setting: Setting) -> tuple[int, int]:
    """How many runs ran out of memory, of how many that is known."""
    known = [outcome.ooms for outcome in setting.measured if outcome.ooms is not None]
    return sum(ooms > 0 for ooms in known), len(known)


def folded_name(name: str, width: int) -> str:
    """A setting's name in lines that end behind a sign between words, if they can."""
    return folded(name, width, ":,_")


def ended_early(setting: Setting) -> bool:
    """Whether a run did: what its setting's numbers tell is not of the whole program."""
    return any(outcome.ended_early for outcome in setting.measured)


def _ooms(first: Setting, other: Setting) -> str:
    (before, of_before), (after, of_after) = map(out_of_memory_runs, (first, other))
    if not of_before or not of_after:
        return ""
    runs = f"out of memory in {after} of {_runs(of_after)}" if after else "no out-of-memory"
    if not before and not after:
        return "no out-of-memory in either"
    if not before:
        return f"{runs}, where {first.name} had none"
    return f"{runs}, where {first.name} had it in {before} of {of_before}"


def _runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"


def _reserved(first: Setting, other: Setting) -> str:
    name = "peak_reserved_bytes"
    before, after = first.typical(name), other.typical(name)
    if before is None or after is None:
        return ""
    early = ended_early(first), ended_early(other)
    difference = _clear_difference(first, other, name)
    if difference is None:
        return "" if any(early) else "no difference in peak reserved beyond that from run to run"
    if difference == 0:
        return "" if any(early) else "peak reserved is the same"
    # One that ended early would have had as much or more.
    if (early[0] and difference > 0) or (early[1] and difference < 0):
        return ""
    at_least = "at least " if any(early) else ""
    word = "less" if difference < 0 else "more"
    return (
        f"peak reserved {at_least}{size(round(abs(difference)))}{_share(difference, before)} {word}"
    )


def _steps(first: Setting, other: Setting) -> str:
    """Of so few runs that their ranges may well be apart by chance, nothing is said."""
    difference = _clear_difference(first, other, "step_us")
    if not difference or ended_early(first) or ended_early(other):
        return ""
    if min(len(each.measured) for each in (first, other)) < LEAST_RUNS_FOR_TIMES:
        return ""
    before = first.typical("step_us")
    assert before is not None
    word = "less" if difference < 0 else "more"
    return f"a step took {duration(abs(round(difference)))}{_share(difference, before)} {word}"


def _clear_difference(first: Setting, other: Setting, name: str) -> float | None:
    """The difference of the medians; None: the runs' ranges overlap, or are not known."""
    before, after = first.spread(name), other.spread(name)
    if before is None or after is None:
        return None
    if before[0] <= after[1] and after[0] <= before[1] and (before != after or len({*before}) > 1):
        return None
    typical = first.typical(name), other.typical(name)
    assert typical[0] is not None
    assert typical[1] is not None
    return typical[1] - typical[0]


def _share(difference: float, of: float) -> str:
    return f" ({share(difference, of)})" if of else ""


def share(difference: float, of: float) -> str:
    """As in "12.5 %", without a sign."""
    percent = 100 * abs(difference) / of
    return f"{percent:,.0f} %" if percent >= 100 else f"{percent:.3g} %"
