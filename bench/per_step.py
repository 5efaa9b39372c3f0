"""Measure what pytracer and torch's own recorder add to a training step, also with a busy GIL.

The step is one of a GPT: forward under autocast (bfloat16), backward, AdamW. On simulated devices
kernels do nothing, so that the step is host time only: the worst case. On the CPU the kernels of a
model of the same small size compute in one thread, because several threads would wait for each
other and for the busy thread. On a real GPU the model has the size of GPT-2 (there is no busy GIL,
because such a step then waits for most of a second) unless `--size small` is given. A recording
counts the pairs of a step (an allocation and its free each) and the depths of their stacks; on an
accelerator, backward runs in a thread without Python frames. pytracer keeps its default of 32
frames; torch's recorder keeps all. Both have a ring of 10,000 events, which is full after a few
steps.

Each configuration runs in separate processes, in turn, first quiet and then with a busy GIL. A
process runs blocks of steps in three parts:

1. before anything is attached;
2. with pytracer's hook attached and recording off (the hook then stays attached);
3. with recording, into a full ring, and without it, in turn.

Recording adds the median of the differences between neighbouring blocks of part 3. "attached" is
part 2 relative to part 1, over all processes that have pytracer's hook. The figures of pytracer's
configurations include the median of the quiet "attached", so that all figures are relative to a
step without pytracer. "off" goes through the parts of "attached" without attaching anything, and
shows the noise. The garbage collector is off during the measurement, and earlier objects are
frozen. Each figure is the median and minimum .. maximum over the processes, with the ratio to the
median of "native python".

With a busy GIL, another thread, on its own core, runs a Python loop all the time. A step then waits
for the GIL many times, each time for the switch interval. With Python's default of 5 ms these waits
are most of the step, and their number is random, which hides all other effects. The benchmark
therefore uses 0.1 ms; `--switch-interval 0.005` measures the default. Two clocks are read: wall
time, which includes waiting for the GIL, and the process's CPU time without the busy thread, which
does not. On a real GPU, waiting for the device is CPU time too.

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
    in_turn,
    recorder,
    save,
    summary,
)
from rich.console import Console
from rich.table import Table


class Size(NamedTuple):
    """The sizes of the model and its batch, the steps before and in a block, and the blocks."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    batch: int
    warm_up: int
    steps: int
    blocks: int
    situations: tuple[str, ...]


SITUATIONS = ("quiet", "busy GIL")
SIZES = {
    "small": Size(8, 64, 4, 256, 16, 1, 100, 10, 12, SITUATIONS),
    "gpt2": Size(12, 768, 12, 50304, 1024, 4, 30, 10, 6, SITUATIONS[:1]),
}
RING, STACK_DEPTH = 10_000, 32
BUSY_SHARE = 2  # a block has fewer steps with a busy GIL, by this factor, as each takes far longer
CLOCKS = ("wall", "cpu")


def training_step(device: str, size: Size) -> Callable[[], None]:
    """Create a model and return the function that trains it for one step."""
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

    for _ in range(size.warm_up):
        step()
    return step


