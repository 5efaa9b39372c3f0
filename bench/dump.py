"""Measure the memory of a full ring and the cost of its dump, for pytracer and torch's recorder.

The ring is filled through the real allocator (on accelerators by its raw interface, on the CPU by
`torch.empty`), at 5 and at 40 Python frames. The stacks are either shared (2,000 distinct stacks)
or all different (each allocation and each free has its own). 10,000 blocks are live. Both recorders
see the same events, and keep the stacks of allocations and frees. Both rings have room for the same
history: on an accelerator, an allocation and its free are two events of pytracer's ring, and three
of torch's. The files are read back and compared to check this. A CPU event becomes two or three
entries of the file (docs/reference/snapshot-format.md). torch has no recorder for the CPU.

Each process measures one recorder. It runs the workload first without recording, then with it:

- resident: the growth of resident memory, in bytes, from the run without recording to the run with
  it, so that neither blocks nor the program's own objects count. The results also have the bytes
  that `stats()` reports, and the number of events without a stack.
- first, tiny: the seconds of the process's first dump, of two events, including its imports.
- dump, later: the seconds of the first dump of the full ring, and of later dumps.
- extra: how far the first dump of the full ring raises the high-water mark of resident memory (a
  lower bound, if the kernel does not allow a reset of the mark).
- file: the file's bytes without the fixed header, which is measured as the file of an empty
  recording; the results have its bytes too.

Two cases are training loops (`per_step.py` has the step), the second one in a program with 900,000
more Python objects: a dump looks for the owners and holders of live blocks among all objects. There
pytracer has its default options.

With different stacks, pytracer gets a `max_stack_bytes` that has room for them. "bounded" is the
same with the default `max_stack_bytes`, under which some stacks are left out. With 1 M events,
pytracer gets a third of the rounds; torch's recorder gets a fifth, and no later dump.

The table has the main figures; the JSON file has all.
"""

import collections
import contextlib
import ctypes
import functools
import gc
import math
import os
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import (
    BASE,
    arguments,
    in_own_process,
    in_turn,
    new_table,
    recorder,
    resident_bytes,
    save,
    start,
    summary,
)
from pairs import raw_interface
from per_step import SIZES as STEPS
from per_step import training_step

SIZES, FRAMES = (10_000, 100_000, 1_000_000), (5, 40)
STACKS, LIVE_BLOCKS = 2_000, 10_000
ENOUGH_STACK_BYTES = 2**30
OURS = "pytracer"
# The generated code has up to so many functions that allocate, with so many allocations each.
LEAVES, LINES = 100, 10
LATER_DUMPS = 2
LOOPS = {"a training loop": 0, "a training loop, 900,000 objects": 900_000}  # with so many more
LOOP_EVENTS, LOOP_DUMPS = 100_000, 5
LARGE_SHARE = {OURS: 3, BASE: 5}  # the largest ring is measured in one of so many rounds
COLUMNS = {
    "resident_bytes": "resident",
    "dump_extra_bytes": "extra",
    "dump_s": "dump",
    "later_dump_s": "later",
    "file_bytes": "file",
    "dropped": "no stack",
}


def allocating_paths(
    number: int, frames: int, allocate: Callable[[], Any], release: Callable[[Any], object]
) -> Callable[[], None]:
    """Return a function that allocates and frees a block on each of `number` paths of its code.

    Each path is two stacks, the allocation's and the free's, of `frames` frames (at least 3) on
    top of the caller's. If `number` is not a multiple of the lines, there are a few more paths.
    """
    lines = min(number, LINES)
    leaves = min(math.ceil(number / lines), LEAVES)
    source = []
    for leaf in range(leaves):
        source += [f"def leaf{leaf}():", *[" release(", "  allocate())"] * lines]
    source += ["def path2():", *(f" leaf{leaf}()" for leaf in range(leaves))]
    for level in range(3, frames + 1):
        calls = math.ceil(number / (lines * leaves)) if level == 3 else 1
        source += [f"def path{level}():", *[f" path{level - 1}()"] * calls]
    scope: dict[str, Any] = {"allocate": allocate, "release": release}
    exec(compile("\n".join(source), "<allocating paths>", "exec"), scope)
    function: Callable[[], None] = scope[f"path{frames}"]
    return function


def peak_bytes() -> int:
    """Return the high-water mark of this process's resident memory."""
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )
    return int(line.split()[1]) * 1024


