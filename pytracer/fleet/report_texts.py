"""The answers of `pytracer fleet report` as sentences, and the commands to look further."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence

from pytracer.fleet.report_results import Answer, Command, FleetReport, Row, Verdict
from pytracer.text import number, sentence, signed_size, size, size_range, utc_time

LEAST_RANKS = 8
"""The fewest ranks among which an outlier is named; `sql/spread.sql` has the same number."""

CLOCKS_S = 1.0  # how far the clocks of two hosts may be apart

MOST_COMMANDS = 6  # the most commands of a report

_FEW = 4  # the most ranks that a sentence names
_UNKNOWN_SITE = "an unknown call site"
_PARENTS = re.compile(r"^.*/(?=[^/]+/[^/]+:\d+ )")

_URGENCY: tuple[Verdict, ...] = ("found", "unknown", "none")


def answers_and_commands(report: FleetReport) -> tuple[list[Answer], list[Command]]:
    """Return the answers about a run, the most urgent first, and the commands to look further."""
    questions = {
        "ooms": _ooms,
        "peaks": _peaks,
        "growth": _growth,
        "settings": _settings,
        "damaged": _damaged,
    }
    answers = [Answer(topic, *answer(report)) for topic, answer in questions.items()]
    answers.sort(key=lambda answer: _URGENCY.index(answer.verdict))
    return answers, [*_commands(report)][:MOST_COMMANDS]


def _ooms(report: FleetReport) -> tuple[Verdict, str]:
    if not report.oom_order:
        if not report.overview.processes:
            return "unknown", "The files do not say whether a rank ran out of memory."
        return "none", "The files have no out-of-memory error."
    first = report.oom_order[0]
    ranks = list(dict.fromkeys(oom.process for oom in report.oom_order))
    text = f"{number(len(ranks), 'rank')} ran out of memory"
    if len(report.oom_order) > len(ranks):
        text += f", {len(report.oom_order):,} times in all"
    where = "" if first.step is None else f" in step {first.step:,}"
    doubt = _rival(report.oom_order)
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
    text += f". {sentence(first.process)} requested {asked}{site_text(first.site)}: "
    text += f"{first.verdict}, {first.explanation}" if first.verdict else "the reason is unknown."
    return "found", text


def _rival(ooms: Sequence[Row]) -> Row | None:
    """Return an error on another host that may have been before the first; None: there is none."""
    first = ooms[0]
    for oom in ooms[1:]:
        if oom.after_s is None or oom.after_s > CLOCKS_S:
            break
        if oom.process != first.process and (oom.host is None or oom.host != first.host):
            return oom
    return None


def _peaks(report: FleetReport) -> tuple[Verdict, str]:
    if not report.spread:
        return "unknown", "Can't tell what the peaks are: no file has usage over time."
    usable = [each for each in report.spread if each.verdict in ("none", "outliers")]
    largest = max(usable or report.spread, key=lambda each: (each.ranks, each.most_bytes))
    peaks = size_range(largest.least_bytes, largest.most_bytes)
    where, groups = in_slot(largest.slot), ""
    if largest.groups > 1:
        groups = (
            f" By their peaks, the ranks form {largest.groups} groups, such as the stages of a "
            "pipeline; each rank is compared with its own group."
        )
    if report.outliers:
        if not usable:
            groups = f" {number(largest.ranks, 'rank')} are too few for a statistical test."
        return "found", " ".join(_explained(report)) + groups
    if usable:
        text = f"No rank of {largest.ranks:,} stands out: the peaks are {peaks} {where}.{groups}"
        return "none", text
    why = f"{largest.outliers:,} of {largest.ranks:,} differ from the median {where}: {peaks}"
    if largest.verdict == "few":
        ranks = number(largest.ranks, "rank")
        why = f"only {ranks} can be compared {where}: {LEAST_RANKS} are needed"
    return "unknown", f"Can't tell which ranks stand out, because {why}."


def _explained(report: FleetReport) -> Iterator[str]:
    grows = {(process, growth.site) for growth in report.growth for process in growth.processes}
    by_reason: dict[tuple[str | None, bool, bool, str], list[Row]] = defaultdict(list)
    sites_of = {outlier.process: report.sites_of(outlier) for outlier in report.outliers}
    for outlier in report.outliers:
        main = next((each for each in sites_of[outlier.process][:1] if each.share >= 0.5), None)
        site = None if main is None else main.site
        does_grow = main is not None and (outlier.process, main.site) in grows
        is_lasting = does_grow or 2 * outlier.slots >= outlier.of_slots
        where = "" if is_lasting else f" {in_slot(outlier.slot)}"
        by_reason[site, outlier.delta_bytes > 0, does_grow, where].append(outlier)
    is_few = all(each.verdict == "few" for each in report.spread)
    of_others = " of the others" if is_few else ""
    for (site, is_more, does_grow, where), outliers in sorted(
        by_reason.items(), key=lambda pair: -len(pair[1])
    ):
        amounts = sorted(abs(each.delta_bytes) for each in outliers)
        than = f"{'more' if is_more else 'less'} than the median{of_others}"
        names, verb = named([each.process for each in outliers]), "uses"
        if len(outliers) > 1:
            names = f"{len(outliers):,} of {report.overview.processes:,} ranks ({names})"
            verb = "use"
        text = f"{names} {verb} {size_range(amounts[0], amounts[-1])} {than}{where}"
        if does_grow:
            text += f", because of the growth at {site_text(site)}"
        elif site is not None:
            is_all = all(sites_of[each.process][0].share >= 0.9 for each in outliers)
            text += f", {'' if is_all else 'most of it '}by {site_text(site)}"
        else:
            several = [site_text(each.site) for each in sites_of[outliers[0].process][:2]]
            text += f", at several call sites, such as {' and '.join(several)}" if several else ""
        yield sentence(f"{text}.")


def _growth(report: FleetReport) -> tuple[Verdict, str]:
    certain = [growth for growth in report.growth if growth.verdict != "unknown"]
    if certain:
        shown = certain[:3]
        parts = []
        for growth in shown:
            if growth.extent != "all":
                extent = (
                    f"{named(growth.processes, growth.ranks)} of {number(growth.of_ranks, 'rank')}"
                )
            elif growth.ranks < growth.of_ranks:
                extent = f"{growth.ranks:,} of {growth.of_ranks:,} ranks"
            else:
                extent = f"all {growth.ranks:,} ranks"
            rate = f"{size(round(growth.bytes_per_step))} a {growth.unit or 'step'}"
            text = f"Memory grows on {extent}, by {rate} at {site_text(growth.site)}"
            if growth.faster:
                text += f", and much faster on {named(growth.faster)}"
            parts.append(text + ".")
        if len(certain) > len(shown):
            parts.append(f"{number(len(certain) - len(shown), 'more call site')} grow.")
        return "found", " ".join(parts)
    if report.growth:
        maybe = report.growth[0]
        return "unknown", (
            "Can't tell whether memory leaks, because too few steps were collected. Memory grew "
            f"at {site_text(maybe.site)} on {maybe.ranks:,} of {maybe.of_ranks:,} ranks."
        )
    observed_ranks = max(report.overview.traced_ranks, report.overview.stepped_ranks)
    if not observed_ranks:
        return "unknown", (
            "Can't tell whether memory grows, because no rank has files from four steps, or "
            "a trace of enough steps."
        )
    return "none", f"Memory does not grow on {number(observed_ranks, 'rank')}."


def _settings(report: FleetReport) -> tuple[Verdict, str]:
    if not report.setting_differences:
        if not report.overview.processes:
            return "unknown", "The settings of the ranks are unknown."
        if report.overview.processes == 1:
            return "unknown", "Can't compare settings: there is only one rank."
        return "none", "All ranks have the same settings."
    differing = report.setting_differences
    usual = {(each.scope, each.key): each.value for each in differing if each.is_usual}
    by_ranks: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    split = []
    for each in told_settings(differing):
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
        parts.append(f"{sentence(named(processes, values[0].ranks))}: {', '.join(texts)}.")
    if len(by_ranks) > 3:
        parts.append(f"{len(by_ranks) - 3:,} more sets of ranks differ.")
    if split:
        keys = ", ".join(list(dict.fromkeys(split))[:3])
        parts.append(f"No value of {keys} is shared by most ranks.")
    return "found", "Settings differ. " + " ".join(parts)


def _damaged(report: FleetReport) -> tuple[Verdict, str]:
    if not report.damaged:
        return "none", "All files could be read."
    names = [shlex.quote(each.source.rpartition("/")[2]) for each in report.damaged]
    return "found", (
        f"{number(len(report.damaged), 'file')} of {report.overview.files:,} cannot be read: "
        f"{named(names)}. Copy them again, and repeat the collection."
    )


def _commands(report: FleetReport) -> Iterator[Command]:
    if report.oom_order:
        first = report.oom_order[0]
        why = f"Explains the out-of-memory error of {first.process}."
        yield _command("show", why, first.source)
    for outlier in report.outliers[:1]:
        why = f"Compares {outlier.process} with {outlier.reference_process}, the median rank."
        yield _command("diff", why, outlier.reference, outlier.source)
    for growth in [growth for growth in report.growth if growth.verdict != "unknown"][:2]:
        where = f"the growth at {site_text(growth.site)}"
        if growth.evidence == "trace":
            yield _command("show --leaks", f"Shows {where}.", growth.source)
        elif growth.first_source is not None:
            why = f"Compares two steps of {growth.processes[0]}: {where}."
            yield _command("diff", why, growth.first_source, growth.source)
    if report.worst is not None:
        where = f"{report.worst.process} {in_slot(report.worst.slot)}"
        why = f"Shows the file with the highest peak: {where}."
        yield _command("view", why, report.worst.source)


def _command(name: str, why: str, *sources: str) -> Command:
    if any("://" in source for source in sources):
        why += " Copy the file to this machine first."
    return Command(" ".join(["pytracer", name, *map(shlex.quote, sources)]), why)


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
        yield f"Other runs in {report.table}: {others}. To report on one, give --run NAME."
    if seen.uncertain:
        yield (
            f"In {number(seen.uncertain, 'file')}, the highest peak may be before the trace, "
            "because the ring overwrote events. The peaks shown are lower bounds."
        )


def in_slot(slot: str) -> str:
    """Return where a slot is, as in "in step 3" and "at the end"."""
    return "at the end" if slot == "end" else f"in {slot}" if "step " in slot else f"at {slot}"


def site_text(site: str | None) -> str:
    """Return a call site with the last folder of its file only."""
    return _UNKNOWN_SITE if site is None else _PARENTS.sub("", site)


def delta_text(old: int, new: int) -> str:
    """Return a change with its sign and its share of the old value."""
    share = f" ({(new - old) / old:+.1%})" if old else ""
    return f"{signed_size(new - old)}{share}"


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
