"""The answers of `pytracer fleet report` as sentences, and the commands to look further."""

import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence

from pytracer.fleet.report_commands import MOST_COMMANDS, commands
from pytracer.fleet.report_comparison import baseline_answer
from pytracer.fleet.report_results import Answer, Command, FleetReport
from pytracer.fleet.report_rows import FleetOom, MissingRank, Outlier, SettingValue, Spread
from pytracer.fleet.report_words import in_slot, named, site_text, told_settings
from pytracer.text import number, size, size_range

LEAST_RANKS = 8
"""The fewest ranks among which an outlier is named; `sql/spread.sql` has the same number."""

CLOCKS_S = 1.0
"""How far the clocks of two hosts may be apart."""

_CASES = {"found": 0, "unknown": 1, "none": 2}


def answers_and_commands(report: FleetReport) -> tuple[list[Answer], list[Command]]:
    """Return the answers about a run, the most urgent first, and the commands to look further."""
    answers = [
        *([] if report.baseline is None else [baseline_answer(report.baseline)]),
        _ooms(report),
        _peaks(report),
        _growth(report),
        _phases(report),
        _settings(report),
        _missing(report),
        _damaged(report),
    ]
    first = answers[: 1 if report.baseline is not None else 0]
    others = sorted(answers[len(first) :], key=lambda answer: _CASES[answer.verdict])
    return [*first, *others], [*commands(report)][:MOST_COMMANDS]


def _ooms(report: FleetReport) -> Answer:
    if not report.ooms:
        if not report.overview.processes:
            return Answer("ooms", "unknown", "Whether a rank ran out of memory is unknown.")
        return Answer("ooms", "none", "The files have no out-of-memory error.")
    first = report.ooms[0]
    ranks = list(dict.fromkeys(oom.process for oom in report.ooms))
    text = f"{number(len(ranks), 'rank')} ran out of memory"
    if len(report.ooms) > len(ranks):
        text += f", {len(report.ooms):,} times in all"
    where = "" if first.step is None else f" in step {first.step:,}"
    doubt = _rival(report.ooms)
    if doubt is not None:
        text += (
            f". Can't tell which was the first, because {doubt.process} failed {doubt.after_s:.3g} "
            f"s after {first.process}, and the clocks of their hosts may differ"
        )
    elif len(ranks) > 1:
        text += f"; {first.process} was the first{where}"
    else:
        text += f": {first.process}{where}"
    asked = "" if first.requested_bytes is None else f"{size(first.requested_bytes)} at "
    text += f". {_first_upper(first.process)} requested {asked}{site_text(first.site)}: "
    text += f"{first.verdict}, {first.explanation}" if first.verdict else "the reason is unknown."
    return Answer("ooms", "found", text)


def _rival(ooms: Sequence[FleetOom]) -> FleetOom | None:
    """Return an error on another host that may have been before the first; None: there is none."""
    first = ooms[0]
    for oom in ooms[1:]:
        if oom.after_s is None or oom.after_s > CLOCKS_S:
            break
        if oom.process != first.process and (oom.host is None or oom.host != first.host):
            return oom
    return None


def _peaks(report: FleetReport) -> Answer:
    spread = report.spread
    if not spread:
        return Answer("peaks", "unknown", "Can't tell the peaks: no file has usage over time.")
    usable = [each for each in spread if each.verdict in ("none", "outliers")]
    largest = max(usable or spread, key=lambda each: (each.ranks, each.most_bytes))
    if not usable and report.outliers:
        number_of = number(largest.ranks, "rank")
        text = f"{' '.join(_explained(report))} This is said without statistics, of {number_of}."
        return Answer("peaks", "found", text)
    if not usable:
        return Answer("peaks", "unknown", _why_no_outliers(largest))
    where = f"{size_range(largest.least_bytes, largest.most_bytes)} {in_slot(largest.slot)}"
    groups = ""
    if largest.groups > 1:
        groups = (
            f" The peaks form {largest.groups} groups of ranks, as the stages of a pipeline do; "
            "each rank is compared with its own group."
        )
    if not report.outliers:
        text = f"No rank stands out of {largest.ranks:,}: the peaks are {where}.{groups}"
        return Answer("peaks", "none", text)
    parts = [*_explained(report)]
    return Answer("peaks", "found", " ".join(parts) + groups)


