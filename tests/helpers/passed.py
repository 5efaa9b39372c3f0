"""What `make test` leaves out, because nothing that it depends on has changed since it passed.

    python tests/helpers/passed.py TIER

succeeds if the tier has passed as it is; without a tier, it notes that all have.
"""

import functools
import subprocess
import sys
from pathlib import Path

NOTED = Path(__file__).parents[1] / "passed_with.txt"
CORE = "CMakeLists.txt csrc pytracer/backends tests/backends tests/core tests/cpp"
TIERS = {
    "core": CORE,
    "devices": f"{CORE} pytracer/analysis/oom pytracer/owners pytracer/reading pytracer/rehearsal"
    " pytracer/settings pytracer/simulator pytracer/torch_recorder pytracer/tracing"
    " tests/accelerator tests/devices",
    "jobs": f"{CORE} bench pytracer/activation pytracer/boxes pytracer/experiments"
    " pytracer/settings pytracer/tracing startup tests/accelerator tests/activation"
    " tests/hardware.py",
    "page": "pytracer/page tests/page web",
}
"""The paths on which each tier depends: the core, its hooks, and what builds these; all simulated
devices but the first (Makefile); ways to start (Ray, notebooks, experiments, the script for
machines with a GPU); what the page can do. Each has the folders of its tests.
"""


@functools.cache
def has_passed(tier: str) -> bool:
    """Return whether all that the tier depends on is as it was when the tier passed."""
    paths = TIERS[tier].split()
    passed = _git("ls-tree", "HEAD", *paths) & {*NOTED.read_text().splitlines()}
    return len(passed) == len(paths) and not _git("diff", "HEAD", "--", *paths)


def _git(*command: str) -> set[str]:
    command = ("git", "-C", str(NOTED.parents[1]), *command)
    return {*subprocess.check_output(command, text=True).splitlines()}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(not has_passed(sys.argv[1]))
    found = _git("ls-tree", "HEAD", *" ".join(TIERS.values()).split())
    NOTED.write_text("\n".join(sorted(found)) + "\n")
