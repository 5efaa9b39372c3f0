"""Make pairs, each an allocation and its free, and measure what recording adds to them."""

import ctypes
import functools
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pytracer.backends.hook_compile import HookCompiler, compiler_flags
from pytracer.backends.running_torch import torch_build

SOURCE = Path(__file__).with_suffix(".cpp")
SIZE_BYTES = 1024


def raw_interface(device: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Return a function that allocates SIZE_BYTES and one that frees, neither with a Python frame.

    On the CPU the block is a tensor, which is freed when its last reference goes out of scope.
    """
    import torch

    if device == "cpu":
        return functools.partial(torch.empty, SIZE_BYTES, dtype=torch.uint8), id
    module = getattr(torch, device)
    module.init()
    if device == "cuda":
        native, prefix = torch._C, "_cuda_cudaCachingAllocator"
    else:
        import torch_npu

        native, prefix = torch_npu._C, "_npu_npuCachingAllocator"
    stream = getattr(module.current_stream(), f"{device}_stream")
    allocate = functools.partial(getattr(native, f"{prefix}_raw_alloc"), SIZE_BYTES, stream)
    return allocate, getattr(native, f"{prefix}_raw_delete")


def build(device: str, folder: Path) -> Path:
    """Compile pairs.cpp for the running torch, with the compiler and flags of the hooks."""
    torch = torch_build()
    library = folder / "pairs.so"
    compiler = HookCompiler()
    command = [*compiler.find_command(), *compiler_flags(device), "-std=c++20", "-pthread"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}", f"-DBENCH_{device.upper()}"]
    command += [f"-I{folder}" for folder in compiler.include_dirs(device)]
    command += [str(SOURCE), f"-L{torch.root / 'lib'}", "-lc10", "-o", str(library)]
    subprocess.run(command, check=True)
    return library


class Library:
    """The compiled library of pairs.cpp."""

    def __init__(self, path: str) -> None:
        import torch  # noqa: F401  # loads the libraries that this one is linked with

        self._functions = ctypes.CDLL(path)
        self._functions.pairs_in_threads.restype = ctypes.c_double

    def pairs_in_threads(self, devices: list[str], seconds: float) -> float:
        """Run one thread for each of `devices`; return the nanoseconds of a thread's pair."""
        names = (ctypes.c_char_p * len(devices))(*map(str.encode, devices))
        spent: float = self._functions.pairs_in_threads(
            names,
            ctypes.c_size_t(len(devices)),
            ctypes.c_size_t(SIZE_BYTES),
            ctypes.c_uint64(round(seconds * 1e9)),
        )
        return spent

    def attach_empty_tracker(self, device: str) -> None:
        """Attach the tracker that does nothing. It cannot be detached; call this once."""
        self._functions.attach_empty_tracker(device.encode())


class Case(NamedTuple):
    """A loop that returns the nanoseconds of its pairs, and the recorder that is added to it."""

    loop: Callable[[], float]
    start: Callable[[], object]
    stop: Callable[[], object]


def added(
    cases: list[Case], repeats: int, attaches: bool = True, records: bool = True
) -> list[dict[str, float]]:
    """Return the nanoseconds of a pair without and with recording, and their difference.

    Call this once in a process, because the first start attaches pytracer's hook, which stays
    attached. The added time therefore has two parts. The first part is how much longer the loops
    take after the first start and stop than before. The second part is the cost of recording from
    then on: the loop runs without and with recording in turn, and the median of the differences
    between neighbouring runs counts.

    Args:
        cases: The loops and their recorders.
        repeats: The number of runs of each loop in each part.
        attaches: Whether there is a first part. torch's own recorder is always attached.
        records: Whether there is a second part.
    """
    before: list[list[float]] = [[] for _ in cases]
    after: list[list[float]] = [[] for _ in cases]
    for times in (before, after):
        for turn in range(repeats * len(cases)):
            times[turn % len(cases)].append(cases[turn % len(cases)].loop())
        cases[0].start()
        cases[0].stop()
    results = []
    for case, without, attached in zip(cases, before, after, strict=True):
        differences, recorded = [], []
        for _ in range(repeats if records else 0):
            off = case.loop()
            case.start()
            case.loop()  # fills the ring and the stack table
            recorded.append(case.loop())
            differences.append(recorded[-1] - off)
            case.stop()
        off = statistics.median(without)
        more = statistics.median(differences or [0])
        if attaches:
            more += statistics.median(attached) - off
        results.append({"off_ns": off, "added_ns": more})
        if records:
            results[-1]["recorded_ns"] = statistics.median(recorded)
    return results