def _why_no_outliers(spread: Spread) -> str:
    if spread.verdict == "few":
        return (
            f"Can't tell which ranks stand out, because only {number(spread.ranks, 'rank')} can be "
            f"compared {in_slot(spread.slot)}: {LEAST_RANKS} are needed."
        )
    return (
        f"Can't tell which ranks stand out, because {spread.outliers:,} of {spread.ranks:,} differ "
        f"from the median {in_slot(spread.slot)}: "
        f"{size_range(spread.least_bytes, spread.most_bytes)}."
    )


def _explained(report: FleetReport) -> Iterator[str]:
    """Yield a sentence for the outliers with the same reason."""
    grows = {(process, growth.site) for growth in report.growth for process in growth.processes}
    by_reason: dict[tuple[str | None, bool, bool, str], list[Outlier]] = defaultdict(list)
    for outlier in report.outliers:
        main = outlier.sites[0] if outlier.sites and outlier.sites[0].share >= 0.5 else None
        site = None if main is None else main.site
        does_grow = main is not None and (outlier.process, main.site) in grows
        is_lasting = does_grow or 2 * outlier.slots >= outlier.of_slots
        where = "" if is_lasting else f" {in_slot(outlier.slot)}"
        by_reason[site, outlier.delta_bytes > 0, does_grow, where].append(outlier)
    of_ranks = report.overview.processes
    is_few = all(each.verdict == "few" for each in report.spread)
    of_others = " of the others" if is_few else ""
    for (site, is_more, does_grow, where), outliers in sorted(
        by_reason.items(), key=lambda pair: -len(pair[1])
    ):
        verb = "uses" if len(outliers) == 1 else "use"
        amounts = sorted(abs(each.delta_bytes) for each in outliers)
        than = f"{'more' if is_more else 'less'} than the median{of_others}"
        names = named([each.process for each in outliers])
        if len(outliers) > 1:
            names = f"{len(outliers):,} of {of_ranks:,} ranks ({names})"
        text = f"{names} {verb} {size_range(amounts[0], amounts[-1])} {than}{where}"
        if does_grow:
            text += f", by the growth at {site_text(site)}"
        elif site is not None:
            is_all = all(each.sites[0].share >= 0.9 for each in outliers)
            text += f", {'' if is_all else 'most of it '}by {site_text(site)}"
        else:
            several = [site_text(each.site) for each in outliers[0].sites[:2]]
            text += f", by several call sites, such as {' and '.join(several)}" if several else ""
        yield _first_upper(f"{text}.")


def _growth(report: FleetReport) -> Answer:
    certain = [growth for growth in report.growth if growth.verdict != "unknown"]
    if certain:
        shown = certain[:3]
        parts = []
        for growth in shown:
            rate = f"{size(round(growth.bytes_per_step))} a {growth.unit or 'step'}"
            extent = (
                f"all {growth.ranks:,} ranks"
                if growth.extent == "all"
                else f"{named(growth.processes, growth.ranks)} of {growth.of_ranks:,} ranks"
            )
            if growth.extent == "all" and growth.ranks < growth.of_ranks:
                extent = f"{growth.ranks:,} of {growth.of_ranks:,} ranks"
            text = f"Memory grows on {extent}, by {rate} at {site_text(growth.site)}"
            if growth.faster:
                text += f", and much faster on {named(growth.faster)}"
            parts.append(text + ".")
        if len(certain) > len(shown):
            parts.append(f"{number(len(certain) - len(shown), 'more call site')} grow.")
        return Answer("growth", "found", " ".join(parts))
    if report.growth:
        maybe = report.growth[0]
        text = (
            f"Can't tell whether memory leaks, because too few steps were collected: it grew at "
            f"{site_text(maybe.site)} on {maybe.ranks:,} of {maybe.of_ranks:,} ranks."
        )
        return Answer("growth", "unknown", text)
    if not report.observed_ranks:
        text = (
            "Can't tell whether memory grows, because no rank has files of four steps, or a trace "
            "with enough steps."
        )
        return Answer("growth", "unknown", text)
    return Answer(
        "growth", "none", f"Memory does not grow on {number(report.observed_ranks, 'rank')}."
    )


