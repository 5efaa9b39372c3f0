"""What recording adds to an allocation and its free, by us and by torch's own recorder, in ns.

A block is taken and given back in a loop, with a full ring, at a number of Python frames: "raw"
through the caching allocator's own interface, which the CPU does not have, and "empty" by
`torch.empty`. At 0 frames a C++ thread, which has none, calls the allocator, the CPU's too. In
these all pairs come from one place. "paths" is the raw interface from two places by turns, that
many frames deep and with no call in common but the first few.

"off" attaches nothing: what it shows is noise. "empty tracker" is a function that does nothing,
called by the allocator for each event: what torch itself takes for telling anyone. "attached" is
our hook with recording off. The others record: ours by its `context`, and torch's recorder
("native", on accelerators only) by its `stacks`.

Each configuration runs in processes of its own, in turn; each is compared with the same process
before anything was attached. Loops with recording and without take turns, so that a machine that
changes its speed changes both (pairs.py). Given are median and least .. most over the processes,
and the ratio to what "native python" added in the same round.

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
    recorder,
    save,
    stack_depth,
    summary,
)
from pairs import SIZE_BYTES, Case, Library, added, build, raw_interface
from rich.console import Console
from rich.progress import track
from rich.table import Table

FRAMES = (0, 5, 20, 40, 100)
NOT_RECORDING = ("off", "empty tracker", "attached")
PAIRS, REPEATS, RING = 5_000, 11, 10_000
SECONDS = 0.02  # of the C++ thread's loop


def two_paths(device: str, frames: int) -> Callable[[], float]:
    """A loop of pairs at so many frames, by two functions that call themselves, by turns."""
    allocate, release = raw_interface(device)

    def one(more: int) -> None:
        if more:
            one(more - 1)
        else:
            release(allocate())

    def other(more: int, *_: int) -> None:  # whose frames have another size
        if more:
            other(more - 1, 1, 2, 3)
        else:
            release(allocate())

    def pairs() -> float:
        more = frames - stack_depth() - 1
        start = time.perf_counter_ns()
        for _ in range(PAIRS // 10):
            one(more)
            other(more)
        return (time.perf_counter_ns() - start) / (PAIRS // 10 * 2)

    return pairs


def body(through: str, device: str, frames: int) -> Callable[[], float]:
    """A loop in a Python frame of its own; returns nanoseconds a pair."""
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
    """One for each of `places`, as "raw 40"."""
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
            depth = 64 if frames <= 64 else 128  # all of them are kept, as torch's recorder does
            found.append(Case(loop, *recorder(device, kept, RING, depth)))
    return found


def main() -> None:
    narrowing = argparse.ArgumentParser(add_help=False)
    narrowing.add_argument(
        "--frames", type=int, nargs="+", choices=FRAMES, default=FRAMES, help="these alone"
    )
    narrowing.add_argument("--through", choices=("raw", "empty", "paths"), help="this alone")
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
        sys.exit(f"nothing to measure on {device} that is asked for by --frames and --through")
    results: dict[str, list[list[dict[str, float]]]] = {each: [] for each in configurations}
    rounds = [each for _ in range(options.rounds) for each in configurations]
    with tempfile.TemporaryDirectory() as folder:
        library = build(device, Path(folder))
        names = [f"{through} {frames}" for through, frames in places]
        for each in track(rounds, "measuring", console=Console(stderr=True)):
            results[each].append(in_own_process(__file__, device, each, library, *names))
    table = Table(title=f"ns of a pair on {device}, and added to it")
    for column in ("through", "frames", "configuration", "off", "added", "least .. most", "ratio"):
        table.add_column(column, justify="left" if column == "configuration" else "right")
    figures = []
    for index, (through, frames) in enumerate(places):
        table.add_section()
        for configuration in configurations:
            found = [each[index] for each in results[configuration]]
            figure: dict[str, Any] = {"through": through, "frames": frames}
            figure |= {"configuration": configuration}
            figure |= {key: summary([each[key] for each in found]) for key in found[0]}
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
    Console().print(table)
    if native:
        print(f"ratio: of what {BASE} adds")
    save(options, figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        # Called from here: five frames are just enough.
        _, _, device, configuration, library, *places = sys.argv
        chosen = cases(device, configuration, library, places)
        attaches, records = configuration not in NATIVE, configuration not in NOT_RECORDING
        print(json.dumps(added(chosen, REPEATS, attaches, records)))
    else:
        main()
