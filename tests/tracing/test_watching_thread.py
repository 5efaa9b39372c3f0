"""When is there a thread that watches for demands, and what becomes of it in a fork?"""

import contextlib
import pickle
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from amount import amount
from demands import SIGNAL, action, on_demand_files, send, threads
from files_left import load
from processes import run, start, without_end_line

from pytracer import Tracer

pytestmark = pytest.mark.usefixtures("handler", "short_intervals")


def test_there_is_no_thread_without_need(tmp_path: Path, handler: list[int]) -> None:
    # GIVEN a tracer without a signal and a file, and one without an output
    with Tracer(tmp_path, device="cpu"), Tracer(device="cpu", dump_signal=SIGNAL):
        # THEN there is no thread, and the user's handler keeps the signal
        assert threads() == []
        send()
        assert handler == [SIGNAL]
    # GIVEN a tracer that watches a signal; WHEN it starts and stops, THEN so does the thread
    tracer = Tracer(tmp_path, device="cpu", dump_signal=SIGNAL)
    for _ in range(3):
        tracer.start()
        assert len(threads()) == 1
        tracer.stop()
        assert threads() == []


@pytest.mark.parametrize(("end", "status"), [("return", 0), ("sys.exit(3)", 3), ("1 / 0", 0)])
def test_a_forked_child_that_returns_to_the_watching_thread(
    tmp_path: Path, end: str, status: int
) -> None:
    # GIVEN an on_snapshot function that forks, and returns in the child too
    program = f"""
import os, signal, sys, time
import torch
from pytracer import Tracer

children = []

def fork(path):
    if "demand" in path:
        child = os.fork()
        if child == 0:
            print("child")
            {end}
        children.append(child)

with Tracer("x.pickle", device="cpu", dump_signal="USR2", on_snapshot=fork):
    for number in (1, 2):
        os.kill(os.getpid(), signal.SIGUSR2)
        deadline = time.monotonic() + 300
        while len(children) < number or not (ended := os.waitpid(children[-1], os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(children[-1], signal.SIGKILL)
                sys.exit("the child did not end")
            time.sleep(0.01)
        # THEN the child ends by itself, and the parent continues to watch the signal
        assert os.waitstatus_to_exitcode(ended[1]) == {status}
"""
    done = run(program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "child\nchild\n"), done.stderr


def test_a_child_of_on_snapshot_that_exits(tmp_path: Path) -> None:
    # GIVEN an on_snapshot function that forks, and a child that exits with a message
    program = """
import os, sys
import torch
from pytracer import Tracer

children = []

def fork(path):
    child = os.fork()
    if child == 0:
        print("uploaded")
        sys.exit("no space there")
    children.append(child)

with Tracer("x.pickle", device="cpu", on_snapshot=fork):
    pass
# THEN the child ends there, and does not continue with the program
print("after", os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
"""
    # WHEN the file is written on the main thread, THEN only the child exits
    done = run(program, cwd=tmp_path)
    assert done.stdout == "uploaded\nafter 1\n", done.stderr
    assert done.stderr == "no space there\n"


@pytest.mark.slow
def test_forked_children(tmp_path: Path) -> None:
    # GIVEN a traced program that forks
    program = """
import os, pathlib, signal, sys, time
import torch
from pytracer import Tracer

def wait_for(pattern):
    deadline = time.monotonic() + 300
    while not list(pathlib.Path().glob(pattern)):
        assert time.monotonic() < deadline, pattern
        time.sleep(0.01)

def fork(work):
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0

def send():
    os.kill(os.getpid(), signal.SIGUSR2)

def untraced():
    # WHEN the signal comes to an untraced child, THEN the child continues
    for _ in range(10):
        send()
    tracer.stop()
    send()

def traced():
    # WHEN the child has its own tracer, THEN this tracer writes
    with Tracer("child.pickle", device="cpu", dump_signal="USR2"):
        send()
        wait_for("child.demand-*")

with Tracer("parent.pickle", device="cpu", dump_signal="USR2") as tracer:
    fork(untraced)
    fork(traced)
    time.sleep(0.3)
    # THEN the parent has written no snapshot, and still watches the signal
    assert not list(pathlib.Path().glob("parent.demand-*"))
    send()
    wait_for("parent.demand-*")
"""
    done = run(program, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    names = sorted(path.name.split("-")[0] for path in tmp_path.glob("*.pickle"))
    assert names == ["child.demand", "child.pickle", "parent.demand", "parent.pickle"]


def test_tracers_that_come_and_go_on_many_threads(tmp_path: Path) -> None:
    # GIVEN threads that start and stop tracers, and signals all the time
    over = threading.Event()
    ignored = signal.signal(SIGNAL, signal.SIG_IGN)

    def trace(number: int) -> None:
        for turn in range(20):
            output = tmp_path / f"{number}-{turn}.pickle"
            with Tracer(output, device="cpu", dump_signal=SIGNAL, keep_last=1):
                time.sleep(0.002)

    def demand() -> None:
        while not over.is_set():
            send()
            time.sleep(0.001)

    workers = [threading.Thread(target=trace, args=(number,)) for number in range(4)]
    sender = threading.Thread(target=demand)
    # WHEN all threads have run
    for thread in [sender, *workers]:
        thread.start()
    for thread in workers:
        thread.join()
    over.set()
    sender.join()
    # THEN no thread is left, and all files are complete
    assert threads() == []
    assert action() == signal.SIG_IGN
    signal.signal(SIGNAL, ignored)
    assert len([path for path in tmp_path.glob("[!.]*") if "demand" not in path.name]) == 80
    for path in tmp_path.glob("[!.]*"):
        pickle.loads(path.read_bytes())


@pytest.mark.slow
def test_signals_while_the_process_ends(tmp_path: Path) -> None:
    # GIVEN a program that ignores the signal outside of the recording, and does not stop its tracer
    program = """
import atexit, signal
import torch
from pytracer import Tracer

signal.signal(signal.SIGUSR2, signal.SIG_IGN)
late = Tracer("late.pickle", device="cpu", dump_signal="USR2")
atexit.register(late.start)  # runs after pytracer's own exit callback
Tracer("x.pickle", device="cpu", dump_signal="USR2", keep_last=3).start()
kept = [torch.empty(n + 1) for n in range(2000)]
print("recording", flush=True)
input()
"""
    for _ in range(amount(2, 5)):
        with start(program, cwd=tmp_path) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "recording\n"
            # WHEN it ends while many signals come
            send(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            while process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    send(process.pid)
                time.sleep(0.0005)
            assert process.stderr is not None
            messages = process.stderr.read()
        # THEN it ends normally, and its live blocks are in the file
        messages = re.sub(r"pytracer: no snapshots on demand: can't .* thread.*\n", "", messages)
        assert (process.returncode, without_end_line(messages)) == (0, "")
        assert len(load(tmp_path / "x.pickle")["segments"]) == 2000
        (tmp_path / "x.pickle").unlink()
    for path in on_demand_files(tmp_path):
        assert sys.getsizeof(load(path))
