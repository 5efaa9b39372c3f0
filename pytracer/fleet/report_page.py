"""The report as one HTML file that needs no network and no scripts."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from pytracer import __version__
from pytracer.atomic_file import open_atomically
from pytracer.errors import PytracerError
from pytracer.fleet.report_results import FleetReport
from pytracer.fleet.report_rows import Spread
from pytracer.fleet.report_words import delta_text, named, notes, signed, site_text, told_settings
from pytracer.text import printable, size, utc_time

MOST_ROWS = 200
"""The most rows of a table. The dataset and `--json` have all rows."""

_MARK = '<meta name="generator" content="pytracer fleet report'
_HEAD_BYTES = 1024
_WIDTH, _HEIGHT = 860, 22

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --accent: #d9480f; --bar: #4c7fbf; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
ul.answers { list-style: none; padding: 0; }
ul.answers li { padding: .3rem .8rem; margin: .2rem 0; border-left: 4px solid var(--line); }
ul.answers li.found { border-color: var(--accent); font-weight: 600; }
ul.answers li.unknown { border-style: dashed; }
table { border-collapse: collapse; } .wide { overflow-x: auto; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
td { white-space: nowrap; }
th.text, td.text { text-align: left; white-space: normal; overflow-wrap: anywhere; }
td.text { min-width: 7rem; }
td svg { display: block; } code { overflow-wrap: anywhere; } .why { opacity: .75; }
svg .range { fill: var(--bar); opacity: .45; } svg .median { fill: var(--bar); }
svg .outlier { fill: var(--accent); }
"""


def write_page(report: FleetReport, path: Path) -> None:
    """Write the page of a report. Only an earlier page of this kind is overwritten.

    Raises:
        PytracerError: The file cannot be written, or exists and is no such page.
    """
    try:
        if path.is_file() and not _is_page(path):
            raise PytracerError(
                f"{path} exists and is not a page of pytracer fleet report: give another name, or "
                "remove it"
            )
        with open_atomically(path) as file:
            file.write(page(report).encode(errors="replace"))
    except OSError as error:
        raise PytracerError(f"cannot write {path}: {error.strerror}") from error


def page(report: FleetReport) -> str:
    """Return the page of a report."""
    title = _escaped(f"{report.run or 'Files without a run'}: {report.overview.processes:,} ranks")
    answers = "".join(
        f'<li class="{answer.verdict}">{_escaped(answer.text)}</li>' for answer in report.answers
    )
    commands = "".join(
        f'<li><code>{_escaped(command.command)}</code><br><span class="why">'
        f"{_escaped(command.why)}</span></li>"
        for command in report.commands
    )
    read = "".join(f"<p>{_escaped(line)}</p>" for line in notes(report))
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'{_MARK} {_escaped(__version__)}">\n',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n",
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n",
            f'<h1>{title}</h1>\n<ul class="answers">{answers}</ul>\n{read}\n',
            f"<h2>Look further</h2>\n<ul>{commands}</ul>\n" if commands else "",
            *_sections(report),
            "</body>\n</html>\n",
        ]
    )


def _sections(report: FleetReport) -> Iterator[str]:
    if report.baseline is not None:
        change = report.baseline
        yield _table(
            "Peaks against the baseline",
            ["files", "ranks", "baseline", "new", "change of the median"],
            [
                [each.slot, f"{each.baseline_ranks:,} → {each.ranks:,}"]
                + [size(each.baseline_median_bytes), size(each.median_bytes)]
                + [delta_text(each.baseline_median_bytes, each.median_bytes)]
                for each in change.peaks
            ],
        )
        yield _table(
            "Call sites against the baseline",
            ["call site", "baseline", "new", "change"],
            [
                [each.site, size(each.baseline_bytes), size(each.size_bytes)]
                + [signed(each.delta_bytes)]
                for each in change.sites
            ],
        )
        yield _table(
            "Settings against the baseline",
            ["setting", "baseline", "new"],
            [[each.key, each.baseline_value, each.value] for each in change.settings],
        )
    yield _table(
        "Out-of-memory errors in order of time",
        ["rank", "call site", "time", "after", "requested", "verdict", "file"],
        [
            [oom.process, site_text(oom.site), _time(oom.time_us)]
            + [None if oom.after_s is None else f"{oom.after_s:.3f} s"]
            + [_size(oom.requested_bytes), oom.verdict, oom.source]
            for oom in report.ooms
        ],
        text=2,
    )
    yield _spread(report.spread)
    yield _table(
        "Ranks that differ from the median",
        ["rank", "call site", "at the site", "in all", "peak", "median", "files", "file"],
        [
            [outlier.process, site_text(each.site), signed(each.delta_bytes)]
            + [delta_text(outlier.median_bytes, outlier.peak_bytes), size(outlier.peak_bytes)]
            + [size(outlier.median_bytes), f"{outlier.slots:,} of {outlier.of_slots:,}"]
            + [outlier.source]
            for outlier in report.outliers
            for each in outlier.sites[:5]
        ],
        text=2,
    )
    yield _table(
        "Memory that grows",
        ["call site", "ranks", "growth", "of all", "verdict", "evidence", "held", "file"],
        [
            [site_text(growth.site), named(growth.processes, growth.ranks)]
            + [f"{size(round(growth.bytes_per_step))} a {growth.unit or 'step'}"]
            + [f"{growth.ranks:,} of {growth.of_ranks:,}", growth.verdict, growth.evidence]
            + [_size(growth.held_bytes), growth.source]
            for growth in report.growth
        ],
        text=2,
    )
    yield _table(
        "Peaks by phase, where the ranks differ most",
        ["phase", "files", "ranks", "median", "highest", "ratio", "rank"],
        [
            [phase.phase or "(none)", phase.slot, phase.ranks, size(phase.median_bytes)]
            + [size(phase.most_bytes), f"{phase.imbalance:.3f}", phase.process]
            for phase in report.phases
        ],
        text=2,
    )
    yield _table(
        "Settings that differ",
        ["setting", "value", "ranks"],
        [
            [each.key, "(not set)" if each.value is None else each.value]
            + [f"{each.ranks:,}" if each.is_usual else named(each.processes, each.ranks)]
            for each in told_settings(report.settings)
        ],
        text=2,
    )
    yield _table(
        "Ranks without files",
        ["rank", "files that most ranks have", "reason"],
        [
            [f"{each.role} {each.rank}".strip(), "all" if each.has_none else ", ".join(each.slots)]
            + [each.reason]
            for each in report.missing
        ],
        text=2,
    )
    yield _table(
        "Files that cannot be read",
        ["file", "reason"],
        [[each.source, each.error.removeprefix(f"{each.source} ")] for each in report.damaged],
        text=2,
    )


