"""A program that is killed at a random moment, and what it had noted of itself until then.

`python killed_programs.py FOLDER SEED THREADS DEVICE [changes]` allocates and frees on a device
until a process that it has forked kills it. Each thread writes to a file of its own before and
after each change. With `changes`, the ring grows and shrinks meanwhile, new functions fill the
table of stacks again and again, and another thread writes one snapshot after the other.
"""

import os
import pickle
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from processes import run_python

import pytracer
from pytracer.boxes.restoring import restore

FLOAT_BYTES = 4
SIZES = 10_000
"""How many sizes a thread has, in floats: those of thread 2 begin at 20,002. No two live tensors of
a thread have the same size."""
KEPT = 40
ENTRIES = 2_000
CONTEXT_ALL = 3  # csrc/record/event.h


def killer(after_s: float) -> int:
    """Fork a process that kills this one, some time after the returned descriptor is written to."""
    pid = os.getpid()
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.read(reading, 1)
        time.sleep(after_s)
        os.kill(pid, signal.SIGKILL)
        os._exit(0)
    return writing


def work(folder: Path, seed: int, thread: int, device: str) -> None:
    """Allocate and free for ever; note each change."""
    import torch

    chosen = random.Random(seed * 100 + thread)
    tensors: dict[int, torch.Tensor] = {}
    number = 0
    with open(folder / f"thread{thread}", "wb", buffering=0) as notes:
        while True:
            if len(tensors) > KEPT or (tensors and chosen.random() < 0.4):
                freed = chosen.choice(list(tensors))
                notes.write(b"-%d" % freed)
                del tensors[freed]
            else:
                number += 1
                size = thread * SIZES + number % (SIZES - 2) + 2
                notes.write(b"+%d" % size)
                tensors[size] = torch.empty(size, device=device)
            notes.write(b"\n")


def noted(folder: Path, thread: int) -> tuple[list[int], list[int]]:
    """Return the changes of a thread, in floats, negative for a free; and one in flight."""
    notes = folder / f"thread{thread}"
    if not notes.exists():  # killed before
        return [], []
    done, _, begun = notes.read_text().rpartition("\n")
    return [int(line) for line in done.split()], [int(begun)] if begun else []


def change(tracer: pytracer.Tracer, seed: int) -> None:
    """Change the ring for ever, and call functions that nobody has called before."""
    chosen = random.Random(seed)
    session = tracer._session
    while True:
        session.change(chosen.randrange(100, ENTRIES), 32, CONTEXT_ALL)
        for _ in range(200):
            scope: dict[str, Any] = {}
            exec(
                "def new(depth):\n import torch\n new(depth - 1) if depth else torch.empty(1)",
                scope,
            )
            scope["new"](chosen.randrange(20))


def dump(tracer: pytracer.Tracer, path: Path) -> None:
    """Write snapshots for ever."""
    while True:
        tracer.dump(path)


def check(folder: Path, seed: int, device: str, is_changing: bool = False) -> None:
    """Kill the program, and compare the file that is made of its box with its notes."""
    threads = 1 + seed % 4
    more = ["changes"] * is_changing
    done = run_python(__file__, folder, seed, threads, device, *more, cwd=folder)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "Traceback" not in done.stderr, done.stderr  # of a thread
    lines = [*restore(folder)]
    [path] = folder.rglob("killed_*/*.pickle")
    assert not [*folder.rglob("*.box")], lines
    snapshot = pickle.loads(path.read_bytes())
    signs = {"alloc": 1, "free_completed": -1}
    changes = [
        signs[event["action"]] * event["size"] // FLOAT_BYTES
        for trace in snapshot["device_traces"]
        for event in trace
        if event["action"] in signs and event["size"] > FLOAT_BYTES
    ]
    live = {
        block["requested_size"] // FLOAT_BYTES
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated" and block["requested_size"] > FLOAT_BYTES
    }
    made = 0
    for thread in range(threads):
        finished, begun = noted(folder, thread)
        mine = [
            change for change in changes if thread * SIZES < abs(change) <= (thread + 1) * SIZES
        ]
        both = [finished, finished + begun]
        assert mine in [each[len(each) - len(mine) :] for each in both]
        model: list[set[int]] = []
        for each in both:
            model.append(set())
            for change in each:
                model[-1] ^= {abs(change)}
        found = {size for size in live if thread * SIZES < size <= (thread + 1) * SIZES}
        assert found in model
        made += len(finished)
    if is_changing:
        return
    held = ENTRIES - 1 - threads  # of an accelerator, also requests of frees, and segments
    assert len(changes) >= min(made, held if device == "cpu" else held // 3)


def main() -> None:
    """Record, and run the threads."""
    import torch

    folder, seed, threads = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    device = sys.argv[4]
    torch.empty(1, device=device)
    start_killer = killer(random.Random(seed).uniform(0.0, 0.5))
    tracer = pytracer.Tracer(
        device=device,
        output=str(folder / "out"),
        trace_alloc_max_entries=ENTRIES,
        max_stack_bytes=2**16 if sys.argv[5:] else 2**25,
    )
    tracer.start()
    os.write(start_killer, b".")
    if sys.argv[5:]:
        threading.Thread(target=change, args=(tracer, seed)).start()
        threading.Thread(target=dump, args=(tracer, folder / "dump.pickle")).start()
    for thread in range(1, threads):
        threading.Thread(target=work, args=(folder, seed, thread, device)).start()
    work(folder, seed, 0, device)


if __name__ == "__main__":
    main()
