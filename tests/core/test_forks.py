"""Does a fork harm neither the program nor the recording?"""

from pathlib import Path
from typing import Any

import pytest
from amount import amount
from files_left import files, live_sizes, load
from processes import run


def names(snapshot: dict[str, Any]) -> set[str]:
    """Return the names of all functions on the stacks of all events."""
    events = snapshot["device_traces"][0]
    return {frame["name"] for event in events for frame in event["frames"]}


@pytest.mark.slow
def test_fork_in_a_traced_loop(tmp_path: Path) -> None:
    # GIVEN a program that forks while it is traced
    program = """
import os, sys
import torch
from pytracer import Tracer

tracer = Tracer("parent.pickle")
with tracer:
    kept, inherited = torch.empty(1001), torch.empty(1002)
    for number in range(3):
        child = os.fork()
        if child == 0:
            # WHEN the child continues: untraced, with the inherited tracer, and with its own tracer
            torch.empty(6000)
            assert not tracer.stats()["recording"]
            assert tracer.start() is tracer
            assert not tracer.stats()["recording"]
            assert (len(tracer.events()), tracer.stats()["devices"]) == (0, [])
            tracer.clear()
            tracer.stop()
            assert tracer.snapshot()["segments"] == []
            del inherited  # allocated by the parent
            with Tracer(f"child{number}.pickle") as own:
                mine = torch.empty(2000 + number)
                del kept
            assert own.stats()["devices"][0]["unknown_frees"] == 1
            sys.exit(number)  # leaves the parent's `with` and runs the registered exit callbacks
        torch.empty(3000 + number)
        status = os.waitpid(child, 0)[1]
        assert os.waitstatus_to_exitcode(status) == number, status
        assert not os.path.exists("parent.pickle")
"""
    done = run(program, cwd=tmp_path)
    # THEN each process has written its own events once
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == [f"child{n}.pickle" for n in range(3)] + ["parent.pickle"]
    parent = load(tmp_path / "parent.pickle")
    assert live_sizes(parent) == [4 * 1001, 4 * 1002]
    assert parent["pytracer"]["devices"][0]["recorded"] == 2 + 3 * 2
    for number in range(3):
        child = load(tmp_path / f"child{number}.pickle")
        assert live_sizes(child) == [4 * (2000 + number)]
        assert child["pytracer"]["devices"][0]["recorded"] == 1
        assert child["pytracer"]["pid"] != parent["pytracer"]["pid"]


