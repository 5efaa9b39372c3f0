"""Storms of signals, thousands a second, while threads allocate.

A second process sends SIGUSR2, which requests snapshots, mixed with SIGINT, SIGALRM, SIGCHLD and
SIGWINCH, at random intervals. Python's handlers of these signals allocate, read from the tracer,
dump, and start and stop tracers, while the main thread is anywhere: in an allocation, a dump, a
system call. Each file is read as soon as it is written. After the storm, a block is allocated, and
a snapshot is requested soon after others; it must contain the block. This is repeated.
"""

import ctypes
import os
import pickle
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
import torch
import viewers
from attack import Budget, Found
from cases import Case

from pytracer import Tracer

PROMISE = (
    "No signal, at any moment, ends the process, damages a file or is left unanswered: after the "
    "last demand there is a file of that moment, and of earlier ones at most `keep_last` are "
    "left."
)
DEVICE = "cpu"
SECONDS = 20
DEMAND = signal.SIGUSR2
OTHERS = [signal.SIGINT, signal.SIGALRM, signal.SIGCHLD, signal.SIGWINCH]
KEEP_LAST = 5
ANSWER_SECONDS = 45.0
MARKED = 10_000_000  # bytes of the first marked block, which a later snapshot must contain
LAST_DEMANDS = 20
SIGNAL_STACK_BYTES = 2**20


def attack(budget: Budget) -> Found:
    return cases.attack_by_cases(__name__, budget, "signals", 5)


def send(seed: str, pid: int, seconds: float, report: int) -> None:
    """Send signals from a separate process, and report their number."""
    rng = random.Random(seed)
    deadline = time.monotonic() + seconds
    sent = demands = 0
    while time.monotonic() < deadline:
        for _ in range(rng.choice((1, 2, 10, 100))):
            number = rng.choice([DEMAND, DEMAND, *OTHERS])
            os.kill(pid, number)
            sent += 1
            demands += number == DEMAND
        time.sleep(rng.choice((0, 0.0001, 0.001, 0.01)))
    os.write(report, f"{sent} {demands}".encode())


class _SignalStack(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def enlarge_signal_stack() -> None:
    """Give this thread's signal handlers a larger stack, which exists until the process ends.

    `faulthandler` makes a stack of 16 KiB. Five signals at once overflow it on processors with a
    large state (AVX-512): CPython then crashes even without torch and pytracer.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    stack = _SignalStack(libc.malloc(SIGNAL_STACK_BYTES), 0, SIGNAL_STACK_BYTES)
    assert libc.sigaltstack(ctypes.byref(stack), None) == 0


class Program:
    """The process that receives the signals."""

    def __init__(self, case: Case) -> None:
        self.empty: Callable[..., Any] = lambda size: torch.empty(size, dtype=torch.uint8)
        self.found = Found()
        self.rng = case.rng
        self.done = threading.Event()
        self.handled = 0
        self.files = 0
        self.marks: set[int] = set()  # sizes of marked blocks in the files, at least MARKED
        self.tracer = Tracer(
            case.path / "out",
            device="cpu",
            trace_alloc_max_entries=1000,
            dump_signal=DEMAND,
            keep_last=KEEP_LAST,
            on_snapshot=self.check_file,
        )

    def check_file(self, path: str) -> None:
        """Check a file, on the thread that wrote it."""
        try:
            snapshot = pickle.loads(Path(path).read_bytes())
            self.files += 1
            if self.files % 10 == 0:  # reading takes longer than writing
                viewers.check_snapshot(snapshot)
            sizes = (segment["total_size"] for segment in snapshot["segments"])
            self.marks |= {size for size in sizes if size >= MARKED}
        except Exception as error:
            self.found.failures.append(f"{path} is damaged: {error!r}")

    def handle(self, number: int, frame: object) -> None:
        """Handle a signal, on the main thread, between any two instructions of Python."""
        self.handled += 1
        kind = self.rng.randrange(40)
        kept = self.empty(100)
        if kind == 0:
            self.tracer.dump("handler.pickle")
        elif kind == 1:
            with Tracer(device="cpu", trace_alloc_max_entries=100) as second:
                kept = self.empty(200)
            recorded = second.stats()["devices"][0]["recorded"]
            self.found.check(recorded >= 1, "a handler's own tracer saw nothing")
        elif kind < 10:
            self.tracer.stats()
            self.tracer.events()
        del kept

    def work(self) -> None:
        """Do work that a signal may interrupt."""
        kind = self.rng.randrange(5)
        if kind == 0:
            self.tracer.dump("main.pickle")
        elif kind == 1:
            time.sleep(0.002)
        elif kind == 2:
            self.tracer.stats()
        else:
            for size in range(1, 50):
                self.empty(size)

    def allocate(self) -> None:
        while not self.done.is_set():
            kept = [self.empty(size) for size in range(1, 50)]
            time.sleep(0.001)
            del kept

    def demand(self, number: int) -> bool:
        """Return whether a request soon after others leads to a snapshot of its own moment."""
        for _ in range(self.rng.randrange(4)):
            os.kill(os.getpid(), DEMAND)
            end = time.monotonic() + self.rng.random() * 0.002
            while time.monotonic() < end:
                pass
        kept = self.empty(MARKED + number)
        os.kill(os.getpid(), DEMAND)
        deadline = time.monotonic() + ANSWER_SECONDS
        while MARKED + number not in self.marks and time.monotonic() < deadline:
            time.sleep(0.001)
        del kept
        return MARKED + number in self.marks


def case(case: Case) -> Found:
    sys.setswitchinterval(0.0005)
    enlarge_signal_stack()
    program = Program(case)
    found = program.found
    reader, writer = os.pipe()
    pid, seconds = os.getpid(), case.seconds
    for number in OTHERS:
        signal.signal(number, program.handle)
    with program.tracer as tracer:
        sender = os.fork()
        if sender == 0:
            try:
                send(case.seed, pid, seconds, writer)
            finally:
                os._exit(0)
        with cases.threads(found, *[program.allocate] * 3):
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                program.work()
            status = cases.wait(sender, 60)
            found.check(status == 0, f"the sender ended with {status}")
            signals, demands = map(int, os.read(reader, 100).split())
            for number in range(LAST_DEMANDS):
                if not program.demand(number):
                    found.failures.append(f"demand {number} after {demands} others has no file")
                    break
            program.done.set()
    left = sorted((case.path / "out").glob("demand_*/*.pickle"))
    found.check(len(left) <= KEEP_LAST, f"{len(left)} files are left, not {KEEP_LAST}")
    partial = [path.name for path in (case.path / "out").rglob(".*.tmp")]
    found.check(not partial, f"temporary files are left: {partial}")
    failures = tracer.stats()["failures"]
    found.check(failures == 0, f"{failures} files were not written")
    found.check(program.handled > 0, "no handler of Python's ran")
    found.tried = signals
    found.count("demands sent", demands)
    found.count("files written", program.files)
    found.count("calls of Python's handlers", program.handled)
    return found
