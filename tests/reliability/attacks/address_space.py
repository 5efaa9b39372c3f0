"""Limits on the address space (RLIMIT_AS), from far too small to ample.

The same training runs twice under each limit, without pytracer and under PYTRACER=1. A hook is in
the cache or not, and the rings range from small to larger than the limit. The limit leaves a random
amount, from 1 MiB to 2 GiB, beyond the address space of the process after the import of torch.
"""

import random
import resource
import shutil
import time
from functools import partial

from attack import Budget, Outcome
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


def attack(budget: Budget) -> Outcome:
    rng = random.Random(budget.seed)
    deadline = time.monotonic() + budget.seconds
    outcome = Outcome(0, "jobs under a limit", [], {})
    user = User(budget.folder / "user")
    user.get_hook()
    first = user.run()
    outcome.failures += [f"before any attack: {problem}" for problem in first.problems()]
    good = user.folder / "good"
    shutil.copytree(user.cache, good)
    recorded = untraced = alike = 0
    while outcome.tried == 0 or time.monotonic() < deadline:
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
                alike += 1
                problems = []
        elif ended.is_recorded:
            recorded += 1
        elif any("pytracer" in line for line in ended.lines):
            untraced += 1
        else:
            problems.append("it was not recorded, and no line says why")
        what = (
            f"seed {budget.seed}, job {outcome.tried} ({extra_bytes / 2**20:.1f} MiB left, "
            f"{entries} entries, {'a' if has_hook else 'no'} hook)"
        )
        outcome.failures += [f"{what}: {problem}" for problem in problems]
        outcome.tried += 1
    outcome.figures = {
        "jobs recorded": recorded,
        "jobs untraced with a message": untraced,
        "jobs that fail without pytracer too": alike,
    }
    return outcome
