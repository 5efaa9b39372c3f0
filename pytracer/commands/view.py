"""The command `pytracer view`."""

import shlex
import webbrowser
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from pytracer.analysis.answer_of_files import in_order
from pytracer.analysis.explanation import explain_device
from pytracer.commands.parallel import find_files, in_parallel, print_errors
from pytracer.commands.shared_options import source_path
from pytracer.errors import PytracerError
from pytracer.page.difference import difference_of
from pytracer.page.file_data import file_data
from pytracer.page.open_file import OpenFile, Summary, compared, open_file, summarised, verdict_of
from pytracer.page.page import EMPTY, MOST_EVENTS, MOST_FILES, Page, page_of
from pytracer.reading.files import without_suffix
from pytracer.reading.reader import load
from pytracer.simulator.trials import try_settings
from pytracer.text import number, printable, size


@click.command("view")
@click.argument("paths", metavar="[FILE_OR_DIRECTORY]...", nargs=-1, type=source_path)
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to write the page. It overwrites nothing but an earlier page.  [default: NAME.html "
    "next to the snapshot or directory; with neither, page.html]",
)
@click.option("--open", "is_opened", is_flag=True, help="Open the page in the browser.")
@click.option(
    "--baseline",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Also show this snapshot, and what changed since it.",
)
@click.option(
    "--max-events",
    metavar="COUNT",
    type=click.IntRange(min=1),
    default=MOST_EVENTS,
    show_default=True,
    help="Show at most COUNT events: if need be, only the newest ones, and fewer files.",
)
@click.pass_context
def command(
    context: click.Context,
    paths: tuple[Path, ...],
    output: Path | None,
    is_opened: bool,
    baseline: Path | None,
    max_events: int,
) -> None:
    """What does a recording look like?

    \b
    pytracer view snapshot.pickle
    pytracer view outputs/profile -o report.html
    pytracer view after.pickle --baseline before.pickle

    Writes one HTML file that needs no network: usage over time, the memory map at any moment, all
    blocks and all events. If there are several files, the one of the first rank that ran out of
    memory comes first, else the one with the highest peak. Without a file, the page is empty: it
    shows other pages that are dropped onto it.
    """
    found, errors = find_files(paths)
    if baseline is not None and len(found) != 1:
        raise click.UsageError(f"--baseline needs one snapshot, but {len(found)} were given")
    page, failed = None if paths else EMPTY, list(errors)
    if baseline is not None and found:
        page = _page_of_two(found[0], baseline, max_events)
    elif len(found) == 1:
        page = page_of(_open(found[0]), max_events)
    elif found:
        page, unread = _page_of_files(found, max_events)
        failed += unread
    if page is not None:
        shown = paths[0] if paths else Path("page")
        path = output or shown.parent / f"{without_suffix(shown.absolute().name)}.html"
        written = page.save(path)
        count = number(len(page.data), "file")
        if len(page.files) > len(page.data):
            count = f"{len(page.data):,} of {number(len(page.files), 'file')} in full"
        for sentence in (f"wrote {path}: {size(written)}, {count}", *page.left_out):
            click.echo(printable(sentence))
        if is_opened and not webbrowser.open(path.absolute().as_uri()):
            click.echo(f"no browser was found: open {printable(str(path))} yourself", err=True)
    if print_errors(failed) or page is None:
        context.exit(1)


def _open(path: Path) -> OpenFile:
    return open_file(load(path), partial(explain_device, try_settings=try_settings))


def _summarised(path: Path) -> Summary:
    return summarised(_open(path))


def _page_of_two(path: Path, baseline: Path, max_events: int) -> Page:
    """Return the page of a run and its baseline; each has half of the events at least."""
    files = [_open(path), _open(baseline)]
    summaries = [summarised(file) for file in files]
    other = min(summaries[1].events, max_events // 2)
    data, left_out = file_data(files[0].snapshot, files[0].devices, max(max_events - other, 1))
    other_data, other_left_out = file_data(files[1].snapshot, files[1].devices, max(other, 1))
    difference = difference_of(*files)
    return Page(
        title=f"{summaries[0].name} and {summaries[1].name}",
        verdict=compared(verdict_of(files[0].file), summaries, difference),
        files=summaries,
        data={0: data, 1: other_data},
        left_out=[*left_out, *(f"Baseline: {sentence}" for sentence in other_left_out)],
        difference=difference,
    )


def _page_of_files(
    found: Sequence[Path], max_events: int
) -> tuple[Page | None, list[PytracerError]]:
    """Return the page of several files, and why others could not be read.

    A file is read once for its short description and, if it is shown in full, once more, because
    not all files may fit into memory.
    """
    results = in_parallel(_summarised, found, "Reading snapshots")
    failed = [result for result in results if isinstance(result, PytracerError)]
    summaries = _in_order([result for result in results if isinstance(result, Summary)])
    if not summaries:
        return None, failed
    left_out = []
    if len(summaries) > MOST_FILES:
        left_out.append(
            f"{len(summaries) - MOST_FILES:,} of {len(summaries):,} files are left out: give fewer."
        )
        summaries = summaries[:MOST_FILES]
    content: dict[int, bytes] = {}
    left = max_events
    for index, summary in enumerate(summaries):
        if index == 0 or summary.events <= left:
            try:
                file = open_file(load(Path(summary.file.path)))
            except PytracerError as error:  # the file was changed or deleted meanwhile
                if index == 0:
                    raise
                failed.append(error)
                continue
            content[index], sentences = file_data(file.snapshot, file.devices, max_events)
            name = f"{summary.name}: " if index else ""
            left_out += [f"{name}{sentence}" for sentence in sentences]
            left -= summary.events
    if len(content) < len(summaries):
        missing = next(each for index, each in enumerate(summaries) if index not in content)
        left_out.append(
            f"For {number(len(summaries) - len(content), 'file')}, the page shows only usage, "
            f"because a page holds at most {max_events:,} events. To see a file in full: "
            f"pytracer view {shlex.quote(missing.file.path)}"
        )
    title = f"{number(len(summaries), 'snapshot')}, first {summaries[0].name}"
    path, verdict = Path(summaries[0].file.path), verdict_of(summaries[0].file)
    name = f"{path.parent.name}/{path.name}".lstrip("/")
    why = "ran out of memory first"
    if not summaries[0].ooms:
        why = "leaks" if verdict.is_leak else "holds the most memory"
    left_out.insert(0, f"{name} is shown first of {number(len(summaries), 'file')}: it {why}.")
    return Page(title, verdict, summaries, content, left_out), failed


def _in_order(summaries: Sequence[Summary]) -> list[Summary]:
    """Return the files in the order of `pytracer show`, and of the other files by rank."""
    by_path = {summary.file.path: summary for summary in summaries}
    files = [by_path[file.path] for file in in_order(each.file for each in summaries)]

    def key(summary: Summary) -> tuple[bool, bool, int]:
        rank = summary.file.rank
        return summary.ooms == 0, rank is None, rank or 0

    return [*files[:1], *sorted(files[1:], key=key)]