def describe(device: str, size: Size) -> dict[str, Any]:
    """Return a step's pairs and their Python depths, and a stack of the median depth."""
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
    """Let another thread compute on `core`; yield a function that returns its CPU time."""
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
    """Return the nanoseconds of a step by situation and clock, and what the configuration adds."""
    import torch

    # The busy thread gets its own core if there are two; otherwise the scheduling is random.
    *cores, last = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores or {last})
    step = training_step(device, size)
    synchronize = getattr(torch, device).synchronize

    @contextlib.contextmanager
    def situation(name: str) -> Iterator[Callable[[], dict[str, float]]]:
        """Yield a function that runs a block and returns a step's nanoseconds by name and clock."""
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
    for name in size.situations:
        with situation(name) as block:
            before[name] = [block() for _ in range(size.blocks)]
    start()
    stop()
    for name in size.situations:
        turns[name] = []
        with situation(name) as block:
            attached[name] = [block() for _ in range(size.blocks)]
            for _ in range(0 if configuration == "off" else size.blocks):
                start()
                for _ in range(RING // events + 1):
                    step()
                recording = block()
                stop()
                turns[name].append((recording, block()))

    def figures(name: str, clock: str) -> dict[str, float]:
        key = f"{name}, {clock}"
        off, idle = (
            statistics.median(block[key] for block in part[name]) for part in (before, attached)
        )
        differences = [recording[key] - without[key] for recording, without in turns[name]]
        return {
            "off_ns": off,
            "attached_ns": idle - off,
            "recording_ns": statistics.median(differences or [0]),
        }

    return {
        f"{name}, {clock}": figures(name, clock) for name in size.situations for clock in CLOCKS
    }


def evaluate(
    results: dict[str, list[dict[str, dict[str, float]]]], situation: str, clock: str
) -> tuple[dict[str, float], dict[str, dict[str, dict[str, float]]]]:
    """Return a step's ns without a recorder, and what each configuration adds (ns, %, ratio)."""

    def every(figure: str, *configurations: str, where: str = situation) -> list[float]:
        key = f"{where}, {clock}"
        return [result[key][figure] for name in configurations for result in results[name]]

    off = summary(every("off_ns", *results))
    added = {
        name: every("attached_ns", *own) for name, own in (("off", ["off"]), ("attached", OURS))
    }
    # The cost of being attached does not depend on the GIL, whose waits would hide it, so it is
    # taken from the quiet situation. The sums include its minimum and maximum, because it is the
    # less certain part.
    idle = summary(every("attached_ns", *OURS, where=SITUATIONS[0]))
    for name in OURS:
        more = summary(every("recording_ns", name))
        added[name] = [idle[key] + more[key] for key in ("median", "min", "max")]
    added |= {name: every("recording_ns", name) for name in NATIVE if name in results}
    found = {}
    for name, values in added.items():
        found[name] = {"added_ns": summary(values)}
        found[name]["percent"] = summary([100 * value / off["median"] for value in values])
        if BASE in results and name not in NATIVE:
            base = statistics.median(added[BASE])
            found[name]["of_native"] = summary([value / base for value in values])
    return off, found


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--size", choices=SIZES, help="the size of the model")
    own.add_argument(
        "--switch-interval",
        type=float,
        default=1e-4,
        help="the switch interval with a busy GIL, in seconds (0.0001)",
    )
    devices = ("cpu", "cuda", "npu")
    options = arguments(__doc__, "per_step_{device}.json", devices, rounds=3, parents=[own])
    device = options.device
    native = device != "cpu"
    size = options.size or ("gpt2" if native and not environment()["simulated"] else "small")
    step = in_own_process(__file__, "describe", device, size)
    run = ["off", *OURS, *(NATIVE if native else ())]
    given = "measure", device, size, step["events"], options.switch_interval
    results = in_turn(run * options.rounds, lambda name: in_own_process(__file__, *given, name))
    figures = []
    for situation in SIZES[size].situations:
        by_clock = {clock: evaluate(results, situation, clock) for clock in CLOCKS}
        (off, wall), (_, cpu) = by_clock.values()
        table = Table(
            title=f"A {size} step on {device}, {step['pairs']} pairs, {situation}: "
            f"{off['median'] / 1e6:.2f} ms, and the time added to it"
        )
        for column in ("", "µs", "%", "min .. max", "ratio", "% of CPU time"):
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
        f"A step has {step['events']} events. {step['pairs_without_python_frames']} of its pairs "
        f"have no Python frames, the others have {depth['min']} to {depth['max']}."
    )
    settings = {"size": size, "switch_interval_s": options.switch_interval}
    save(options, {**settings, "step": step, "situations": figures})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        task, device, name, *more = json.loads(sys.argv[2])
        if task == "describe":
            print(json.dumps(describe(device, SIZES[name])))
        else:
            found = worker(device, SIZES[name], *more)
            print(json.dumps(found), flush=True)
            # After torch's recorder, Python's finalization sometimes aborts (std::terminate).
            os._exit(0)
    else:
        main()