def reset_peak() -> None:
    """Reset the high-water mark of resident memory, if the kernel allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def trim() -> None:
    """Return freed memory to the system, so that the next measurement cannot reuse it unnoticed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def native_dump(device: str, path: Path) -> None:
    import torch

    if device == "cuda":
        torch.cuda.memory._dump_snapshot(str(path))
    else:  # as verl does
        with path.open("wb") as file:
            pickle.dump(torch.npu.memory._snapshot(), file)


def contents(path: Path) -> dict[str, Any]:
    """Return the contents in which the files of both recorders must agree."""
    import numpy as np

    from pytracer.reading import load

    snapshot = load(path)
    events: collections.Counter[str] = collections.Counter()
    depths: collections.Counter[int] = collections.Counter()
    for trace in snapshot.traces:
        for action, count in zip(*np.unique(trace.action, return_counts=True), strict=True):
            events[snapshot.actions[action]] += int(count)
        frames = np.diff(snapshot.stacks.offsets)[trace.stack]
        for depth, count in zip(*np.unique(frames, return_counts=True), strict=True):
            depths[int(depth)] += int(count)
    return {
        "events": events,
        "frames_of_events": depths,
        "distinct_stacks": len(snapshot.stacks) - 1,
    }


def training_loop(device: str, objects: int) -> dict[str, Any]:
    """Measure dumps in a training loop, in a program with so many more Python objects."""
    import pytracer

    others = [[number] for number in range(objects)]
    tracer = pytracer.Tracer(device=device, trace_alloc_max_entries=LOOP_EVENTS)
    with tracer, tempfile.TemporaryDirectory() as folder:  # from the start, as by default
        step = training_step(device, STEPS["small"])
        while tracer.stats()["devices"][0]["held"] < LOOP_EVENTS:
            step()
        path = Path(folder, "loop.pickle")
        dump = functools.partial(seconds, lambda: tracer.dump(path))
        found = {"dump_s": dump(), "later_dump_s": min(dump() for _ in range(LOOP_DUMPS))}
        found |= {"file_bytes": os.path.getsize(path), "contents": contents(path)}
    del others
    return found


def worker(device: str, who: str, entries: int, frames: int, stacks: str) -> dict[str, Any]:
    """Measure one recorder in one case; the keys of the result name bytes and seconds."""
    if stacks in LOOPS:
        return training_loop(device, LOOPS[stacks])
    import torch

    import pytracer

    allocate, release = raw_interface(device)
    pairs = entries // (2 if device == "cpu" else 3) + 1
    number = STACKS // 2 if stacks == "shared" else pairs
    # The frames of the module and of this function are the other two.
    paths = allocating_paths(number, frames - 2, allocate, release)
    ring = math.ceil(entries * 2 / 3) if who == OURS and device != "cpu" else entries
    if who == OURS:
        more = {"max_stack_bytes": ENOUGH_STACK_BYTES} if stacks == "different" else {}
        tracer = pytracer.Tracer(
            device=device, stack_depth=64, trace_alloc_max_entries=ring, **more
        )
        start, stop, dump = tracer.start, tracer.stop, tracer.dump
    else:
        start, stop = recorder(device, BASE, ring)
        dump = functools.partial(native_dump, device)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        start()
        release(allocate())
        result["tiny_dump_s"] = seconds(lambda: dump(Path(folder, "tiny.pickle")))
        stop()

    before = 0
    # Two runs without recording, after which the heap and CPython's specialised code are stable.
    for recording in (False, False, True):
        if recording:
            start()
        blocks = [allocate() for _ in range(LIVE_BLOCKS)]
        for _ in range(math.ceil(pairs / number)):
            paths()
        trim()
        if recording:
            result["resident_bytes"] = resident_bytes() - before
        else:
            before = resident_bytes()
            while blocks:
                release(blocks.pop())
    if who == OURS:
        stats = tracer.stats()
        (log,) = (log for log in stats["devices"] if log["recorded"])
        assert log["held"] == ring
        result["said_bytes"] = (
            log["ring_bytes"] + log["live_table_bytes"] + stats["stacks"]["bytes"]
        )
        result["dropped"] = stats["stacks"]["dropped"]

    with tempfile.TemporaryDirectory() as folder:
        first, later = Path(folder, "first.pickle"), Path(folder, "later.pickle")
        reset_peak()
        peak = peak_bytes()
        result["dump_s"] = seconds(lambda: dump(first))
        result["dump_extra_bytes"] = peak_bytes() - peak
        if who == OURS or entries < max(SIZES):
            result["later_dump_s"] = statistics.median(
                seconds(lambda: dump(later)) for _ in range(LATER_DUMPS)
            )
        result["contents"] = contents(first)
        stop()
        while blocks:
            release(blocks.pop())
        if device != "cpu":
            getattr(torch, device).empty_cache()
        start()
        dump(later)
        stop()
        result["empty_file_bytes"] = os.path.getsize(later)
        result["file_bytes"] = os.path.getsize(first) - result["empty_file_bytes"]
    return result


