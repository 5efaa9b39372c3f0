"""Measure the ns that pytracer and torch's own recorder add to an allocation and its free.

A loop allocates and frees a block, with a full ring, at a given number of Python frames. "raw" uses
the caching allocator's own interface, which the CPU does not have; "empty" uses `torch.empty`. At 0
frames a C++ thread, which has no Python frames, calls the allocator, on the CPU too. In these cases
all pairs come from one call site. "paths" uses the raw interface from two call sites in turn, at
the given number of frames, of which only the first few are common.

"off" attaches nothing and shows the noise. "empty tracker" attaches a function that does nothing
and that the allocator calls for each event: it shows torch's own cost of calling any tracker.
"attached" is pytracer's hook with recording off. The other configurations record: pytracer's are
named by its `context`, and those of torch's recorder ("native", on accelerators only) by its
`stacks`.

Each configuration runs in separate processes, in turn, and is compared with the same process before
anything was attached. Loops with and without recording alternate, so that a change of the machine's
speed affects both (pairs.py). Each figure is the median and minimum .. maximum over the processes,
with the ratio to what "native python" added in the same round.

On simulated devices: `tests/devices/simulate cuda PYTHON bench/per_event.py --device cuda`.
"""

import argparse
import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import (
    BASE,
    NATIVE,
    OURS,
    arguments,
    at_depth,
    in_own_process,
    in_turn,
    new_table,
    recorder,
    save,
    stack_depth,
    summary,
)
from pairs import SIZE_BYTES, Case, Library, added, build, raw_interface

FRAMES = (0, 5, 20, 40, 100)
NOT_RECORDING = ("off", "empty tracker", "attached")
PAIRS, REPEATS, RING = 5_000, 11, 10_000
SECONDS = 0.02  # the duration of the C++ thread's loop


def two_paths(device: str, frames: int) -> Callable[[], float]:
    """Return a loop whose pairs come from two recursive functions in turn, at `frames` frames."""
    allocate, release = raw_interface(device)

    def first_path(more: int) -> None:
        if more:
            first_path(more - 1)
        else:
            release(allocate())

    def second_path(more: int, *_: int) -> None:  # its frames have another size
        if more:
            second_path(more - 1, 1, 2, 3)
        else:
            release(allocate())

    def pairs() -> float:
        more = frames - stack_depth() - 1
        start = time.perf_counter_ns()
        for _ in range(PAIRS // 10):
            first_path(more)
            second_path(more)
        return (time.perf_counter_ns() - start) / (PAIRS // 10 * 2)

    return pairs


def body(through: str, device: str, frames: int) -> Callable[[], float]:
    """Return a loop with its own Python frame; the loop returns the nanoseconds of a pair."""
    import torch

    if through == "paths":
        return two_paths(device, frames)
    if through == "empty":
        where = torch.device(device)

        def empty() -> float:
            start = time.perf_counter_ns()
            for _ in range(PAIRS):
                torch.empty(SIZE_BYTES, dtype=torch.uint8, device=where)
            return (time.perf_counter_ns() - start) / PAIRS

        return empty
    allocate, release = raw_interface(device)

    def raw() -> float:
        start = time.perf_counter_ns()
        for _ in range(PAIRS):
            release(allocate())
        return (time.perf_counter_ns() - start) / PAIRS

    return raw


def cases(device: str, configuration: str, library: str, places: list[str]) -> list[Case]:
    """Return a case for each of `places`, such as "raw 40"."""
    import torch

    if device != "cpu":
        getattr(torch, device).init()
    extension = Library(library)
    found = []
    for through, frames in ((name, int(count)) for name, count in map(str.split, places)):
        if frames == 0:
            name = device if device == "cpu" else f"{device}:0"
            loop = functools.partial(extension.pairs_in_threads, [name], SECONDS)
        else:
            loop = body(through, device, frames)
            if through != "paths":
                loop = functools.partial(at_depth, frames, loop)
        if configuration == "off":
            found.append(Case(loop, lambda: None, lambda: None))
        elif configuration == "empty tracker":
            attach = functools.partial(extension.attach_empty_tracker, device)
            found.append(Case(loop, attach, lambda: None))
        else:
            kept = "all" if configuration == "attached" else configuration
            depth = 64 if frames <= 64 else 128  # keeps all frames, as torch's recorder does
            found.append(Case(loop, *recorder(device, kept, RING, depth)))
    return found


def main() -> None:
    narrowing = argparse.ArgumentParser(add_help=False)
    narrowing.add_argument(
        "--frames",
        type=int,
        nargs="+",
        choices=FRAMES,
        default=FRAMES,
        help="measure only these depths",
    )
    narrowing.add_argument(
        "--through", choices=("raw", "empty", "paths"), help="measure only this interface"
    )
    devices = ("cpu", "cuda", "npu")
    options = arguments(__doc__, "per_event_{device}.json", devices, parents=[narrowing])
    device = options.device
    native = device != "cpu"
    configurations = [*NOT_RECORDING, *OURS, *(NATIVE if native else ())]
    if not native:
        configurations.remove("empty tracker")
    places = [
        (through, frames)
        for through in ("raw", "empty")
        for frames in options.frames
        if options.through in (None, through)
        and (frames > 0 if through == "empty" else native or frames == 0)
    ]
    if native and options.through in (None, "paths"):
        places += [("paths", frames) for frames in (20, 40) if frames in options.frames]
    if not places:
        sys.exit(f"--frames and --through select nothing that can be measured on {device}")
    with tempfile.TemporaryDirectory() as folder:
        library = build(device, Path(folder))
        names = [f"{through} {frames}" for through, frames in places]
        results = in_turn(
            configurations * options.rounds,
            lambda name: in_own_process(__file__, device, name, library, *names),
        )
    columns = ("through", "frames", "configuration", "off", "added", "min .. max", "ratio")
    table = new_table(f"ns of a pair on {device}, and added to it", columns, columns[2:3])
    figures = []
    for index, (through, frames) in enumerate(places):
        table.add_section()
        for configuration in configurations:
            found = [round_[index] for round_ in results[configuration]]
            figure: dict[str, Any] = {"through": through, "frames": frames}
            figure |= {"configuration": configuration}
            figure |= {key: summary([result[key] for result in found]) for key in found[0]}
            if native and configuration not in NATIVE:
                ratios = [
                    ours["added_ns"] / base[index]["added_ns"]
                    for ours, base in zip(found, results[BASE], strict=True)
                ]
                figure["of_native"] = summary(ratios)
            figures.append(figure)
            off, more = figure["off_ns"], figure["added_ns"]
            table.add_row(
                through,
                str(frames),
                configuration,
                f"{off['median']:.0f}",
                f"{more['median']:+.0f}",
                f"{more['min']:+.0f} .. {more['max']:+.0f}",
                f"{figure['of_native']['median']:.2f}" if "of_native" in figure else "",
            )
    save(options, figures, table)
    if native:
        print(f"ratio: relative to what {BASE} adds")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        # `cases` and `added` are called at module level, so that the loops can run at 5 frames.
        device, configuration, library, *places = json.loads(sys.argv[2])
        chosen = cases(device, configuration, library, places)
        attaches, records = configuration not in NATIVE, configuration not in NOT_RECORDING
        print(json.dumps(added(chosen, REPEATS, attaches, records)))
    else:
        main()
