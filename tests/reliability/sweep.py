"""Run numbered cases in forked children, so that a crash or a hang ends only a child.

A child runs many cases, because a new process for each case would take most of the time. If a child
dies or hangs, the parent knows its current case, and continues with the next one.
"""

import gc
import itertools
import json
import math
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict

from attack import Budget, Found
from memory import reset_peak, status_bytes

HANG_SECONDS = 120
"""The time limit of a case, after which it counts as a hang. Its own limit is in processor time."""


def note(case: Found, answered: bool, seconds: float, extra_bytes: int) -> None:
    """Count a question of a case: answered or refused, its processor time and its memory."""
    case.count("questions answered", answered)
    case.count("questions refused in one line", not answered)
    case.highest("longest question, s of processor time", seconds)
    case.highest("most memory of a question, MiB", extra_bytes / 2**20)


def sweep(
    run: Callable[[int], Found],
    unit: str,
    budget: Budget,
    end: float = math.inf,
    warm_up: Callable[[], object] = lambda: None,
) -> Found:
    """Run cases 0, 1, ... in children until `end` or until the time is spent.

    Args:
        run: Runs a case, in a child.
        unit: The name of the cases in reports.
        budget: The attack's budget; at least one case runs.
        end: Number of cases.
        warm_up: Called first in each child, so that no case includes the time of imports.
    """
    deadline = time.monotonic() + budget.seconds
    total = Found(unit)
    while total.tried == 0 or (total.tried < end and time.monotonic() < deadline):
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            numbers = itertools.takewhile(lambda number: number < end, itertools.count(total.tried))
            _work(run, numbers, deadline, warm_up, sender)
        os.close(sender)
        case = None
        with os.fdopen(receiver) as messages:
            for case in map(json.loads, messages):
                if case is not None:
                    total.add(Found(**case))
                    total.tried += 1
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if case is None:
            hung = f"no end after {HANG_SECONDS} s"
            what = hung if status == -signal.SIGALRM else f"the process ended with status {status}"
            total.fail(f"case {total.tried}", [what])
            total.tried += 1
    return total


def _work(
    run: Callable[[int], Found],
    numbers: Iterable[int],
    deadline: float,
    warm_up: Callable[[], object],
    sender: int,
) -> None:
    """Run cases in a child, which sends a line before each and its result after it, and ends."""
    status = 1
    signal.alarm(HANG_SECONDS)
    try:
        warm_up()
        gc.freeze()  # so that the collection before each question skips imported objects
        with os.fdopen(sender, "w") as messages:
            for number in numbers:
                print("null", file=messages, flush=True)
                signal.alarm(HANG_SECONDS)
                print(json.dumps(asdict(run(number))), file=messages, flush=True)
                if time.monotonic() >= deadline:
                    break
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def measured(
    question: Callable[[], object], limit_bytes: int
) -> tuple[float, int, Exception | None]:
    """Call `question`; return its processor time, its memory and its exception.

    Args:
        question: Called once.
        limit_bytes: The memory that it should take at most. The address space is limited to about
            twice this value, so that a failure does not harm the machine.
    """
    gc.collect()
    before = reset_peak()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    room = status_bytes("VmSize") + 2 * limit_bytes + 2**30
    resource.setrlimit(resource.RLIMIT_AS, (room, hard))
    error = None
    begin = time.process_time()
    try:
        question()
    except Exception as raised:
        error = raised
    finally:
        seconds = time.process_time() - begin
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    return seconds, max(0, status_bytes("VmHWM") - before), error