@pytest.mark.slow
def test_a_fork_while_a_thread_dumps(tmp_path: Path) -> None:
    # GIVEN a thread that is in `dump()`, outside the GIL, most of the time
    program = """
import os, sys, threading, time
import torch
from pytracer import Tracer

with Tracer(device="cpu") as tracer:
    kept = [torch.empty(1) for _ in range(5_000)]
    stop = threading.Event()

    def dump() -> None:
        while not stop.is_set():
            tracer.dump("snapshot.pickle")

    thread = threading.Thread(target=dump)
    thread.start()
    start = time.monotonic()
    # WHEN children are forked during the dumps, and exit normally
    for _ in range(4):
        time.sleep(0.01)
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()
    # THEN no child waits for a thread that it does not have
    print(time.monotonic() - start < 30)
"""
    done = run(program, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


# A process that hangs is killed by SIGALRM, and its exit status fails the test.
BOUNDED = """
import gc, os, signal, subprocess, sys, threading
import torch
from pytracer import Tracer, annotate

def bound():
    signal.alarm(600)

bound()
os.register_at_fork(after_in_child=bound)

def check_that_a_child_can_trace():
    child = os.fork()
    if child == 0:
        with Tracer(device="cpu") as own:
            kept = torch.empty(2000)
        (event,) = own.events()
        assert event["size_bytes"] == 8000
        assert own.frames(event["stack"])[0]["name"] == "check_that_a_child_can_trace"
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tracer.stats()", "pass"),
        ("leave_a_cycle(); gc.collect()", "pass"),
        ("tracer.dump('snapshot.pickle'); tracer.clear()", "pass"),
        # `logging` does the same with its locks.
        ("lock.acquire()", "lock.release()"),
    ],
)
def test_functions_of_the_program_around_a_fork(tmp_path: Path, before: str, after: str) -> None:
    # GIVEN a program that registers its own functions around forks before a tracer starts, and a
    # thread that dumps while it holds a lock which one of these functions needs
    program = f"""{BOUNDED}
lock = threading.Lock()
tracer = Tracer(device="cpu")

def leave_a_cycle():
    class Holder:
        pass
    holder = Holder()
    holder.itself, holder.tracer = holder, Tracer(device="cpu").start()
    holder.tracer.stop()

def before():
    {before}

def after():
    {after}

os.register_at_fork(before=before, after_in_parent=after, after_in_child=after)
tracer.start()
stop = threading.Event()

def work():
    while not stop.is_set():
        with lock:
            tracer.stats()
            tracer.dump("other.pickle")
        stop.wait(0.001)  # Python's locks are not fair: the fork would wait for ever

thread = threading.Thread(target=work)
thread.start()
# WHEN the program forks, THEN no process hangs
for _ in range({amount(4, 10)}):
    check_that_a_child_can_trace()
stop.set()
thread.join()
"""
    done = run(program, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_fork_in_c_with_the_gil_while_a_thread_dumps(tmp_path: Path) -> None:
    # GIVEN a thread that dumps all the time
    program = f"""{BOUNDED}
with Tracer(device="cpu") as tracer:
    kept = [torch.empty(1) for _ in range(5_000)]
    stop = threading.Event()

    def dump():
        while not stop.is_set():
            tracer.dump("snapshot.pickle")

    thread = threading.Thread(target=dump)
    thread.start()
    # WHEN a process is started in a way for which Python forks without calling the fork hooks
    for _ in range({amount(8, 20)}):
        done = subprocess.run([sys.executable, "-S", "-c", ""], user=os.geteuid())
        assert done.returncode == 0
    stop.set()
    thread.join()
"""
    done = run(program, cwd=tmp_path)
    # THEN no process hangs
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_forks_while_threads_record(tmp_path: Path) -> None:
    # GIVEN threads that allocate, read, dump, start tracers and enter phases, so that a fork may
    # happen in the middle of any change
    program = f"""{BOUNDED}
done = threading.Event()

def allocate():
    while not done.is_set():
        exec(compile("[torch.empty(n) for n in range(50)]", f"<{{os.urandom(4)}}>", "exec"))

def trace():
    while not done.is_set():
        with Tracer(trace_alloc_max_entries=500) as second:
            second.snapshot()

def dump():
    while not done.is_set():
        tracer.dump("other.pickle")
        tracer.step()

def phases():
    while not done.is_set():
        with annotate("other"):
            threading.Thread(target=annotate("ended").__enter__).start()

with Tracer(trace_alloc_max_entries=1000) as tracer, annotate("parent"):
    threads = [threading.Thread(target=function) for function in (allocate, trace, dump, phases)]
    for thread in threads:
        thread.start()
    for number in range({amount(12, 40)}):
        child = os.fork()
        if child == 0:
            # WHEN the child allocates and traces with a new tracer
            torch.empty(5)
            with Tracer("child.pickle") as own, annotate("child"):
                kept = torch.empty(2000)
            (event,) = own.events()
            assert own.phase(event["phase"]) == ("parent", "child")
            assert own.frames(event["stack"])[0]["name"] == "<module>"
            os._exit(number)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == number
    done.set()
    for thread in threads:
        thread.join()
"""
    done = run(program, cwd=tmp_path)
    # THEN it never waits for a thread that does not exist, and records its own events
    assert (done.returncode, done.stderr) == (0, "")
    assert live_sizes(load(tmp_path / "child.pickle")) == [8000]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_data_loader_with_workers(tmp_path: Path, method: str) -> None:
    # GIVEN a loop over a loader whose workers allocate
    program = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset
from pytracer import Tracer

class Numbers(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((1000,), float(index))

def main():
    with Tracer("snapshot.pickle") as tracer:
        loader = DataLoader(
            Numbers(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1]
        )
        for epoch in range(2):
            total = sum(batch.sum().item() for batch in loader)
    assert total == 1000 * sum(range(24))
    print(tracer.stats()["devices"][0]["recorded"])

if __name__ == "__main__":
    main()
"""
    # WHEN the loop runs
    done = run(program, method, cwd=tmp_path, new=True)  # `spawn` runs the program again
    # THEN the training works, only the parent writes a snapshot, and it has no worker's events
    assert (done.returncode, done.stderr) == (0, "")
    assert files(tmp_path) == ["snapshot.pickle"]
    snapshot = load(tmp_path / "snapshot.pickle")
    assert int(done.stdout) > 2 * 6
    assert {"main", "<genexpr>"} <= names(snapshot)
    assert "__getitem__" not in names(snapshot)
