"""Words and figures of reports: ranks, call sites, changes, and what was read."""

import re
from collections.abc import Iterator, Sequence

from pytracer.fleet.report_results import FleetReport, Row
from pytracer.text import number, size, utc_time

_FEW = 4  # the most ranks that a sentence names
UNKNOWN_SITE = "an unknown call site"
_PARENTS = re.compile(r"^.*/(?=[^/]+/[^/]+:\d+ )")


def notes(report: FleetReport) -> Iterator[str]:
    """Yield what was read, and what the report may lack."""
    seen = report.overview
    text = f"{report.run or 'files without a run'}: {number(seen.files, 'file')} of "
    text += number(seen.processes, "rank")
    if seen.first_step is not None and seen.last_step is not None:
        text += f", step {seen.first_step:,}"
        if seen.last_step > seen.first_step:
            text = text.replace(", step ", ", steps ") + f" to {seen.last_step:,}"
    if seen.last_us is not None:
        text += f", the last one written {utc_time(seen.last_us).partition('.')[0]} UTC"
    yield f"{text}."
    if report.other_runs:
        others = named(report.other_runs)
        yield f"Other runs in {report.table}: {others}. Report on one by --run NAME."
    if seen.uncertain:
        yield (
            f"In {number(seen.uncertain, 'file')}, the highest peak may be older than the trace: "
            "the events of the ring were overwritten. Such peaks are lower bounds."
        )


def in_slot(slot: str) -> str:
    """Return where a slot is, as in "in step 3" and "at the end"."""
    return "at the end" if slot == "end" else f"in {slot}" if "step " in slot else f"at {slot}"


def site_text(site: str | None) -> str:
    """Return a call site with the last folder of its file only."""
    return UNKNOWN_SITE if site is None else _PARENTS.sub("", site)


def signed(delta_bytes: float) -> str:
    """Return a change with its sign."""
    text = size(abs(round(delta_bytes)))
    return f"+{text}" if delta_bytes > 0 else f"-{text}" if delta_bytes < 0 else text


def delta_text(old: int, new: int) -> str:
    """Return a change with its sign and its share of the old value."""
    share = f" ({(new - old) / old:+.1%})" if old else ""
    return f"{signed(new - old)}{share}"


def named(names: Sequence[str], total: int | None = None) -> str:
    """Return the names of processes, as in "ranks 3, 17 and 4 others"."""
    total = len(names) if total is None else total
    shown = list(names) if total <= _FEW else list(names[: _FEW - 1])
    if all(re.fullmatch(r"rank \d+", name) for name in shown) and len(shown) > 1:
        shown = ["ranks " + shown[0][5:], *(name[5:] for name in shown[1:])]
    if total > len(shown):
        shown.append(f"{total - len(shown):,} others")
    if len(shown) == 1:
        return shown[0]
    return ", ".join(shown[:-1]) + f" and {shown[-1]}"


def told_settings(settings: list[Row]) -> list[Row]:
    """Return the settings without what torch reports of settings that differ anyhow."""
    allocator = {process for s in settings if s.scope == "allocator" for process in s.processes}
    told = {
        (s.scope, s.key)
        for s in settings
        if s.processes and (s.scope != "reported" or not allocator.issuperset(s.processes))
    }
    return [s for s in settings if (s.scope, s.key) in told]
