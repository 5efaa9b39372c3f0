"""Does a fork harm neither the program nor the recording?"""

from pathlib import Path
from typing import Any

import pytest
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
