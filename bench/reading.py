"""Measure the seconds and the memory that reading a snapshot takes, next to the file's size.

The files have 1 M and 10 M events of the same random activity: 2,000 distinct stacks of 20 frames,
and about 10,000 live blocks. `pytracer` files are written by the recorder (on the CPU, with 100
steps and two phases). `torch` files are written by pickle.dump and have the layout of PyTorch's own
recorder, in which every event has its own list of frames. Each figure comes from a separate
process, with the file in the page cache: the seconds of a call or of an entire command, and the
peak of the process's total resident memory (`before` is the resident memory before the call). The
figures are medians over the rounds; files of 10 M events get two rounds.

`pt-snap import` is a command of pt-snap-cli (0.4.1). If it is installed, it is measured once for
each file.
"""

import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import (
    arguments,
    at_depth,
    in_own_process,
    in_turn,
    resident_bytes,
    save,
    start,
    summary,
)
from rich.table import Table

FILES = (("pytracer", 1_000_000), ("torch", 1_000_000), ("pytracer", 10_000_000))
STACKS, FRAMES, SLOTS, STEPS = 2_000, 20, 20_000, 100
BATCH = 50
ROUNDS_OF_LARGE = 2
IMPORT_TIMEOUT_S = 600
ALLOC, FREE = 0, 2  # values of csrc/hooks/hook_abi.h

Batch = list[tuple[int, int, int]]


