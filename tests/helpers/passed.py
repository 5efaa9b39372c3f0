"""What `make test` leaves out, because nothing that it depends on has changed since it passed.

    python tests/helpers/passed.py TIER

succeeds if the tier has passed as it is; without a tier, it notes that all have (tests/tiers.ini).
"""

import functools
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from zlib import crc32

from amount import is_turn

TESTS = Path(__file__).parents[1]
NOTED = TESTS / "passed_with.txt"
TIERS = ConfigParser()
TIERS.read(TESTS / "tiers.ini")
FILES = {file: tier for tier in TIERS.sections() for file in TIERS[tier]["tests"].split()}


def is_left_out(path: Path, name: str) -> bool:
    """Return whether this commit leaves out the test of this name, in this file."""
    folder = f"{path.parent.name}/"
    tier = FILES.get(folder) or FILES.get(folder + path.stem.removeprefix("test_"))
    if tier is None or not has_passed(tier):
        return False
    turns = TIERS[tier].getint("turns", 0)
    return turns == 0 or not is_turn(crc32(name.encode()), turns)


@functools.cache
def has_passed(tier: str) -> bool:
    """Return whether all that the tier depends on is as it was when the tier passed."""
    paths = {*TIERS[tier]["paths"].split()}
    passed = _objects(tier) & {*NOTED.read_text().splitlines()}
    return len(passed) == len(paths) and not _git("diff", "HEAD", "--", *paths)


def _objects(tier: str) -> set[str]:
    return _git("ls-tree", "HEAD", *TIERS[tier]["paths"].split())


def _git(*command: str) -> set[str]:
    command = ("git", "-C", str(TESTS.parent), *command)
    return {*subprocess.check_output(command, text=True).splitlines()}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(not has_passed(sys.argv[1]))
    found = {line for tier in TIERS.sections() for line in _objects(tier)}
    NOTED.write_text("\n".join(sorted(found)) + "\n")
