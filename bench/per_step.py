"""What recording adds to a training step, by us and by torch's own recorder; with a busy GIL too.

A step of a GPT: forward under autocast (bfloat16), backward, AdamW. Where kernels do nothing, on
simulated devices, it is all host time: the worst case. On the CPU they compute, in one thread (more
would wait for each other, and for the busy one), for a model that is as small. On a real GPU it is
as large as GPT-2, unless `--size small` is asked for. How many pairs of an allocation and its free
a step has, and how deep their stacks are, is counted in a recording; on an accelerator the backward
runs in a thread that has no Python frames. Stacks are a tracer's usual ones, of 32 frames; torch's
recorder keeps all. Both have a ring of 10,000 events, which is full after a few steps.

Each configuration runs in processes of its own, in turn, first quiet and then busy. Blocks of
steps run before anything is attached; then while our hook is attached and off, where it stays for
good; then by turns recording, with a full ring, and not. What recording adds is the median of the
differences of neighbours in the third part. "attached" is the second part against the first, in all
processes that have our hook, and its median, of the quiet ones, is in the figures of our
configurations: all are against a step without us. "off" attaches nothing, and does the same as
"attached": what it shows is noise. The garbage collector is off meanwhile, and what there was
before is frozen. Given are median and least .. most over the processes, and the ratio to the median
of "native python".

Busy GIL: another thread, on a core of its own, runs a loop of Python all the time. A step then
waits for the GIL again and again, as long as the switch interval each time. With Python's 5 ms
these waits are most of the step, and how many there are is chance, which drowns all else. So it is
0.1 ms; `--switch-interval 0.005` shows the other. Two clocks are read: the one on the wall, which
counts waiting for the GIL, and the CPU time of the process without the busy thread, which does not.
On a real GPU, waiting for the device is CPU time as well. In longest_call.py the GIL is never free.

On simulated devices: `tests/devices/simulate cuda PYTHON bench/per_step.py --device cuda`.
"""

import argparse
import contextlib
import gc
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from harness import (
    BASE,
    NATIVE,
    OURS,
    arguments,
    environment,
    in_own_process,
    recorder,
    save,
    summary,
)
from rich.console import Console
from rich.progress import track
from rich.table import Table


class Size(NamedTuple):
    """Of the model, of its batch, and how many steps are a block."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    batch: int
    steps: int


SIZES = {
    "small": Size(8, 64, 4, 256, 16, 1, steps=10),
    "gpt2": Size(12, 768, 12, 50304, 1024, 4, steps=10),
}
RING, STACK_DEPTH = 10_000, 32
WARM_UP, BLOCKS = 100, 12
BUSY_SHARE = 2  # of a block's steps, with a busy GIL one in so many: each takes far longer
SITUATIONS = ("quiet", "busy GIL")
CLOCKS = ("wall", "cpu")


def training_step(device: str, size: Size) -> Callable[[], None]:
    """Makes a model and what trains it."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    if device == "npu":
        import torch_npu  # noqa: F401
    torch.set_num_threads(1)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = size.width
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
            self.query_key_value = nn.Linear(width, 3 * width)
            self.output = nn.Linear(width, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def attend(self, x: Tensor) -> Tensor:
            heads = self.query_key_value(x).unflatten(-1, (3, size.heads, -1))
            query, key, value = heads.permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            return self.output(mixed.transpose(1, 2).flatten(-2))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attend(self.norms[0](x))
            return x + self.mlp(self.norms[1](x))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(size.vocabulary, size.width)
            self.positions = nn.Parameter(torch.zeros(size.length, size.width))
            self.layers = nn.ModuleList(Layer() for _ in range(size.layers))
            self.norm = nn.LayerNorm(size.width)
            self.scores = nn.Linear(size.width, size.vocabulary)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.tokens(tokens) + self.positions
            for layer in self.layers:
                x = layer(x)
            return self.scores(self.norm(x))

    model = Gpt().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(size.batch, size.length, dtype=torch.long, device=device)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            scores = model(tokens)
            loss = functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARM_UP):
        step()
    return step


