"""Directories with every kind of file that is not a snapshot.

A directory has one snapshot and a few entries whose names end as a snapshot's do: pipes, sockets,
links to a device, to nothing and to themselves, directories, empty files, files that nobody may
read, and names with line ends and terminal codes. Every command that takes a directory is run.
"""

import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from attack import Budget, Outcome
from click.testing import CliRunner
from hostile import FREE_SECONDS, OURS
from sweep import Case, Total, measured, sweep

from pytracer.commands.main import main

PROMISE = (
    "Each command answers about the snapshot, or names in one line each what it could not read, "
    f"within {FREE_SECONDS:g} s; never a traceback, a control character or a hang."
)
DEVICE = "none"
SECONDS = 20

NAMES = ("x.pickle", "y.pickle.gz", "\x1b[2J.pickle", "two\nlines.pickle", "\udce9.pickle")
MOST_BYTES = 256 << 20


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fsencode(path))


def _unreadable(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0)


KINDS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to its directory": lambda path: path.symlink_to("."),
    "a directory": Path.mkdir,
    "an empty file": Path.touch,
    "an unreadable file": _unreadable,
}


def commands(directory: Path, output: Path) -> dict[str, tuple[object, ...]]:
    """Return the commands that take a directory, and their arguments."""
    return {
        **{name: (name, directory) for name in ("stats", "explain", "frag", "leaks", "recommend")},
        "view": ("view", directory, "--output", output / "page.html"),
        "diff": ("diff", directory, directory),
        "export": ("export", directory, "--to", "parquet", "--output", output / "tables"),
        "fleet collect": ("fleet", "collect", directory, "--output", output / "dataset"),
    }


def check(arguments: tuple[object, ...]) -> None:
    """Run a command, and check its answer or its errors."""
    result = CliRunner().invoke(main, [*map(str, arguments)])
    if "\x1b" in result.output:
        raise AssertionError("a control character reached the terminal")
    if isinstance(result.exception, SystemExit):
        if result.exit_code != 1 or "Error: " not in result.stderr:
            raise AssertionError(f"status {result.exit_code}, {result.stderr!r}")
    elif result.exception is not None:
        raise result.exception


def attack(budget: Budget) -> Outcome:
    """Run every command on directories with one to four such entries."""

    def run(number: int) -> Case:
        rng = random.Random(f"{budget.seed} {number}")
        directory, output = budget.folder / "run", budget.folder / "output"
        for folder in (directory, output):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        shutil.copy(OURS, directory / "a.pickle")
        chosen = {name: rng.choice([*KINDS]) for name in rng.sample(NAMES, rng.randint(1, 4))}
        for name, kind in chosen.items():
            KINDS[kind](directory / name)
        case = Case(", ".join(f"{kind} {name!a}" for name, kind in chosen.items()))
        for name, arguments in commands(directory, output).items():
            seconds, extra_bytes, error = measured(lambda: check(arguments), MOST_BYTES)  # noqa: B023
            case.seconds = max(case.seconds, seconds)
            case.extra_bytes = max(case.extra_bytes, extra_bytes)
            case.answered += error is None
            if error is not None:
                case.problem = f"{name}: {error!r}"[:300]
            elif seconds > FREE_SECONDS:
                case.problem = f"{name} took {seconds:.1f} s"
        return case

    total = Total()
    for case in sweep(run, None, budget.seconds, lambda: None):
        total.add(case)
    return Outcome(total.tried, "directories", total.failures, total.figures())
