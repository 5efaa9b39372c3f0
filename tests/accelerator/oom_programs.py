"""Programs that run out of memory for one known reason; see test_verdicts.py.

    python oom_programs.py cuda NAME... SEED...

The device has 4 GiB. For each name of a function, a line has "passed" or "failed"; for each seed, a
line has the number of the allocation that failed, or -1. With OUTPUT, each is recorded in a folder
of its name.
"""

import ctypes
import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import simulated
import torch

import pytracer

MIB = 1 << 20

backend = sys.argv[1]
device = f"{backend}:0"
api = getattr(torch, backend)


def make(mib: float) -> torch.Tensor:
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device=device)


@contextmanager
def taken_from_driver(mib: int) -> Iterator[None]:
    """Hold device memory as a library does, without torch."""
    make(1)  # initialises the device
    address = ctypes.c_void_p()
    size = ctypes.c_size_t(mib * MIB)
    if backend == "cuda":
        library = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}")
        allocate, free = library.cudaMalloc, library.cudaFree
    else:
        library = ctypes.CDLL("libascendcl.so")
        allocate, free = library.aclrtMalloc, library.aclrtFree
    assert allocate(ctypes.byref(address), size, 0) == 0  # cudaMalloc ignores the third argument
    try:
        yield
    finally:
        assert free(address) == 0


def pinned_segments(mib: int = 45) -> list[torch.Tensor]:
    """Leave 40 segments of 80 MiB, each with one block."""
    peak = [make(80) for _ in range(40)]
    del peak
    return [make(mib) for _ in range(40)]


def fragmented() -> None:
    held = pinned_segments()
    make(1500)
    del held


