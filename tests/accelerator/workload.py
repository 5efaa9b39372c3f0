"""Random allocator activity, for comparisons with PyTorch's own recorder.

The activity covers all events of the caching allocator: several devices, streams and threads,
delayed frees, memory pools, graph captures, expandable and other segments, memory that runs out
with and without a successful retry, labels, and Python stacks of many shapes. One seed gives one
sequence of events in every process, unless `concurrent` is set.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import simulated
import torch
from accelerator.parity_stacks import SHAPES, compiled_shape

KIB, MIB = 2**10, 2**20
MAX_LIVE = 150  # live blocks of a thread on a device
MAX_TURN = 60  # allocations and frees of one turn


class Workload:
    """Random activity, which each `run()` continues.

    Args:
        backend: "cuda" or "npu".
        seed: The seed of all random choices.
        expandable: Whether segments are expandable: "off", "on", or "toggled" at run time.
        delays: Whether blocks are used on other streams, which delays their frees.
        concurrent: Whether threads also run at the same time, not only one after the other.
        compiled: Whether torch.compile is used (CUDA).
    """

    def __init__(
        self,
        backend: str,
        seed: int,
        *,
        expandable: str = "off",
        delays: bool = True,
        concurrent: bool = False,
        compiled: bool = False,
    ) -> None:
        self._backend = backend
        self._torch = getattr(torch, backend)
        self._random = random.Random(seed)
        self._delays = delays
        self._devices = range(min(2, self._torch.device_count()))
        self._streams = [self._streams_of(device) for device in self._devices]
        self._threads = [ThreadPoolExecutor(1) for _ in range(3)]
        # Addresses and tensors, by thread (the main thread is last) and device.
        self._live: list[list[list[Any]]] = [[[] for _ in self._devices] for _ in range(4)]
        self._kept: list[Any] = []  # pools and graphs, with their blocks
        self._made = 0
        prefix = "_cuda_cudaCachingAllocator" if backend == "cuda" else "_npu_npuCachingAllocator"
        native = torch._C if backend == "cuda" else importlib.import_module("torch_npu._C")
        self._raw_alloc = getattr(native, f"{prefix}_raw_alloc")
        self._raw_delete = getattr(native, f"{prefix}_raw_delete")
        memory = self._torch.memory
        self._set_metadata = getattr(memory, "_set_memory_metadata", None)
        self._annotate = getattr(memory, "_annotate_tensor", None)
        self.expand(expandable == "on")
        self._actions: list[tuple[float, Callable[[random.Random, int], int]]] = [
            (100, self._turn),
            (2, self._pool),
            (1, self._capture),
            (1, self._empty_cache),
            (1, self._retry),
            (1, self._fail),
        ]
        self._first_actions = [function for _, function in self._actions]
        if concurrent:
            self._actions.append((30, self._burst_on_all_threads))
        if expandable == "toggled":
            self._actions.append((2, lambda rng, _: self.expand(rng.random() < 0.5)))
        if compiled:
            self._compiled = torch.compile(_compiled_alloc, backend="eager", dynamic=False)
            self._compiled(3, self._backend)  # the first call takes long
            self._actions.append((3, self._compile))

    def _streams_of(self, device: int) -> list[Any]:
        with self._torch.device(device):
            # The allocations of a process's first tensor do not belong to the activity.
            torch.empty(1, device=self._backend)
            return [self._torch.current_stream(), *(self._torch.Stream() for _ in range(3))]

    def run(self, events: int) -> None:
        """Continue for at least this number of events."""
        for function in self._first_actions:  # so that even a short run has all kinds of events
            for device in self._devices:
                with self._torch.device(device):
                    events -= function(random.Random(self._random.random()), device)
        self._first_actions = []
        weights = [weight for weight, _ in self._actions]
        functions = [function for _, function in self._actions]
        while events > 0:
            (function,) = self._random.choices(functions, weights)
            device = self._random.choice(self._devices)
            with self._torch.device(device):
                events -= function(random.Random(self._random.random()), device)

    def leave_pending(self) -> None:
        """Leave frees pending on each device."""
        for device in self._devices:
            with self._torch.device(device), self._delayed_frees(device, always=True):
                for size in (3000, 5 * MIB):
                    tensor = torch.empty(size, dtype=torch.uint8, device=self._backend)
                    tensor.record_stream(self._streams[device][-1])
                    del tensor
        if simulated.active():
            simulated.set_busy(True)

    def close(self) -> None:
        """Free everything."""
        if simulated.active():
            simulated.set_busy(False)
            simulated.set_capacity(16 << 30)
        for device in self._devices:
            self._torch.synchronize(device)
        for thread in self._live:
            for blocks in thread:
                while blocks:
                    self._free(blocks.pop())
        self._kept.clear()
        for thread in self._threads:
            thread.shutdown()
        self.expand(False)
        self._torch.empty_cache()

    def expand(self, on: bool) -> int:
        """Set whether new segments are expandable."""
        self._expands = on
        setting = f"expandable_segments:{on}"
        if self._backend == "cuda":
            torch._C._accelerator_setAllocatorSettings(setting)
        else:
            self._torch.memory._set_allocator_settings(setting)
        return 0

    # --- actions; each returns the least number of its events ---

    def _turn(self, rng: random.Random, device: int) -> int:
        """Allocate and free on one thread, which may be this thread."""
        thread = rng.randrange(4)
        if thread == 3:
            return self._burst(rng, device, thread)
        return self._threads[thread].submit(self._burst, rng, device, thread).result()

    def _burst_on_all_threads(self, rng: random.Random, device: int) -> int:
        """Allocate and free on all threads at the same time."""
        turns = [
            thread.submit(
                self._burst, random.Random(rng.random()), rng.choice(self._devices), number
            )
            for number, thread in enumerate(self._threads)
        ]
        return self._burst(rng, device, 3) + sum(turn.result() for turn in turns)

    def _burst(self, rng: random.Random, device: int, thread: int) -> int:
        blocks = self._live[thread][device]
        stream = rng.choice(self._streams[device])
        count, left = 0, rng.randrange(5, MAX_TURN)
        waits = self._delays and rng.random() < 0.3
        with ExitStack() as stack:
            stack.enter_context(self._torch.device(device))
            stack.enter_context(self._torch.stream(stream))
            if self._set_metadata is not None and rng.random() < 0.3:
                self._set_metadata(f"part {rng.randrange(20)}")
                stack.callback(self._set_metadata, "")
            if waits:
                stack.enter_context(self._delayed_frees(device))
            while left > 0:
                some = min(left, rng.randrange(1, 10))
                left -= some
                shape = rng.choice(SHAPES)
                if rng.random() < 0.05:
                    self._made += 1
                    shape = compiled_shape(self._made)
                count += shape(lambda some=some: self._churn(rng, blocks, device, stream, some))
        return count

    def _churn(
        self, rng: random.Random, blocks: list[Any], device: int, stream: Any, count: int
    ) -> int:
        events = 0
        for _ in range(count):
            if blocks and (len(blocks) > MAX_LIVE or rng.random() < 0.49):
                blocks[-1], blocks[place] = blocks[place := rng.randrange(len(blocks))], blocks[-1]
                events += self._free(blocks.pop())
                continue
            events += 1
            size = self._size(rng)
            kind = rng.random()
            if kind < 0.6:
                blocks.append(self._raw_alloc(size, getattr(stream, f"{self._backend}_stream")))
                continue
            tensor = torch.empty(size, dtype=torch.uint8, device=self._backend)
            if kind > 0.8 and self._delays:
                tensor.record_stream(rng.choice(self._streams[device]))
            if kind > 0.97 and self._annotate is not None:
                self._annotate(tensor, f"note {rng.randrange(10)}")
                events += 1
            blocks.append(tensor)
            del tensor
        return events

    def _size(self, rng: random.Random) -> int:
        kind = rng.random()
        if kind < 0.8:
            return rng.randrange(1, 64 * KIB)
        if kind < 0.97:
            return rng.randrange(64 * KIB, 2 * MIB)
        return rng.randrange(2 * MIB, 24 * MIB)

    def _free(self, block: Any) -> int:
        if isinstance(block, int):
            self._raw_delete(block)
            return 2
        return 1  # the caller drops the tensor; its free may be delayed

    @contextmanager
    def _delayed_frees(self, device: int, *, always: bool = False) -> Iterator[None]:
        """Delay the frees in this context that depend on the device's last stream."""
        if simulated.active():
            simulated.set_busy(True)
            try:
                yield
            finally:
                simulated.set_busy(False)
            return
        busy = self._streams[device][-1]
        with self._torch.stream(busy):
            if self._backend == "cuda":
                torch.cuda._sleep(2**32 if always else 2**22)
            else:
                matrix = torch.ones(4096, 4096, device=self._backend)
                for _ in range(200 if always else 5):
                    torch.mm(matrix, matrix)
        yield

    def _pool(self, rng: random.Random, device: int) -> int:
        """Allocate blocks in a new pool; some outlive its use."""
        if len(self._kept) > 4:
            self._kept.pop(rng.randrange(len(self._kept)))
        pool = self._torch.MemPool()
        with self._torch.use_mem_pool(pool):
            blocks = [self._tensor(rng) for _ in range(rng.randrange(1, 8))]
            del blocks[::2]
        self._kept.append((blocks, pool))  # in this order, because a pool must outlive its blocks
        return len(blocks)

    def _capture(self, rng: random.Random, device: int) -> int:
        """Allocate blocks during a graph capture."""
        if len(self._kept) > 4:
            self._kept.pop(rng.randrange(len(self._kept)))
        cuda = self._backend == "cuda"
        graph = torch.cuda.CUDAGraph() if cuda else self._torch.NPUGraph()
        with self._torch.graph(graph, stream=self._streams[device][1]):
            blocks = [self._tensor(rng) for _ in range(rng.randrange(1, 8))]
            blocks[0].zero_()  # torch warns of an empty graph
            if self._delays:
                blocks[-1].record_stream(self._streams[device][2])
            del blocks[1:]
        self._kept.append((blocks, graph))
        return len(blocks)

    def _tensor(self, rng: random.Random) -> torch.Tensor:
        """Allocate a block of a pool or a graph."""
        size = self._size(rng)
        if self._expands:
            # torch (2.12, 2.15) counts the memory that it maps for a pool, and fails an assertion
            # when this memory is unmapped in more parts than it was mapped. Memory mapped for small
            # blocks has only one part.
            size = min(size, 512 * KIB)
        return torch.empty(size, dtype=torch.uint8, device=self._backend)

    def _empty_cache(self, rng: random.Random, device: int) -> int:
        self._torch.empty_cache()
        return 0

    def _retry(self, rng: random.Random, device: int) -> int:
        """Allocate a block for which cached memory must be released."""
        self._torch.empty_cache()
        first, second = self._streams[device][:2]
        with self._torch.stream(first):
            torch.empty(256 * MIB, dtype=torch.uint8, device=self._backend)
        with self._limited_memory(device, rng.random() < 0.5), self._torch.stream(second):
            torch.empty(200 * MIB, dtype=torch.uint8, device=self._backend)
        return 4

    def _fail(self, rng: random.Random, device: int) -> int:
        """Fail to allocate a block."""
        with self._limited_memory(device, rng.random() < 0.5):
            try:
                torch.empty(6 << 30, dtype=torch.uint8, device=self._backend)
            except torch.OutOfMemoryError:
                return 1
        raise AssertionError("the device has more memory than its limit allows")

    @contextmanager
    def _limited_memory(self, device: int, in_driver: bool) -> Iterator[None]:
        """Limit a device to 16 MiB more than it has reserved, in torch or in the driver."""
        if in_driver and simulated.active():
            before = simulated.capacity(device)
            simulated.set_capacity(simulated.used_bytes(device) + 16 * MIB, device)
            try:
                yield
            finally:
                simulated.set_capacity(before, device)
            return
        allowed = self._torch.memory_reserved(device) + 16 * MIB
        total = self._torch.mem_get_info(device)[1]
        self._torch.set_per_process_memory_fraction(allowed / total, device)
        try:
            yield
        finally:
            self._torch.set_per_process_memory_fraction(1.0, device)

    def _compile(self, rng: random.Random, device: int) -> int:
        self._compiled(rng.choice((3, 5)) * 1000, self._backend)
        return 2


def _compiled_alloc(size: int, device: str) -> torch.Tensor:
    return torch.empty(size, device=device)
