"""The conclusions of a comparison as sentences, and the comparison as JSON."""

from typing import Any

from pytracer.experiments.comparison import Comparison, Setting
from pytracer.reading.to_json import SCHEMA_VERSION, to_json
from pytracer.text import duration, size, wrapped_text

LEAST_RUNS_FOR_TIMES = 4
"""The runs of each setting that a statement about time needs. Without a real difference, the ranges
of 4 and 4 runs do not overlap in 3 % of all experiments, those of 2 and 2 runs in 33 %."""


_TIMES = ("step_us", "wall_s")


def report(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison and its conclusions as JSON has them."""
    document: dict[str, Any] = to_json(comparison)
    metadata = document.pop("metadata")
    return {
        "schema_version": SCHEMA_VERSION,
        **metadata,
        **document,
        "conclusions": conclusions(comparison),
    }


def conclusions(comparison: Comparison) -> list[str]:
    """Return a sentence for each setting but the first, or why settings cannot be compared.

    A sentence claims nothing that the numbers leave open: values whose ranges overlap do not
    differ, and the peak of a run that ended early is a lower bound.
    """
    first, *others = comparison.settings
    if not first.measured:
        return [f"Nothing can be compared: {_missing_runs(first)}."]
    return [_conclusion(first, setting) for setting in others]


def _conclusion(first: Setting, setting: Setting) -> str:
    if not setting.measured:
        return f"{setting.name} cannot be compared: {_missing_runs(setting)}."
    clauses = [_reserved(first, setting), _ooms(first, setting), _steps(first, setting)]
    text = "; ".join(filter(None, clauses)) or "unknown, because the numbers to compare are missing"
    return f"{setting.name}: {text}."


def _missing_runs(setting: Setting) -> str:
    if setting.outcomes:
        return f"every run of {setting.name} failed"
    return f"no run of {setting.name} has ended"


def wrapped_name(name: str, width: int) -> str:
    """Return a setting's name in lines that end behind ":", "," or "_" where possible."""
    return wrapped_text(name, width, ":,_")


def is_comparable(first: Setting, setting: Setting, name: str) -> bool:
    """Return whether the difference of an attribute is that of the settings.

    Lower bounds and the numbers of runs that ended early have no difference that is known, and
    times of a few runs differ by chance.
    """
    if any(each.is_lower_bound(name) or each.ended_early for each in (first, setting)):
        return False
    runs = min(len(first.measured), len(setting.measured))
    return name not in _TIMES or runs >= LEAST_RUNS_FOR_TIMES


def _ooms(first: Setting, setting: Setting) -> str:
    (before, runs_before), (after, runs_after) = (
        first.out_of_memory_runs,
        setting.out_of_memory_runs,
    )
    if not runs_before or not runs_after:
        return ""
    if not before and not after:
        return "no run ran out of memory"
    return (
        f"{after} of {runs_after} runs ran out of memory; "
        f"with {first.name}, {before} of {runs_before}"
    )


def _reserved(first: Setting, setting: Setting) -> str:
    before = first.typical("peak_reserved_bytes")
    if before is None or setting.typical("peak_reserved_bytes") is None:
        return ""
    difference = _clear_difference(first, setting, "peak_reserved_bytes")
    is_early = first.ended_early or setting.ended_early
    if not difference:
        same = "is the same" if difference == 0 else "differs no more than repeated runs do"
        return "" if is_early else f"peak reserved {same}"
    lower = first if difference > 0 else setting
    if lower.ended_early:  # it would have reserved as much, or more
        return ""
    at_least = "at least " if is_early else ""
    word = "lower" if difference < 0 else "higher"
    amount = size(round(abs(difference)))
    return f"peak reserved is {at_least}{amount}{_share_text(difference, before)} {word}"


def _steps(first: Setting, setting: Setting) -> str:
    """Compare the times of steps, if there are enough runs to exclude chance."""
    before, difference = first.typical("step_us"), _clear_difference(first, setting, "step_us")
    if before is None or not difference or not is_comparable(first, setting, "step_us"):
        return ""
    word = "shorter" if difference < 0 else "longer"
    amount = duration(abs(round(difference)))
    return f"a step is {amount}{_share_text(difference, before)} {word}"


def _clear_difference(first: Setting, setting: Setting, name: str) -> float | None:
    """Return the difference of the medians; None: unknown, or the runs' ranges overlap."""
    before, after = first.spread(name), setting.spread(name)
    if before is None or after is None:
        return None
    if before[0] <= after[1] and after[0] <= before[1] and (before != after or len({*before}) > 1):
        return None
    return (setting.typical(name) or 0) - (first.typical(name) or 0)


def _share_text(difference: float, total: float) -> str:
    return f" ({share(difference, total)})" if total else ""


def share(difference: float, total: float) -> str:
    """Return a share without its sign, as in "12.5 %"."""
    percent = 100 * abs(difference) / total
    return f"{percent:,.0f} %" if percent >= 100 else f"{percent:.3g} %"