def _phases(report: FleetReport) -> Answer:
    named_phases = [phase for phase in report.phases if phase.phase]
    uneven = [phase for phase in named_phases if phase.process is not None]
    if uneven:
        phase = uneven[0]
        text = (
            f"The ranks differ most in phase {phase.phase}: {phase.process} peaks at "
            f"{size(phase.most_bytes)} {in_slot(phase.slot)}, {phase.imbalance:.3g} times the "
            f"median of {size(phase.median_bytes)}."
        )
        return Answer("phases", "found", text)
    if not named_phases:
        return Answer(
            "phases", "unknown", "Can't compare phases: no phase was recorded on two ranks."
        )
    phase = named_phases[0]
    text = (
        f"No rank stands out in a phase; the ranks differ most in phase {phase.phase}, by "
        f"{size(phase.most_bytes - phase.median_bytes)} above the median."
    )
    return Answer("phases", "none", text)


def _settings(report: FleetReport) -> Answer:
    if not report.settings:
        if not report.overview.processes:
            return Answer("settings", "unknown", "The settings of the ranks are unknown.")
        if report.overview.processes == 1:
            return Answer("settings", "unknown", "Can't compare settings: there is only one rank.")
        return Answer("settings", "none", "All ranks have the same settings.")
    usual = {(each.scope, each.key): each.value for each in report.settings if each.is_usual}
    by_ranks: dict[tuple[str, ...], list[SettingValue]] = defaultdict(list)
    split = []
    for each in told_settings(report.settings):
        if (each.scope, each.key) not in usual:
            split.append(each.key)
        elif not each.is_usual:
            by_ranks[tuple(each.processes)].append(each)
    parts = []
    for processes, values in [*by_ranks.items()][:3]:
        texts = [
            f"{value.key}={'(not set)' if value.value is None else value.value} "
            f"(others: {usual[value.scope, value.key] or 'not set'})"
            for value in values[:3]
        ]
        parts.append(f"{_first_upper(named(processes, values[0].ranks))}: {', '.join(texts)}.")
    if len(by_ranks) > 3:
        parts.append(f"{len(by_ranks) - 3:,} more sets of ranks differ.")
    if split:
        keys = ", ".join(list(dict.fromkeys(split))[:3])
        parts.append(f"No value is the usual one of {keys}.")
    return Answer("settings", "found", "Settings differ. " + " ".join(parts))


def _missing(report: FleetReport) -> Answer:
    if not report.expects_files:
        text = (
            "Can't tell which ranks have no file, because no kind of file is from most ranks. By "
            "default, only rank 0 writes files of steps and of the end."
        )
        return Answer("missing", "unknown", text)
    absent = [each for each in report.missing if each.has_none]
    partly = [each for each in report.missing if not each.has_none and each.reason is None]
    ended = [each for each in report.missing if not each.has_none and each.reason is not None]
    parts = []
    if absent:
        verb = "has" if len(absent) == 1 else "have"
        parts.append(f"{_first_upper(named([*map(_rank, absent)]))} {verb} no file.")
    if partly:
        names = named([*map(_rank, partly)])
        slots = named(list(dict.fromkeys(slot for each in partly for slot in each.slots)))
        verb = "lacks" if len(partly) == 1 else "lack"
        parts.append(f"{_first_upper(names)} {verb} files: {slots}.")
    if ended:
        text = f"{number(len(ended), 'rank')} {'has' if len(ended) == 1 else 'have'} no files"
        parts.append(f"{text} after the out-of-memory error.")
    if absent or partly:
        return Answer("missing", "found", " ".join(parts))
    parts.insert(0, "No other rank is missing." if ended else "No rank is missing.")
    return Answer("missing", "none", " ".join(parts))


def _rank(missing: MissingRank) -> str:
    return f"{missing.role} rank {missing.rank}".strip()


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _damaged(report: FleetReport) -> Answer:
    if not report.damaged:
        return Answer("damaged", "none", "All files could be read.")
    names = [shlex.quote(each.source.rpartition("/")[2]) for each in report.damaged]
    text = (
        f"{number(len(report.damaged), 'file')} of {report.overview.files:,} cannot be read: "
        f"{named(names)}. Copy them again, and repeat the collection."
    )
    return Answer("damaged", "found", text)