class Activity:
    """Slots of memory that are allocated and freed in random order; about half are allocated."""

    def __init__(self) -> None:
        self._random = random.Random(0)
        self.sizes = [512 * self._random.randrange(1, 128) for _ in range(SLOTS)]
        self.addresses = [2**20]
        for size in self.sizes:
            self.addresses.append(self.addresses[-1] + size)
        self.live = [False] * SLOTS

    def batches(self, events: int) -> Iterator[tuple[int, Batch]]:
        """Yield batches of (action, address, size), each with the number of its stack."""
        first = [self._turn(slot) for slot in range(0, SLOTS, 2)]
        for begin in range(0, SLOTS // 2, BATCH):
            yield begin // BATCH, first[begin : begin + BATCH]
        for number in range(events // BATCH):
            slots = (self._random.randrange(SLOTS) for _ in range(BATCH))
            yield number % STACKS, [self._turn(slot) for slot in slots]

    def _turn(self, slot: int) -> tuple[int, int, int]:
        self.live[slot] = not self.live[slot]
        return ALLOC if self.live[slot] else FREE, self.addresses[slot], self.sizes[slot]


def write_pytracer(path: Path, events: int) -> None:
    """Write a recording; an event has two or three entries in the file, 2.5 on average."""
    from pytracer import Tracer, _core, annotate

    functions = []
    for number in range(STACKS):
        scope: dict[str, Any] = {"record": _core.testing.record}
        source = f"def f{number}(batch):\n for event in batch:\n  record(*event)"
        exec(compile(source, f"model/layer{number % 100}.py", "exec"), scope)
        functions.append(scope[f"f{number}"])
    entries = int(events / 2.5)
    with Tracer(device="cpu", trace_alloc_max_entries=entries) as tracer:

        def recorded() -> None:
            step = entries // BATCH // STEPS
            for number, (stack, batch) in enumerate(Activity().batches(entries)):
                with annotate("forward" if number % 2 else "backward"):
                    functions[stack](batch)
                if number % step == step - 1:
                    tracer.step()

        at_depth(FRAMES - 1, recorded)
        tracer.dump(path)


def write_torch(path: Path, events: int) -> None:
    """Write a file with the layout of torch 2.13: frames are shared, lists of frames are not."""
    rng = random.Random(0)
    outer = [
        {"name": f"g{number}", "filename": f"model/block{number % 20}.py", "line": number}
        for number in range(400)
    ]
    stacks = [
        [
            {"name": f"f{number}", "filename": f"model/layer{number % 100}.py", "line": 3},
            *rng.choices(outer, k=FRAMES - 1),
        ]
        for number in range(STACKS)
    ]
    activity = Activity()
    trace: list[dict[str, Any]] = []
    frames_of: dict[int, list[dict[str, Any]]] = {}

    def add(action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        event = {"action": action, "addr": address, "size": size, "stream": 0}
        event |= {"time_us": 1_700_000_000_000_000 + len(trace), "compile_context": "N/A"}
        trace.append({**event, "user_metadata": "", "pool_id": (0, 0), "frames": frames})

    for stack, batch in activity.batches(int(events / 1.5)):
        for action, address, size in batch:
            frames = list(stacks[stack])
            if action == ALLOC:
                frames_of[address] = frames
                add("alloc", address, size, frames)
            else:
                add("free_requested", address, size, frames)
                add("free_completed", address, size, frames)
    assert len(trace) >= events
    slots = zip(activity.addresses, activity.sizes, activity.live, strict=False)
    blocks = [
        {
            "address": address,
            "size": size,
            "requested_size": size,
            "state": "active_allocated" if live else "inactive",
            "frames": frames_of[address] if live else [],
        }
        for address, size, live in slots
    ]
    live_bytes = sum(block["size"] for block in blocks if block["state"] != "inactive")
    segment = {
        "device": 0,
        "address": activity.addresses[0],
        "total_size": activity.addresses[-1] - activity.addresses[0],
        "allocated_size": live_bytes,
        "active_size": live_bytes,
        "requested_size": live_bytes,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
    snapshot = {"segments": [segment], "device_traces": [trace[-events:]]}
    with open(path, "wb") as file:
        pickle.dump({**snapshot, "allocator_settings": {}, "external_annotations": []}, file)


def worker(what: str, name: str, events: int) -> dict[str, float]:
    """Write a file, or read it in one way and return the seconds and bytes."""
    path = Path(name)
    if what.startswith("write"):
        (write_pytracer if what == "write pytracer" else write_torch)(path, events)
        return {}
    from pytracer.analysis.report import stats
    from pytracer.reading import load

    def unpickled() -> Any:
        with open(path, "rb") as file:
            return pickle.load(file)

    call = {
        "load": lambda: load(path),
        "load and stats": lambda: stats(load(path)),
        "pickle.load": unpickled,
    }[what]
    before = resident_bytes()
    start = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - start
    if what == "load":
        assert sum(map(len, result.traces)) > 0.99 * events
    return {"seconds": seconds, "peak_bytes": peak_bytes(), "before_bytes": before}


def peak_bytes() -> int:
    """Return the peak of this process's resident memory; `ru_maxrss` may be the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def measure_command(command: list[str], timeout_s: float) -> dict[str, float] | None:
    """Run a command and return its seconds and bytes, or None if it exceeded the time limit."""
    start = time.perf_counter()
    process = subprocess.Popen(
        ["timeout", str(timeout_s), *command],
        cwd=Path(__file__).parent,  # in the checkout's root, Python would import the sources
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    code = process.returncode = os.waitstatus_to_exitcode(status)
    if code == 124:
        return None
    if code:
        raise subprocess.CalledProcessError(code, command)
    return {"seconds": seconds, "peak_bytes": usage.ru_maxrss * 1024, "before_bytes": 0}


def measure(what: str, path: Path, events: int) -> dict[str, float] | None:
    """Read the file once, in the way that `what` names."""
    if what == "pytracer show":
        command = [sys.executable, "-m", "pytracer", "show", str(path)]
        return measure_command(command, IMPORT_TIMEOUT_S)
    if what == "pt-snap import":
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            pt_snap = str(Path(sys.executable).with_name("pt-snap"))
            command = [pt_snap, "import", str(path), "-o", folder, "--no-focus"]
            return measure_command(command, IMPORT_TIMEOUT_S)
    found: dict[str, float] = in_own_process(__file__, what, path, events)
    return found


def ways(events: int, rounds: int) -> list[str]:
    """Return the ways to read a file, in the order of measurement."""
    several = ["load", "load and stats", "pytracer show", "pickle.load"]
    result = several * (min(rounds, ROUNDS_OF_LARGE) if events > 1_000_000 else rounds)
    if Path(sys.executable).with_name("pt-snap").exists():
        result.append("pt-snap import")
    return result


def main() -> None:
    options = arguments(__doc__, "reading.json")
    table = Table(title="Reading a snapshot (medians)")
    for column in ("file", "events", "MB", "", "s", "peak MB", "x file"):
        justify: Any = "left" if column in ("file", "") else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    figures = []
    for kind, events in FILES:
        folder = Path(tempfile.mkdtemp())
        try:
            path = folder / "snapshot.pickle"
            in_own_process(__file__, f"write {kind}", path, events)
            file_bytes = path.stat().st_size
            turns = ways(events, options.rounds)
            results = in_turn(turns, lambda what: measure(what, path, events))  # noqa: B023
        finally:
            shutil.rmtree(folder)
        for what, readings in results.items():
            figure: dict[str, Any] = {"kind": kind, "events": events, "file_bytes": file_bytes}
            rounds = [reading for reading in readings if reading is not None]
            keys = (rounds or [{}])[0]
            found = {key: summary([round_[key] for round_ in rounds]) for key in keys}
            figures.append({**figure, "what": what, "timeout_s": IMPORT_TIMEOUT_S, **found})
            row = [kind, f"{events:,}", f"{file_bytes / 1e6:.1f}", what]
            if found:
                peak = found["peak_bytes"]["median"]
                row += [f"{found['seconds']['median']:.2f}", f"{peak / 1e6:.0f}"]
                row.append(f"{peak / file_bytes:.1f}")
            else:
                row.append(f"> {IMPORT_TIMEOUT_S}")
            table.add_row(*row)
    save(options, figures, table)


if __name__ == "__main__":
    start(main, worker)
