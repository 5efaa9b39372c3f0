"""Directories with every kind of file that is not a snapshot.

A directory has one snapshot and a few entries whose names end as a snapshot's do: pipes, sockets,
links to a device, to nothing and to themselves, directories, empty files, files that nobody may
read, and names with line ends and terminal codes. Every command that takes a directory is run.
"""

import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from attack import Budget, Found
from directories import COMMANDS, SPECIAL
from directories import command as on_directory
from hostile import FREE_SECONDS, OURS, command
from sweep import measured, note, sweep

from pytracer.errors import PytracerError

PROMISE = (
    "Each command answers about the snapshot, or names in one line each what it could not read, "
    f"within {FREE_SECONDS:g} s; never a traceback, a control character or a hang."
)
DEVICE = "none"
SECONDS = 20

NAMES = ("x.pickle", "y.pickle.gz", "\x1b[2J.pickle", "two\nlines.pickle", "\udce9.pickle")
MOST_BYTES = 256 << 20


def _unreadable(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0)


KINDS: dict[str, Callable[[Path], object]] = {
    **SPECIAL,
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to its directory": lambda path: path.symlink_to("."),
    "directory": Path.mkdir,
    "empty file": Path.touch,
    "unreadable file": _unreadable,
}


def attack(budget: Budget) -> Found:
    """Run every command on directories with one to four such entries."""

    def run(number: int) -> Found:
        rng = random.Random(f"{budget.seed} {number}")
        directory, output = budget.folder / "run", budget.folder / "output"
        for folder in (directory, output):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        shutil.copy(OURS, directory / "a.pickle")
        chosen = {name: rng.choice([*KINDS]) for name in rng.sample(NAMES, rng.randint(1, 4))}
        for name, kind in chosen.items():
            KINDS[kind](directory / name)
        case, what = Found(), ", ".join(f"{kind} {name!a}" for name, kind in chosen.items())
        for name in COMMANDS:
            question = partial(
                command, *on_directory(name, directory, output / name), is_one_file=False
            )
            seconds, extra_bytes, error = measured(question, MOST_BYTES)
            note(case, error is None, seconds, extra_bytes)
            if error is not None and not isinstance(error, PytracerError):
                case.fail(what, [f"{name}: {error!r}"[:300]])
            if seconds > FREE_SECONDS:
                case.fail(what, [f"{name} took {seconds:.1f} s"])
        return case

    return sweep(run, "directories", budget)
