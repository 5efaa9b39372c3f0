"""How much a statistical test does: a short form in `make test`, a long one in `make test-long`."""

import functools
import os
import subprocess
from pathlib import Path

LONG = os.environ.get("LONG_TESTS") == "1"
"""Whether this is `make test-long`, which also runs the tests that are marked `long`."""


def amount(short: int, long: int) -> int:
    """Return the number of cases, files or runs of a test's form that runs now."""
    return long if LONG else short


@functools.cache
def _turn() -> int:
    """Return the commit's number, by which cases take turns."""
    commit = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return int(subprocess.run(commit, capture_output=True, text=True, check=True).stdout, 16)


def is_turn(number: int, turns: int) -> bool:
    """Return whether this commit tests the case of this number: one in `turns`, by chance."""
    return LONG or (number - _turn()) % turns == 0
