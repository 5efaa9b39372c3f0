"""Forks under load, with other libraries' fork hooks.

Threads allocate, dump, enter phases, and start and stop tracers, while one or two threads fork: by
`os.fork()`, `multiprocessing` and `subprocess`, which forks in C when it changes the user. Other
hooks of `os.register_at_fork` are registered before pytracer's or after them: they read a tracer's
statistics, dump, collect a garbage Tracer, or take a lock under which threads read from tracers.
Each child makes its own tracer, records, dumps and checks its files; the parent continues and
checks its own files.
"""

import contextlib
import gc
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cases
import torch
import viewers
from attack import Budget, Found
from cases import Case

from pytracer import Tracer, annotate

PROMISE = (
    "A fork never hangs, whatever other threads and other fork hooks do with tracers; a child's "
    "own tracer records exactly what the child does, and the parent's recording continues."
)
DEVICE = "cpu"
SECONDS = 25
CHILD_SECONDS = 45.0  # the time limit of a child on a busy machine
KEPT = [1001, 1002, 1003]  # bytes of the blocks that the parent holds throughout


def attack(budget: Budget) -> Found:
    return cases.attack_by_cases(__name__, budget, "forks", 5)


class Program:
    """The process that forks, with its threads."""

    def __init__(self, case: Case) -> None:
        self.empty: Callable[..., Any] = lambda size: torch.empty(size, dtype=torch.uint8)
        self.case = case
        self.tracer = Tracer(device="cpu", trace_alloc_max_entries=2000)
        self.lock = threading.Lock()  # another library's, held while its threads read
        self.done = threading.Event()
        self.numbers = itertools.count()
        self.kept: list[Any] = []
        self.found = Found()

    # --- work during the forks ---

    def allocate(self) -> None:
        code = compile("[empty(n) for n in range(1, 50)]", f"<{os.urandom(4).hex()}>", "exec")
        exec(code, {"empty": self.empty})

    def dump(self) -> None:
        with self.lock:
            self.tracer.dump("load.pickle")

    def read(self) -> None:
        with self.lock:
            self.tracer.stats()
            self.tracer.events()

    def trace(self) -> None:
        with Tracer("other.pickle", device="cpu", trace_alloc_max_entries=500) as second:
            second.snapshot()

    def phase(self) -> None:
        with annotate("one"), annotate("two"):
            self.empty(3)

    def repeat(self, work: Callable[[], None]) -> None:
        while not self.done.wait(0.002):
            work()

    # --- other libraries' hooks ---

    def register(self, hook: str) -> None:
        if hook == "stats":
            os.register_at_fork(before=self.tracer.stats, after_in_child=self.tracer.stats)
        elif hook == "collect":
            os.register_at_fork(before=gc.collect)
        elif hook == "dump":
            os.register_at_fork(before=lambda: self.tracer.dump("hook.pickle"))
        else:
            os.register_at_fork(
                before=self.lock.acquire,
                after_in_parent=self.lock.release,
                after_in_child=self.lock.release,
            )

    def leave_garbage(self) -> None:
        """Leave a tracer that only the collector finds."""
        garbage: list[Any] = [Tracer(device="cpu", trace_alloc_max_entries=100).start()]
        garbage[0].stop()
        garbage.append(garbage)

    # --- forks ---

    def fork(self, way: str, number: int) -> None:
        self.leave_garbage()
        begin = time.monotonic()
        if way == "os.fork":
            child = os.fork()
            if child == 0:
                self.be_child(number)
            self.expect(number, way, child)
        elif way == "multiprocessing":
            context = multiprocessing.get_context("fork")
            process = context.Process(target=self.check_child, args=(number,))
            process.start()
            process.join(CHILD_SECONDS)
            if process.exitcode != 0:
                self.report(number, way, process.pid or 0, process.exitcode)
        else:
            options = {"preexec_fn": gc.collect} if way == "preexec_fn" else {"user": os.getuid()}
            with contextlib.suppress(subprocess.TimeoutExpired):
                done = subprocess.run(["true"], timeout=CHILD_SECONDS, check=False, **options)
                way = "" if done.returncode == 0 else way
            self.found.check(not way, f"fork {number}: subprocess with {way} did not end well")
        self.found.tried += 1
        self.found.highest("longest fork with its child, s", time.monotonic() - begin)

    def expect(self, number: int, way: str, child: int) -> None:
        status = cases.wait(child, CHILD_SECONDS)
        if status != 0:
            self.report(number, way, child, status)

    def report(self, number: int, way: str, child: int, status: int | None) -> None:
        if status is None:
            os.kill(child, signal.SIGABRT)  # faulthandler prints its stacks
            if cases.wait(child, 5) is None:
                os.kill(child, signal.SIGKILL)
        text = cases.stacks(Path("stderr").read_text(errors="replace"))
        what = "hangs" if status is None else f"ended with status {status}"
        self.found.failures.append(f"fork {number} by {way}: the child {what}: {text}")

    def be_child(self, number: int) -> None:
        status = 1
        try:
            self.check_child(number)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def check_child(self, number: int) -> None:
        assert not self.tracer.stats()["recording"]
        if number % 3 == 0:
            gc.collect()
        with Tracer(f"end{number}.pickle", device="cpu") as own:
            with annotate(f"child {number}"):
                kept = [self.empty(2000 + number)]
                kept.append(self.empty(17))
                thread = threading.Thread(
                    target=annotate(f"child {number}")(lambda: kept.__delitem__(-1))
                )
                thread.start()
                thread.join()
            own.dump(f"now{number}.pickle")
        assert own.stats()["devices"][0]["recorded"] == 3
        for name in ("end", "now"):
            path = Path(f"{name}{number}.pickle")
            check_file(path, [2000 + number], 3, f"child {number}")
            path.unlink()