def _table(
    title: str, names: Sequence[str], rows: Sequence[Sequence[object]], text: int = 1
) -> str:
    """Return a table with its title; its first `text` columns and its last are text."""
    if not rows:
        return ""
    is_text = [i < text or name in ("file", "reason") for i, name in enumerate(names)]
    head = "".join(map(_head, names, is_text))
    body = "".join(f"<tr>{''.join(map(_cell, row, is_text))}</tr>\n" for row in rows[:MOST_ROWS])
    return _section(title, head, body, len(rows) - MOST_ROWS)


def _section(title: str, head: str, body: str, others: int) -> str:
    more = f"<p>{others:,} more rows are in the dataset.</p>" if others > 0 else ""
    return (
        f'<h2>{_escaped(title)}</h2>\n<div class="wide"><table>\n<tr>{head}</tr>\n{body}</table>'
        f"</div>{more}\n"
    )


def _head(name: str, is_text: bool) -> str:
    return f'<th class="text">{_escaped(name)}</th>' if is_text else f"<th>{_escaped(name)}</th>"


def _cell(value: object, is_text: bool) -> str:
    shown = "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    return f'<td class="text">{_escaped(shown)}</td>' if is_text else f"<td>{_escaped(shown)}</td>"


def _spread(spread: Sequence[Spread]) -> str:
    """Return the table of peaks, each with a bar from the lowest to the highest."""
    if not spread:
        return ""
    most = max(each.most_bytes for each in spread) or 1
    names = ["files", "ranks", "lowest", "median", "highest", "outliers", "lowest to highest"]
    rows = []
    for each in spread[:MOST_ROWS]:
        is_known = each.verdict in ("none", "outliers")
        cells = [f"{each.ranks:,}", *map(size, (each.least_bytes, each.median_bytes))]
        cells += [size(each.most_bytes), f"{each.outliers:,}" if is_known else f"? {each.verdict}"]
        low, middle, high = (
            _WIDTH // 3 * value // most
            for value in (each.least_bytes, each.median_bytes, each.most_bytes)
        )
        found = "outlier" if each.outliers and is_known else "range"
        bar = (
            f'<td><svg width="{_WIDTH // 3}" height="{_HEIGHT}" role="img" aria-label='
            f'"{_escaped(each.slot)}"><rect class="{found}" x="{low}" y="8" '
            f'width="{max(high - low, 1)}" height="6"/><rect class="median" x="{middle}" y="3" '
            'width="2" height="16"/></svg></td>'
        )
        rows.append(f"<tr>{_cell(each.slot, True)}{''.join(map(_plain, cells))}{bar}</tr>\n")
    head = "".join(_head(name, i == 0) for i, name in enumerate(names))
    return _section("Peaks of allocated memory", head, "".join(rows), len(spread) - MOST_ROWS)


def _plain(text: str) -> str:
    return _cell(text, False)


def _size(count_bytes: int | None) -> str | None:
    return None if count_bytes is None else size(count_bytes)


def _time(time_us: int | None) -> str | None:
    return None if time_us is None else utc_time(time_us)


def _escaped(text: str) -> str:
    return escape(printable(text))


def _is_page(path: Path) -> bool:
    with open(path, "rb") as file:
        return _MARK.encode() in file.read(_HEAD_BYTES)