def agree(ours: dict[str, Any], native: dict[str, Any]) -> bool:
    """Return whether the files have the same events, except one displaced by a snapshot marker."""
    actions = (ours["events"].keys() | native["events"].keys()) - {"snapshot"}
    depths = (ours["frames_of_events"].keys() | native["frames_of_events"].keys()) - {"0"}
    return all(
        abs(ours[kind].get(key, 0) - native[kind].get(key, 0)) <= 1
        for kind, keys in (("events", actions), ("frames_of_events", depths))
        for key in keys
    )


def as_text(key: str, value: float) -> str:
    if key == "dropped":
        return f"{value:,.0f}"
    return f"{value / 1e6:.1f}" if key.endswith("_bytes") else f"{value:.3f}"


def main() -> None:
    options = arguments(__doc__, "dump_{device}.json", ("cpu", "cuda", "npu"), rounds=3)
    recorders = (OURS,) if options.device == "cpu" else (OURS, BASE)
    cases = [
        (size, frames, stacks, who)
        for size in SIZES
        for frames in FRAMES
        for stacks in ("shared", "different", "bounded")
        for who in recorders
        if stacks != "bounded" or (size == max(SIZES) and who == OURS)
    ]
    cases += [(LOOP_EVENTS, 0, loop, OURS) for loop in LOOPS]

    def rounds(case: tuple[int, int, str, str]) -> int:
        return math.ceil(
            options.rounds / LARGE_SHARE[case[3]] if case[0] == max(SIZES) else options.rounds
        )

    results = in_turn(
        [case for turn in range(options.rounds) for case in cases if turn < rounds(case)],
        lambda case: in_own_process(__file__, options.device, case[3], *case[:3]),
    )

    columns = ("events", "frames", "stacks", "", *COLUMNS.values())
    table = new_table(f"A full ring and its dump on {options.device}, medians: MB, s", columns)
    figures, complaints = [], []
    for case in cases:
        size, frames, stacks, who = case
        found, native = results[case], results.get((size, frames, stacks, BASE))
        figure: dict[str, Any] = {"events": size, "frames": frames, "stacks": stacks}
        figure |= {"recorder": who, "contents": found[0]["contents"]}
        keys = [key for key in found[0] if key != "contents"]
        figure |= {key: summary([result[key] for result in found]) for key in keys}
        figures.append(figure)
        cells = {key: as_text(key, figure[key]["median"]) for key in COLUMNS if key in figure}
        table.add_row(
            f"{size:,}", str(frames), stacks, who, *(cells.get(key, "") for key in COLUMNS)
        )
        if who == BASE or native is None:
            table.add_section()
            continue
        figure["of_native"] = {
            key: figure[key]["median"] / statistics.median(result[key] for result in native)
            for key in keys
            if key in native[0] and key != "empty_file_bytes"
        }
        cells = {key: f"{ratio:.3f}" for key, ratio in figure["of_native"].items()}
        table.add_row("", "", "", "ratio", *(cells.get(key, "") for key in COLUMNS))
        name = f"{size:,} events, {frames} frames, {stacks} stacks"
        if not agree(found[0]["contents"], native[0]["contents"]):
            complaints.append(f"{name}: the files have different events")
        elif figure["file_bytes"]["max"] > min(result["file_bytes"] for result in native):
            complaints.append(f"{name}: pytracer's file is larger than torch's")
    save(options, figures, table)
    if BASE in recorders:
        fine = "The files of both recorders have the same events, and pytracer's are never larger."
        print("\n".join(complaints) or fine)


if __name__ == "__main__":
    start(main, worker)