def check_file(path: Path, live: list[int], recorded: int | None, phase: str | None) -> None:
    """Compare a file with its expected contents."""
    snapshot = pickle.loads(path.read_bytes())
    viewers.check_snapshot(snapshot)
    about = snapshot["pytracer"]
    assert about["pid"] == os.getpid()
    sizes = sorted(segment["total_size"] for segment in snapshot["segments"])
    assert set(live) <= set(sizes), (live, sizes)
    if recorded is not None:
        assert sizes == sorted(live), (live, sizes)
        assert about["devices"][0]["recorded"] == recorded, about
        assert {event["user_metadata"] for event in snapshot["device_traces"][0]} == {phase}


def case(case: Case) -> Found:
    sys.setswitchinterval(0.0005)
    gc.disable()
    rng = case.rng
    program = Program(case)
    hooks = [name for name in ("stats", "collect", "lock", "dump") if rng.random() < 0.5]
    early = [name for name in hooks if rng.random() < 0.5]
    for name in early:
        program.register(name)
    program.tracer.start()
    program.kept = [program.empty(size) for size in KEPT]
    for name in hooks:
        if name not in early:
            program.register(name)
    load = [program.allocate, program.dump, program.read, program.trace, program.phase]
    works = [
        partial(program.repeat, work) for work in rng.sample(load, rng.randrange(2, len(load) + 1))
    ]
    ways = ["os.fork"] * 5 + ["multiprocessing", "preexec_fn", "user"]
    deadline = time.monotonic() + case.seconds

    def fork_often(seed: str) -> None:
        chosen = random.Random(seed)
        while time.monotonic() < deadline and not program.found.failures:
            program.fork(chosen.choice(ways), next(program.numbers))

    if rng.random() < 0.5:
        works.append(partial(fork_often, f"{case.seed} 2"))
    with cases.threads(program.found, *works):
        fork_often(case.seed)
        program.done.set()
    program.tracer.stop()
    program.tracer.dump("parent.pickle")
    try:
        check_file(Path("parent.pickle"), KEPT, None, None)
    except AssertionError as error:
        program.found.failures.append(f"the parent's file is wrong: {error!r}")
    ignored = "Exception ignored" in Path("stderr").read_text(errors="replace")
    program.found.check(not ignored, "a hook raised")
    names = ", ".join(f"{name}{' first' if name in early else ''}" for name in hooks)
    program.found.failures = [f"hooks {names}: {problem}" for problem in program.found.failures]
    return program.found