def describe(device: str, size: Size) -> dict[str, Any]:
    """What a step allocates, and how deep in Python; with a stack of the median depth."""
    import pytracer

    step = training_step(device, size)
    with pytracer.Tracer(device=device, stack_depth=256) as tracer:
        step()
    events = tracer.events()
    stacks = events["stack"][events["action"] == pytracer.ACTIONS.index("alloc")]
    frames = {stack: tracer.frames(int(stack)) for stack in set(stacks)}
    depths = [len(frames[stack]) for stack in stacks if len(frames[stack])]
    median = statistics.median_low(depths)
    example = next(stack for stack in frames.values() if len(stack) == median)
    return {
        "pairs": len(stacks),
        "events": len(events),
        "pairs_without_python_frames": len(stacks) - len(depths),
        "python_frames": summary(depths),
        "example": [frame["name"] for frame in example],
    }


@contextlib.contextmanager
def busy_gil(switch_interval_s: float, core: int) -> Iterator[Callable[[], int]]:
    """Another thread computes, on this core; gives the clock of its CPU time."""
    over = False

    def compute() -> None:
        os.sched_setaffinity(0, {core})
        number = 0
        while not over:
            number += 1

    before = sys.getswitchinterval()
    sys.setswitchinterval(switch_interval_s)
    thread = threading.Thread(target=compute)
    thread.start()
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    yield lambda: time.clock_gettime_ns(clock)
    over = True
    thread.join()
    sys.setswitchinterval(before)


