"""Limits on the address space (RLIMIT_AS), from far too small to ample.

The same training runs twice under each limit, without pytracer and under PYTRACER=1. A hook is in
the cache or not, and the rings range from small to larger than the limit. The limit leaves a random
amount, from 1 MiB to 2 GiB, beyond the address space of the process after the import of torch.
"""

import resource
import shutil
from functools import partial

from attack import Budget, Found
from jobs import Ended, User
from memory import status_bytes

MARGIN_MIB = 64  # the memory of pytracer's modules and core
PROMISE = (
    "The job runs to its end, recorded or untraced with a message, under every limit that leaves "
    f"it {MARGIN_MIB} MiB more than it needs without pytracer."
)
DEVICE = "cpu"
SECONDS = 30


def limit(extra_bytes: int) -> None:
    """Limit this process to `extra_bytes` of additional address space."""
    room = status_bytes("VmSize") + extra_bytes
    resource.setrlimit(resource.RLIMIT_AS, (room, room))


def attack(budget: Budget) -> Found:
    rng, found = budget.rng, Found("jobs under a limit")
    user = User(budget.folder / "user")
    good = user.keep_hook(found)
    for number in found.turns(budget):
        extra_bytes = int(2 ** rng.uniform(20, 31))
        entries = rng.choice((1000, 100_000, 10**7, 2**28))
        has_hook = rng.random() < 0.8
        shutil.rmtree(user.cache, ignore_errors=True)
        if has_hook:
            shutil.copytree(good, user.cache)
        run = partial(user.run, PYTRACER_TRACE_ALLOC_MAX_ENTRIES=str(entries))
        ended: Ended = run(before=partial(limit, extra_bytes))
        problems = ended.problems()
        if problems:
            # The traced job may fail where the job alone fails with a little less memory.
            less = max(extra_bytes - MARGIN_MIB * 2**20, 2**16)
            if run(before=partial(limit, less), PYTRACER="0").problems():
                found.count("jobs that fail without pytracer too")
                problems = []
        elif ended.is_recorded:
            found.count("jobs recorded")
        elif any("pytracer" in line for line in ended.lines):
            found.count("jobs untraced with a message")
        else:
            problems.append("it was not recorded, and no line says why")
        what = (
            f"seed {budget.seed}, job {number} ({extra_bytes / 2**20:.1f} MiB left, "
            f"{entries} entries, {'a' if has_hook else 'no'} hook)"
        )
        found.fail(what, problems)
    return found
