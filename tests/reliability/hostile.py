"""Run every command on an untrusted file, and check its answer."""

import contextlib
import math
import traceback
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from attack import Budget, Found
from click.testing import CliRunner
from sweep import measured, note, sweep

from pytracer.analysis.requests import extract_recording
from pytracer.commands.main import main
from pytracer.errors import PytracerError
from pytracer.reading import load

GOLDEN = sorted((Path(__file__).parents[1] / "golden").rglob("*.pickle"))
SMALL = min(GOLDEN, key=lambda path: path.stat().st_size)
OURS = next(path for path in GOLDEN if path.name == "snapshot-1.4-cuda.pickle")

# The bounds of the promise for each question, by the file's size on the disk.
FREE_SECONDS, SECONDS_PER_MIB = 5.0, 30.0
FREE_MIB, BYTES_PER_BYTE = 64, 300
PROMISE = (
    "Each command reports, or ends with a one-line error, within "
    f"{FREE_SECONDS:g} s and {SECONDS_PER_MIB:g} s a MiB of the file (processor time), and within "
    f"{FREE_MIB} MiB and {BYTES_PER_BYTE} times the file's size of memory; never a traceback, a "
    "crash or a hang."
)

FORMATS = {
    "parquet": ("tables", []),
    "collapsed at the peak": ("stacks.txt", []),
    "collapsed at the end": ("stacks.txt", ["--at", "end"]),
    "collapsed at the oom": ("stacks.txt", ["--at", "oom"]),
}


def questions(
    path: Path, folder: Path, counterpart: Path = OURS
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield all questions about a file, by name; a question that refuses raises `PytracerError`."""
    for options in ([], ["--all"], ["--leaks"], ["--fragmentation"]):
        yield " ".join(["show", *options]), partial(command, "show", path, *options)
    yield "show --json", partial(command, "show", path, "--json")
    yield "diff", partial(command, "diff", counterpart, path)
    yield "diff the other way round", partial(command, "diff", path, counterpart)
    for name, (output, options) in FORMATS.items():
        form = name.partition(" ")[0]
        arguments = ["export", path, "--to", form, "--output", folder / output, *options]
        yield f"export to {name}", partial(command, *arguments)
    yield "recommend", partial(command, "recommend", path)
    yield "view", partial(command, "view", path, "--output", folder / "page.html")
    yield (
        "recommend --set",
        partial(command, "recommend", path, "--set", "expandable_segments:True"),
    )
    yield "fleet collect", partial(command, "fleet", "collect", path, "--output", folder / "rows")
    yield "the requests", lambda: extract_recording(load(path))


def ask(name: str, path: Path, folder: Path) -> Found:
    """Ask all questions about a file; return a case with the first broken promise."""
    size = path.stat().st_size
    seconds_limit = FREE_SECONDS + SECONDS_PER_MIB * size / 2**20
    bytes_limit = FREE_MIB * 2**20 + BYTES_PER_BYTE * size
    case = Found()
    asked = [("reading", lambda: load(path)), *questions(path, folder)]
    while asked and not case.failures:
        what, question = asked.pop(0)
        seconds, extra_bytes, error = measured(question, bytes_limit)
        note(case, error is None, seconds, extra_bytes)
        if error is not None and not isinstance(error, PytracerError):
            case.fail(name, [f"{what}: {_last_call(error)}"])
        elif error is not None and what == "reading":
            # All other questions would refuse too: ask only two of them.
            asked = [asked[0], asked[1 + zlib.crc32(name.encode()) % (len(asked) - 1)]]
        if seconds > seconds_limit:
            case.fail(name, [f"{what} took {seconds:.1f} s for {size:,} bytes"])
        elif extra_bytes > bytes_limit:
            mib = extra_bytes / 2**20
            case.fail(name, [f"{what} took {mib:,.0f} MiB for {size:,} bytes"])
    return case


def warm_up(folder: Path) -> None:
    """Ask all questions about a valid file, which has an answer to each."""
    for _, question in questions(OURS, folder):
        with contextlib.suppress(PytracerError):  # the file has no out-of-memory
            question()


def attack_files(
    budget: Budget, unit: str, make: Callable[[int], tuple[str, bytes]], count: int = 0
) -> Found:
    """Ask all questions about many files.

    Args:
        budget: The attack's budget.
        unit: The name of the files in reports.
        make: Makes the name and the content of a file from its number; called in a child.
        count: The number of files, or 0 for no limit. The files are tried in turn, from one that
            depends on the seed, so that runs that end early try different files.
    """
    path = budget.folder / "hostile.pickle"

    def run(number: int) -> Found:
        name, content = make((budget.seed + number) % count if count else number)
        path.write_bytes(content)
        return ask(name, path, budget.folder)

    total = sweep(run, unit, budget, count or math.inf, partial(warm_up, budget.folder))
    if count:
        total.count(f"of all {unit}, %", 100 * total.tried / count)
    return total


def command(*arguments: object, is_one_file: bool = True) -> None:
    """Run a command, which has an answer, or ends with a line about each file that has none.

    Raises:
        PytracerError: The command refused.
        AssertionError: It broke its promise.
    """
    result = CliRunner().invoke(main, [*map(str, arguments)])
    if "\x1b" in result.output:
        raise AssertionError("a control character reached the terminal")
    if isinstance(result.exception, SystemExit):
        lines = result.stderr.splitlines()
        is_line = len(lines) == 1 and lines[0].startswith("Error: ")
        is_promised = is_line if is_one_file else "Error: " in result.stderr
        if result.exit_code != 1 or not is_promised:
            raise AssertionError(f"status {result.exit_code}, {result.stderr!r}")
        raise PytracerError(lines[0])
    if result.exception is not None:
        raise result.exception


def _last_call(error: BaseException) -> str:
    calls = traceback.extract_tb(error.__traceback__)
    where = f"{Path(calls[-1].filename).name}:{calls[-1].lineno}" if calls else "?"
    return f"{type(error).__name__} at {where}: {error}".splitlines()[0][:300]
