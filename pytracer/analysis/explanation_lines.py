"""An explanation in four lines, for the log of a job and for the first lines of a report."""

from pytracer.analysis.explanation import Explanation
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.holders import Holder
from pytracer.analysis.verdicts import UNKNOWN, Verdict
from pytracer.text import number, printable, size

SHOWN_HOLDERS = 3


def lines(explanation: Explanation, *, is_file: bool = True) -> list[str]:
    """Return what happened, the verdicts, who holds the memory, and what to try: one line each.

    A line without content is left out. Without a file there is nothing to try, because commands
    read files.
    """
    found = [explanation.what]
    if explanation.verdicts:
        found.append(f"Verdict: {verdict_text(explanation.verdicts)}")
    if explanation.leak == "leak":
        found.append(explanation.leak_answer)
    if explanation.holders:
        held = "; ".join(map(holder_text, explanation.holders[:SHOWN_HOLDERS]))
        found.append(f"Held by: {held}.")
    if explanation.suggestions and is_file:
        found.append(f"Try: {explanation.suggestions[0].text()}")
    return [printable(line) for line in found]


def verdict_text(verdicts: list[Verdict]) -> str:
    """Return verdicts in one line, as in "too large: 3 GiB are more than all free memory"."""
    texts = []
    for verdict in verdicts:
        kind = f"{verdict.kind}, because" if verdict.kind == UNKNOWN else f"{verdict.kind}:"
        texts.append(f"{kind} {verdict.text}")
    return " Also ".join(texts)


def fitting_text(explanation: Explanation) -> str:
    """Return the settings with which the allocation would have fitted; "" if not simulated."""
    fitting = explanation.fitting_settings
    if fitting is None:
        return ""
    if not fitting:
        return "Would not have fitted with the settings that were simulated."
    return f"Would have fitted with {' or with '.join(fitting)}."


def purposes_text(explanation: Explanation) -> str:
    """Return what memory was for, as in "optimizer state 2 GiB (50%), parameter 1 GiB (25%)"."""
    if not any(usage.owners for usage in explanation.categories):
        return ""
    total = max(explanation.held_bytes, 1)
    return ", ".join(
        f"{usage.category.replace('_', ' ')} {size(usage.size_bytes)} "
        f"({usage.size_bytes / total:.0%})"
        for usage in explanation.categories
    )


def holder_text(holder: Holder) -> str:
    """Return a holder as text, as in "14.05 GiB (44 %) models/mlp.py:31 forward, of step 3"."""
    site = holder.site
    text = f"{size(site.size_bytes)} ({holder.share:.0%}) {call_site_text(site.call_site)}"
    if holder.callers:
        text += f" ← {call_site_text(holder.callers[0])}"
    if age := age_text(holder):
        text += f" ({age})"
    return text


def age_text(holder: Holder) -> str:
    """Return how old the blocks of a holder are, as in "2-7 steps old"; "" if it is unknown."""
    oldest, newest = holder.oldest_age, holder.newest_age
    if newest is None:
        return ""
    if oldest is None:
        return f"at least {number(newest, 'step')} old" if newest else "of this and earlier steps"
    if oldest == newest:
        return "of this step" if oldest == 0 else f"{number(oldest, 'step')} old"
    return f"{newest}-{oldest} steps old"