def worker(
    device: str, size: Size, events: int, switch_interval_s: float, configuration: str
) -> dict[str, dict[str, float]]:
    """Nanoseconds of a step by situation and clock, and what the configuration adds to them."""
    import torch

    # The busy thread has a core of its own, where there are two: else chance decides.
    *cores, last = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores or {last})
    step = training_step(device, size)
    synchronize = getattr(torch, device).synchronize

    @contextlib.contextmanager
    def situation(name: str) -> Iterator[Callable[[], dict[str, float]]]:
        """Gives what runs a block: nanoseconds of a step, by `name` and clock."""
        quiet = contextlib.nullcontext(lambda: 0)
        steps = size.steps if name == "quiet" else max(1, size.steps // BUSY_SHARE)
        with quiet if name == "quiet" else busy_gil(switch_interval_s, last) as busy_ns:

            def block() -> dict[str, float]:
                step()
                synchronize()
                wall, cpu = time.perf_counter_ns(), time.process_time_ns() - busy_ns()
                for _ in range(steps):
                    step()
                synchronize()
                spent = time.perf_counter_ns() - wall, time.process_time_ns() - busy_ns() - cpu
                return {
                    f"{name}, {clock}": spent_ns / steps
                    for clock, spent_ns in zip(CLOCKS, spent, strict=True)
                }

            yield block

    def nothing() -> None:
        pass

    start, stop = nothing, nothing
    if configuration != "off":
        start, stop = recorder(device, configuration, RING, STACK_DEPTH)
    gc.collect()
    gc.freeze()
    gc.disable()
    before: dict[str, list[dict[str, float]]] = {}
    attached: dict[str, list[dict[str, float]]] = {}
    turns: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = {}
    for name in SITUATIONS:
        with situation(name) as block:
            before[name] = [block() for _ in range(BLOCKS)]
    start()
    stop()
    for name in SITUATIONS:
        turns[name] = []
        with situation(name) as block:
            attached[name] = [block() for _ in range(BLOCKS)]
            for _ in range(0 if configuration == "off" else BLOCKS):
                start()
                for _ in range(RING // events + 1):
                    step()
                recording = block()
                stop()
                turns[name].append((recording, block()))

    def figures(name: str, clock: str) -> dict[str, float]:
        key = f"{name}, {clock}"
        off, idle = (
            statistics.median(each[key] for each in part[name]) for part in (before, attached)
        )
        differences = [recording[key] - without[key] for recording, without in turns[name]]
        return {
            "off_ns": off,
            "attached_ns": idle - off,
            "recording_ns": statistics.median(differences or [0]),
        }

    return {f"{name}, {clock}": figures(name, clock) for name in SITUATIONS for clock in CLOCKS}


def evaluate(
    results: dict[str, list[dict[str, dict[str, float]]]], situation: str, clock: str
) -> tuple[dict[str, float], dict[str, dict[str, dict[str, float]]]]:
    """A step without anything, and what each configuration adds: ns, per cent, ratio to native."""

    def every(figure: str, *configurations: str, where: str = situation) -> list[float]:
        key = f"{where}, {clock}"
        return [each[key][figure] for name in configurations for each in results[name]]

    off = summary(every("off_ns", *results))
    added = {
        name: every("attached_ns", *own) for name, own in (("off", ["off"]), ("attached", OURS))
    }
    # What it takes to be attached has nothing to do with the GIL, whose waits would drown it. Its
    # least and most go into the sums', since it is the less certain part.
    idle = summary(every("attached_ns", *OURS, where=SITUATIONS[0]))
    for name in OURS:
        more = summary(every("recording_ns", name))
        added[name] = [idle[key] + more[key] for key in ("median", "min", "max")]
    added |= {name: every("recording_ns", name) for name in NATIVE if name in results}
    found = {}
    for name, values in added.items():
        found[name] = {"added_ns": summary(values)}
        found[name]["percent"] = summary([100 * each / off["median"] for each in values])
        if BASE in results and name not in NATIVE:
            base = statistics.median(added[BASE])
            found[name]["of_native"] = summary([each / base for each in values])
    return off, found


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--size", choices=SIZES, help="of the model")
    own.add_argument(
        "--switch-interval", type=float, default=1e-4, help="seconds, with a busy GIL (0.0001)"
    )
    devices = ("cpu", "cuda", "npu")
    options = arguments(__doc__, "per_step_{device}.json", devices, rounds=3, parents=[own])
    device = options.device
    native = device != "cpu"
    size = options.size or ("gpt2" if native and not environment()["simulated"] else "small")
    step = in_own_process(__file__, "describe", device, size)
    run = ["off", *OURS, *(NATIVE if native else ())]
    results: dict[str, list[dict[str, dict[str, float]]]] = {each: [] for each in run}
    rounds = [each for _ in range(options.rounds) for each in run]
    for each in track(rounds, "measuring", console=Console(stderr=True)):
        given = device, size, step["events"], options.switch_interval, each
        results[each].append(in_own_process(__file__, "measure", *given))
    figures = []
    for situation in SITUATIONS:
        by_clock = {clock: evaluate(results, situation, clock) for clock in CLOCKS}
        (off, wall), (_, cpu) = by_clock.values()
        table = Table(
            title=f"A {size} step on {device}, {step['pairs']} pairs, {situation}: "
            f"{off['median'] / 1e6:.2f} ms, and added"
        )
        for column in ("", "µs", "%", "least .. most", "ratio", "% of CPU time"):
            table.add_column(column, justify="right" if column else "left")
        for configuration, added in wall.items():
            percent = added["percent"]
            table.add_row(
                configuration,
                f"{added['added_ns']['median'] / 1e3:+.0f}",
                f"{percent['median']:+.1f}",
                f"{percent['min']:+.1f} .. {percent['max']:+.1f}",
                f"{added['of_native']['median']:.2f}" if "of_native" in added else "",
                f"{cpu[configuration]['percent']['median']:+.1f}",
            )
        Console().print(table)
        for clock, (off, added) in by_clock.items():
            figures.append({"situation": situation, "clock": clock, "off_ns": off, "added": added})
    depth = step["python_frames"]
    print(
        f"a step has {step['events']} events; {step['pairs_without_python_frames']} of its pairs "
        f"have no Python frames, the others {depth['min']} to {depth['max']}"
    )
    settings = {"size": size, "switch_interval_s": options.switch_interval}
    save(options, {**settings, "step": step, "situations": figures})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        task, device, name, *more = sys.argv[2:]
        if task == "describe":
            print(json.dumps(describe(device, SIZES[name])))
        else:
            events, interval, configuration = more
            found = worker(device, SIZES[name], int(events), float(interval), configuration)
            print(json.dumps(found), flush=True)
            # After torch's recorder, Python's finalization aborts now and then (std::terminate).
            os._exit(0)
    else:
        main()