def nearly_fits() -> None:
    """Request as much as is free in all, but for 4 MiB."""
    held = pinned_segments()
    free, _ = api.mem_get_info(0)
    make(free // MIB + api.memory_reserved(0) // MIB - api.memory_allocated(0) // MIB - 4)
    del held


def too_large() -> None:
    held = [make(100) for _ in range(30)]
    make(2000)
    del held


def too_large_in_a_fragmented_device() -> None:
    held = pinned_segments()
    make(3000)
    del held


def library() -> None:
    with taken_from_driver(2560):
        held = make(1000)
        make(1000)
        del held


def small_library() -> None:
    """Let a library hold no more than a context does."""
    with taken_from_driver(700):
        held = [make(100) for _ in range(30)]
        make(500)
        del held


def neighbour() -> None:
    """Need SIMULATED_OTHERS_MB=2560."""
    held = make(1000)
    make(1000)
    del held


def limit() -> None:
    api.set_per_process_memory_fraction(0.25, 0)
    try:
        held = make(600)
        make(600)
        del held
    finally:
        api.set_per_process_memory_fraction(1.0, 0)


def other_stream() -> None:
    """Leave the free memory in the segments of another stream."""
    with api.stream(api.Stream(device=device)):
        held = pinned_segments()
    make(1500)
    del held


def other_pool() -> None:
    """Leave the free memory in a memory pool that the request cannot use."""
    pool = api.MemPool()
    with api.use_mem_pool(pool, device=0):
        held = pinned_segments()
    make(1500)
    del held


def pinned_pages() -> None:
    """Leave a block of 2 MiB in each 32 MiB of an expandable segment."""
    pairs = [(make(30), make(2)) for _ in range(110)]
    held = [kept for _, kept in pairs]
    del pairs
    make(2500)
    del held


def leaking() -> None:
    """Keep 60 MiB of each step."""
    train(batches_kept=10**6)


def not_leaking() -> None:
    """Keep 60 MiB of each of the last three steps, until a batch does not fit."""
    train(batches_kept=3, last_batch_mib=4000)


def train(batches_kept: int, last_batch_mib: int = 100) -> None:
    model = make(500)
    kept: list[torch.Tensor] = []
    for step in range(100):
        batch = make(last_batch_mib if step == 99 else 100)
        kept = [*kept, make(60)][-batches_kept:]
        del batch
        if tracer is not None:
            tracer.step()
    del model


def survived() -> None:
    """Continue after a fragmented device."""
    held = pinned_segments()
    with suppress(torch.OutOfMemoryError):
        make(1500)
    del held
    held = [make(5) for _ in range(3)]
    del held


def garbage() -> None:
    """Leave objects that refer to each other; with REMEDY, do what pytracer says."""
    gc.disable()
    for _ in range(35):
        attributes: dict[str, object] = {"kept": make(100)}
        attributes["me"] = attributes
        del attributes
    if "REMEDY" in os.environ:
        gc.collect()
    make(1500)


def retry() -> None:
    """Go on while the exception is handled; with REMEDY, as pytracer says."""
    try:
        attempt(100)
    except torch.OutOfMemoryError:
        if "REMEDY" not in os.environ:
            make(3000)
    make(3000)


def retry_in_pieces() -> None:
    """As `retry`, but what the failed attempt keeps lies between blocks that are used."""
    used: list[torch.Tensor] = []
    try:
        attempt(2000, used)
    except torch.OutOfMemoryError:
        if "REMEDY" not in os.environ:
            make(100)
    make(100)


def attempt(count: int, used: list[torch.Tensor] | None = None) -> None:
    kept = []
    for _ in range(count):
        kept.append(make(100 if used is None else 4))
        if used is not None:
            used.append(make(4))


def cached_pool() -> None:
    """Leave all of a memory pool free; with REMEDY, allocate in the same pool."""
    pool = api.MemPool()
    with api.use_mem_pool(pool, device=0):
        make(2000)
    with api.use_mem_pool(pool, device=0) if "REMEDY" in os.environ else nullcontext():
        held = make(1000)
        make(1500)
        del held


def workspaces_of_streams() -> None:
    """Train on one stream after the other, each with workspaces; with REMEDY, on the same one."""
    linear, stream = torch.nn.Linear(1024, 64, device=device), api.Stream()
    for _ in range(32):
        with api.stream(stream):
            linear(torch.ones(2048, 1024, device=device)).sum().backward()
        if "REMEDY" not in os.environ:
            stream = api.Stream()
    linear.zero_grad()
    held = make(2400)
    make(600)
    del held


def longest_batch() -> None:
    """Need far more in one step than in those before; with REMEDY, as much as in those."""
    for length in (8, 5, 9, 7, 9 if "REMEDY" in os.environ else 90):
        activations = [batch(length) for _ in range(12)]
        del activations
        if tracer is not None:
            tracer.step()


def batch(length: int) -> torch.Tensor:
    return make(5 * length)


def freed_too_late() -> None:
    """Need memory that a stream has used until now; with REMEDY, request it once more."""
    used = make(3000)
    del used
    kept, used = make(20), make(2900)
    used.record_stream(api.Stream(device=device))
    simulated.set_busy(True)
    try:
        del used
        with suppress(torch.OutOfMemoryError) if "REMEDY" in os.environ else nullcontext():
            make(1500)
        if "REMEDY" in os.environ:
            make(1500)
    finally:
        simulated.set_busy(False)
        del kept


def concatenated() -> None:
    """Replace a tensor by a longer one for each token; with REMEDY, write into one of full size."""
    tokens = 70
    if "REMEDY" in os.environ:
        kept = make(40 * tokens)
        for token in range(tokens):
            kept[token * 40 * MIB : (token + 1) * 40 * MIB].fill_(0)
        return
    kept = make(0)
    for _ in range(tokens):
        kept = torch.cat([kept, make(40)])


def streams_of_steps() -> None:
    """Make a stream for each step; with REMEDY, use the same ones."""
    streams = [api.Stream(device=device) for _ in range(8)]
    for step in range(8):
        with api.stream(streams[step % 2 if "REMEDY" in os.environ else step]):
            make(300)
        if tracer is not None:
            tracer.step()


def streams_in_turn() -> None:
    """Use one of 12 streams in each step, as torch hands out its 32 to those who make new ones."""
    streams = [api.Stream(device=device) for _ in range(12)]
    for step in range(30):
        with api.stream(streams[step % 12]):
            make(100)
        if tracer is not None:
            tracer.step()


def streams_of_calls() -> None:
    """Make a stream for each call, without steps; with REMEDY, three that work at the same time."""
    for _ in range(4):
        streams = [api.Stream(device=device) for _ in range(3)]
        kept = []
        for stream in streams:
            with api.stream(stream):
                block = make(100)
            if "REMEDY" in os.environ:
                kept.append(block)
            del block


def blocks_that_another_stream_uses() -> None:
    """Free blocks that a second stream uses; with REMEDY, after the first has waited for it."""
    other = api.Stream(device=device)
    for _ in range(8):
        for _ in range(3):
            block = make(100)
            with api.stream(other):
                block.add_(1)
            if "REMEDY" in os.environ:
                api.current_stream(device).wait_stream(other)
            else:
                block.record_stream(other)
            del block
        if tracer is not None:
            tracer.step()


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.widen, self.narrow = torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(torch.nn.functional.gelu(self.widen(x)))


class Deep(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = torch.nn.Linear(64, 1024)
        self.layers = torch.nn.ModuleList([Block() for _ in range(12)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.read(x)
        for layer in self.layers:
            x = layer(x)
        return x


def deep(steps: int, batch: int) -> None:
    """Train; with REMEDY, on the part of the batch that it names."""
    with torch.device(device):
        model = Deep()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(steps):
        rows = batch // int(os.environ.get("REMEDY", "1"))
        output = model(torch.ones(rows, 64, device=device))
        if steps > 1:
            output.sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def deep_forward() -> None:
    deep(1, 16_384)


def deep_training() -> None:
    deep(3, 16_384)


def first_step_of_an_optimizer() -> None:
    """Have parameters of 1.5 GiB, as many gradients, and no room for the states."""
    layers = [torch.nn.Linear(4096, 4096, bias=False, device=device) for _ in range(24)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for layer in layers:
        layer.weight.grad = torch.zeros_like(layer.weight)
    optimizer.step()


def first_step_of_a_second_optimizer() -> None:
    """Have an optimizer that has stepped, and no room for the states of another one, of 2 GiB."""
    small = torch.nn.Linear(64, 64, device=device)
    first = torch.optim.AdamW(small.parameters())
    for _ in range(3):
        small.weight.grad = torch.zeros_like(small.weight)
        first.step()
        first.zero_grad()
    first_step_of_an_optimizer()


def random_program(seed: int) -> int:
    """Allocate and free at random; return the number of the allocation that failed."""
    rng = random.Random(seed)
    mix = rng.choice(["large", "mixed", "pinning"])
    held: list[torch.Tensor] = []
    for number in range(20_000):
        if mix == "pinning" and number % 40 == 39:
            held = held[::2] if rng.random() < 0.7 else held[-3:]
        elif held and rng.random() < 0.4:
            held.pop(rng.randrange(len(held)))
        low, high = (20, 400) if mix == "large" else (0.05, rng.choice([30, 200, 600]))
        size = rng.uniform(low, high)
        try:
            held.append(make(size))
        except torch.OutOfMemoryError:
            return number
    return -1


tracer: pytracer.Tracer | None = None  # the tracer of the program that runs


def traced(name: str) -> Any:
    """Return a tracer that writes to OUTPUT/name, if there is one, else nothing."""
    if "OUTPUT" not in os.environ:
        return nullcontext()
    entries = int(os.environ.get("ENTRIES", "100000"))
    path = Path(os.environ["OUTPUT"]) / name
    return pytracer.Tracer(path, device=backend, trace_alloc_max_entries=entries)


def passes(program: Callable[[], None]) -> bool:
    try:
        program()
    except torch.OutOfMemoryError:
        return False
    return True


def main(name: str) -> None:
    global tracer
    with traced(name) as tracer:
        if name.isdecimal():
            result: object = random_program(int(name))
        else:
            result = "passed" if passes(globals()[name]) else "failed"
    print(name, result, flush=True)
    gc.collect()
    api.empty_cache()


if __name__ == "__main__":
    if os.environ.get("NO_NVML"):
        sys.modules["pynvml"] = None  # type: ignore[assignment]
    for argument in sys.argv[2:]:
        main(argument)
