"""Run numbered cases in forked children, so that a crash or a hang ends only a child.

A child runs many cases, because a new process for each case would take most of the time. If a child
dies or hangs, the parent knows its current case, and continues with the next one.
"""

import contextlib
import gc
import json
import os
import resource
import selectors
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from memory import reset_peak, status_bytes

HANG_SECONDS = 120.0
"""The time limit of a case, after which it counts as a hang. Its own limit is in processor time."""


@dataclass
class Case:
    """The result of one case."""

    name: str  # what was tried
    problem: str | None = None  # the broken promise, or None
    # answered, refused: How many questions had an answer, and how many a one-line error.
    answered: int = 0
    refused: int = 0
    seconds: float = 0.0  # processor time of the slowest question
    extra_bytes: int = 0  # largest memory of a question
    file_bytes: int = 0  # size of the examined file


@dataclass
class Total:
    """The sums over all cases of a sweep."""

    tried: int = 0
    failures: list[str] = field(default_factory=list)
    answered: int = 0
    refused: int = 0
    most_seconds: float = 0.0
    most_bytes: int = 0

    def add(self, case: Case) -> None:
        self.tried += 1
        self.answered += case.answered
        self.refused += case.refused
        self.most_seconds = max(self.most_seconds, case.seconds)
        self.most_bytes = max(self.most_bytes, case.extra_bytes)
        if case.problem is not None:
            self.failures.append(f"{case.name}: {case.problem}")

    def figures(self) -> dict[str, int | float | str]:
        return {
            "questions answered": self.answered,
            "questions refused in one line": self.refused,
            "longest question, s of processor time": round(self.most_seconds, 2),
            "most memory of a question, MiB": round(self.most_bytes / 2**20, 1),
        }


def sweep(
    run: Callable[[int], Case],
    end: int | None,
    seconds: float,
    warm_up: Callable[[], object] = lambda: None,
) -> Iterator[Case]:
    """Run cases 0, 1, ... in children until `end` or until the time is spent.

    Args:
        run: Runs a case, in a child.
        end: Number of cases, or None for as many as the time allows.
        seconds: Time for all cases; at least one case runs.
        warm_up: Called first in each child, so that no case includes the time of imports.
    """
    deadline = time.monotonic() + seconds
    begin = 0
    while end is None or begin < end:
        for number, case in _child(run, begin, end, deadline, warm_up):
            yield case
            begin = number + 1
        if time.monotonic() >= deadline:
            return


def _child(
    run: Callable[[int], Case],
    begin: int,
    end: int | None,
    deadline: float,
    warm_up: Callable[[], object],
) -> Iterator[tuple[int, Case]]:
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiver)
        try:
            _work(run, begin, end, deadline, warm_up, sender)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(sender)
    number, finished = begin, False
    try:
        for message in _messages(receiver):
            if message is None:
                break
            number, finished = message["number"], "case" in message
            if finished:
                yield number, Case(**message["case"])
        else:
            message = {}
    finally:
        os.close(receiver)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if message is None:
        yield number, Case(f"case {number}", f"no end after {HANG_SECONDS:.0f} s")
    elif not finished:
        yield number, Case(f"case {number}", f"the process ended with status {status}")


def _messages(receiver: int) -> Iterator[dict[str, Any] | None]:
    """Yield the child's messages, a dictionary per line; None if it sent nothing for too long."""
    with selectors.DefaultSelector() as selector, os.fdopen(os.dup(receiver), "rb") as lines:
        selector.register(receiver, selectors.EVENT_READ)
        left = b""
        while True:
            if not selector.select(HANG_SECONDS):
                yield None
                return
            read = os.read(lines.fileno(), 2**16)
            if not read:
                return
            *complete, left = (left + read).split(b"\n")
            yield from map(json.loads, complete)


def _work(
    run: Callable[[int], Case],
    number: int,
    end: int | None,
    deadline: float,
    warm_up: Callable[[], object],
    sender: int,
) -> None:
    warm_up()
    gc.freeze()  # so that the collection before each question skips imported objects
    begin = number
    while (end is None or number < end) and (time.monotonic() < deadline or number == begin):
        _say(sender, {"number": number})
        _say(sender, {"number": number, "case": asdict(run(number))})
        number += 1


def _say(sender: int, message: dict[str, Any]) -> None:
    os.write(sender, json.dumps(message).encode() + b"\n")


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
