"""The answer of `pytracer fleet report` about a baseline."""

from pytracer.fleet.report_results import Answer, BaselineChange
from pytracer.fleet.report_words import delta_text, in_slot, named, signed, site_text


def baseline_answer(change: BaselineChange) -> Answer:
    """Return what changed against the baseline."""
    if not change.peaks:
        text = (
            "Can't compare the peaks, because the runs have no step or end in common. "
            f"{_others(change)}"
        )
        return Answer("baseline", "unknown", text.strip())
    top = max(change.peaks, key=lambda each: (abs(each.delta_bytes), each.median_bytes, each.slot))
    moved = abs(top.delta_bytes) > top.threshold_bytes
    parts = []
    if moved:
        text = (
            f"The median peak changed by {delta_text(top.baseline_median_bytes, top.median_bytes)} "
            f"{in_slot(top.slot)}"
        )
        same_sign = [s for s in change.sites if s.delta_bytes * top.delta_bytes > 0]
        if same_sign:
            text += f", most at {site_text(same_sign[0].site)} ({signed(same_sign[0].delta_bytes)})"
        parts.append(text + ".")
    else:
        parts.append("The median peaks did not change.")
    others = _others(change)
    is_change = moved or bool(others)
    return Answer(
        "baseline", "found" if is_change else "none", " ".join(filter(None, [*parts, others]))
    )


def _others(change: BaselineChange) -> str:
    parts = []
    if change.ooms != change.baseline_ooms:
        parts.append(f"Out-of-memory errors: {change.baseline_ooms:,} → {change.ooms:,}.")
    for names, text in (
        ([*map(site_text, change.new_growth)], "Memory grows now at"),
        ([*map(site_text, change.gone_growth)], "Memory no longer grows at"),
        (change.new_outliers, "New outliers:"),
        (change.gone_outliers, "No longer outliers:"),
    ):
        if names:
            parts.append(f"{text} {named(names)}.")
    if change.settings:
        keys = list(dict.fromkeys(setting.key for setting in change.settings))
        parts.append(f"Changed settings: {named(keys)}.")
    return " ".join(parts)
