"""What recording adds to an allocation and its free, by us and by torch's own recorder.

Each figure: a block taken and given back in a loop, at a given number of Python frames; on the CPU
by `torch.empty`, on an accelerator by the caching allocator's raw interface, with a full ring. Each
configuration runs in processes of its own, in turn. In each process the loop runs by turns without
recording and with it, so that a machine that changes its speed changes both; what is added is the
median of the differences of neighbours. "attached" is the hook with recording off, against the time
before it was attached; "native" is torch's recorder with Python stacks.

On simulated devices: `tests/devices/simulate cuda PYTHON bench/per_event.py --device cuda`.
"""

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable

from harness import arguments, at_depth, in_own_process, save, summary
from rich.console import Console
from rich.progress import track
from rich.table import Table

FRAMES = (5, 40)
CONTEXTS = {"no stacks": None, "state": "state", "alloc": "alloc", "all": "all"}
NATIVE = {f"native {context}": context for context in ("state", "alloc", "all")}
PAIRS, REPEATS, RING = 10_000, 15, 10_000


def one_pair(device: str) -> Callable[[], object]:
    """Takes a block and gives it back."""
    import torch

    if device == "cpu":
        return lambda: torch.empty(128)
    module = getattr(torch, device)
    module.init()
    stream = getattr(module.current_stream(), f"{device}_stream")
    if device == "cuda":
        allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
        release = torch._C._cuda_cudaCachingAllocator_raw_delete
    else:
        import torch_npu

        allocate = torch_npu._C._npu_npuCachingAllocator_raw_alloc
        release = torch_npu._C._npu_npuCachingAllocator_raw_delete
    return lambda: release(allocate(1024, stream))


def worker(device: str, configuration: str, frames: int) -> dict[str, float]:
    """Nanoseconds a pair without recording, and what the configuration adds."""
    import torch

    import pytracer

    pair = one_pair(device)

    def pairs() -> float:
        start = time.perf_counter_ns()
        for _ in range(PAIRS):
            pair()
        return (time.perf_counter_ns() - start) / PAIRS

    if configuration in NATIVE:
        record = functools.partial(
            getattr(torch, device).memory._record_memory_history,
            context=NATIVE[configuration],
            stacks="python",
            max_entries=RING,
        )
        start, stop = functools.partial(record, "all"), functools.partial(record, None)
    else:
        tracer = pytracer.Tracer(
            device=device,
            stack_depth=64,
            context=CONTEXTS.get(configuration, "all"),
            trace_alloc_max_entries=RING,
        )
        start, stop = tracer.start, tracer.stop
    off, on = [], []
    if configuration == "attached":
        for _ in range(REPEATS + 1):
            off.append(at_depth(frames, pairs))
        start()
        stop()
        for _ in range(REPEATS + 1):
            on.append(at_depth(frames, pairs))
    else:
        start()
        stop()
        for _ in range(REPEATS + 1):
            off.append(at_depth(frames, pairs))
            start()
            at_depth(frames, pairs)  # until the ring is full and the stacks are known
            on.append(at_depth(frames, pairs))
            stop()
    differences = [with_it - without for with_it, without in zip(on[1:], off[1:], strict=True)]
    return {"off": statistics.median(off[1:]), "added": statistics.median(differences)}


def main() -> None:
    options = arguments(__doc__, "per_event_{device}.json", devices=("cpu", "cuda", "npu"))
    device = options.device
    configurations = ["attached", *CONTEXTS, *(NATIVE if device != "cpu" else ())]
    results: dict[tuple[str, int], list[dict[str, float]]] = {}
    rounds = [(c, f) for _ in range(options.rounds) for f in FRAMES for c in configurations]
    for configuration, frames in track(rounds, "measuring", console=Console(stderr=True)):
        result = in_own_process(__file__, device, configuration, frames)
        results.setdefault((configuration, frames), []).append(result)
    table = Table(title=f"ns added to a pair on {device} (median, least .. most)")
    table.add_column("configuration")
    for frames in FRAMES:
        table.add_column(f"{frames} frames", justify="right")
    figures = []
    for configuration in configurations:
        row = [configuration]
        for frames in FRAMES:
            found = results[configuration, frames]
            added = summary([each["added"] for each in found])
            row.append(f"{added['median']:+.0f} ({added['min']:+.0f} .. {added['max']:+.0f})")
            off = summary([each["off"] for each in found])
            figures.append({"configuration": configuration, "frames": frames})
            figures[-1] |= {"added_ns": added, "off_ns": off}
        table.add_row(*row)
    Console().print(table)
    for configuration in NATIVE if device != "cpu" else ():
        for frames in FRAMES:
            ours, theirs = (
                statistics.median(each["added"] for each in results[name, frames])
                for name in (NATIVE[configuration], configuration)
            )
            print(f"{configuration}, {frames} frames: {ours / theirs:.2f} of what torch's adds")
    base = statistics.median(each["off"] for found in results.values() for each in found)
    print(f"without recording: {base:.0f} ns")
    save(options.json, figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(worker(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        main()
