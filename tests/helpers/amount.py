"""How much a statistical test does: a short form in `make test`, a long one in `make test-long`."""

import os

LONG = os.environ.get("LONG_TESTS") == "1"
"""Whether this is `make test-long`, which also runs the tests that are marked `long`."""


def amount(short: int, long: int) -> int:
    """Return the number of cases, files or runs of a test's form that runs now."""
    return long if LONG else short
