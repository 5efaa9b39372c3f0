"""Run cases of an attack on processes, each in a separate process that ends as programs do.

A server process imports torch and pytracer once, but uses neither. For each case, it forks a child,
which takes milliseconds. The child calls `case()` of the attack's module, then the interpreter
finalises.

A child that does not end in time gets SIGABRT, on which it prints the stacks of all its threads.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attack import Budget, Found

HANG_SECONDS = 60.0  # the time that a case may take beyond its own, for a busy machine
MAX_LINE = 1200
THREAD_SECONDS = 50.0


@dataclass(frozen=True)
class Case:
    """The arguments of a child."""

    number: int  # number of earlier cases of the attack
    seed: str  # seed of all random numbers of the case
    folder: str  # an empty folder for this case
    seconds: float  # time that the case should take

    @property
    def rng(self) -> random.Random:
        """Return a random generator that gives the same numbers at each call."""
        return random.Random(self.seed)

    @property
    def path(self) -> Path:
        return Path(self.folder)


def attack_by_cases(
    module: str,
    budget: Budget,
    unit: str,
    seconds: float,
    check: Callable[[Path, Found], None] | None = None,
) -> Found:
    """Run `case()` of a module in children until the budget is spent.

    Args:
        module: Name of the attack's module.
        budget: The attack's budget.
        unit: The unit that the cases count.
        seconds: Time of a case; the last one may have less.
        check: Called with the folder of each case after its process has ended.
    """
    total = Found(unit)
    deadline = time.monotonic() + budget.seconds
    with _server(module, budget.folder) as server:
        number = 0
        while number == 0 or time.monotonic() < deadline:
            label, folder = f"seed {budget.seed}, case {number}", budget.folder / str(number)
            folder.mkdir()
            left = max(0.5, deadline - time.monotonic())
            case = Case(number, f"{budget.seed} {number}", str(folder), min(seconds, left))
            found = _run(server, case)
            if found is None:
                total.fail(label, ["the server has ended"])
                break
            if check is not None and not found.failures:
                check(folder, found)
            total.fail(label, found.failures)
            found.failures.clear()
            total.add(found)
            subprocess.run(["rm", "-rf", str(folder)], check=False)
            number += 1
    return total


@contextlib.contextmanager
def _server(module: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    from processes import environment

    pipe = subprocess.PIPE
    options = ["-W", "ignore::DeprecationWarning"]  # forks of processes with threads warn
    command = [sys.executable, *options, "-c", f"import cases; cases.serve({module!r})"]
    with subprocess.Popen(
        command, cwd=folder, env=environment(), stdin=pipe, stdout=pipe, text=True
    ) as server:
        try:
            yield server
        finally:
            server.kill()


def _run(server: "subprocess.Popen[str]", case: Case) -> Found | None:
    assert server.stdin is not None and server.stdout is not None  # noqa: PT018
    try:
        server.stdin.write(json.dumps(asdict(case)) + "\n")
        server.stdin.flush()
    except BrokenPipeError:
        return None
    answer = server.stdout.readline()
    if not answer:
        return None
    problem = json.loads(answer)
    file = case.path / "found.json"
    found = Found(**json.loads(file.read_text())) if file.exists() else Found()
    if problem is not None:
        found.failures.insert(0, problem)
    return found


@contextlib.contextmanager
def threads(found: Found, *works: Callable[[], object]) -> Iterator[None]:
    """Run works on daemon threads, and check that each ends soon after the block, and well."""

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException:
            found.failures.append(f"a thread ended: {traceback.format_exc()}")

    running = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        for thread in running:
            thread.join(THREAD_SECONDS)
            found.check(not thread.is_alive(), f"{thread.name} hangs")


def serve(name: str) -> None:
    """Run a case for each input line, and print the problem of its process."""
    module: Any = importlib.import_module(name)
    if hasattr(module, "prepare"):
        module.prepare()
    for line in sys.stdin:
        case = Case(**json.loads(line))
        child = os.fork()
        if child == 0:
            break
        print(json.dumps(_ended(child, case)), flush=True)
    else:
        return
    os.setsid()
    errors = os.open(case.path / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, target in ((nothing, 0), (errors, 1), (errors, 2)):
        os.dup2(descriptor, target)
    os.chdir(case.path)
    faulthandler.enable()
    try:
        found = module.case(case)
    except Exception as error:
        calls = traceback.extract_tb(error.__traceback__)[-3:]
        places = " < ".join(f"{Path(c.filename).name}:{c.lineno} {c.name}" for c in calls[::-1])
        found = Found(failures=[f"{error!r} at {places}"])
    (case.path / "found.json").write_text(json.dumps(asdict(found)))


def _ended(child: int, case: Case) -> str | None:
    """Wait for the end of a case; return its problem, or None."""
    status = wait(child, case.seconds + HANG_SECONDS)
    hung = status is None
    if status is None:
        os.kill(child, signal.SIGABRT)  # faulthandler prints the stacks of all threads
        status = wait(child, 5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        wait(child, 60)
    text = (case.path / "stderr").read_text(errors="replace")
    if hung:
        return f"no end after {case.seconds + HANG_SECONDS:.0f} s: {stacks(text)}"
    if status != 0:
        return f"ended with status {status}: {stacks(text)}"
    return None


def wait(child: int, seconds: float) -> int | None:
    """Wait for a child's end up to a time limit; return its exit status, or None."""
    deadline = time.monotonic() + seconds
    pause = 0.001
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def stacks(text: str) -> str:
    """Shorten the output of a process to one line, with three frames of each faulthandler stack."""
    lines, frames = [], 0
    for line in text.splitlines():
        frame = re.match(r'  File "(.*)", line (\d+) in (.*)', line)
        if frame is None:
            lines.append(line.strip())
            frames = 0
        elif (frames := frames + 1) <= 3:
            lines.append(f"{Path(frame[1]).name}:{frame[2]} {frame[3]}")
    joined = " | ".join(filter(None, lines))
    if len(joined) <= MAX_LINE:
        return joined
    return f"{joined[: MAX_LINE // 2]} ... {joined[-MAX_LINE // 2 :]}"
