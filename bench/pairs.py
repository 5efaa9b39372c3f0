"""How pairs are made, a block taken and given back each, and what recording adds to them."""

import ctypes
import functools
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pytracer import hook_compile

SOURCE = Path(__file__).with_suffix(".cpp")
SIZE_BYTES = 1024


def raw_interface(device: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """What takes a block of SIZE_BYTES and what gives it back, without Python frames of their own.

    Of the CPU: a tensor, which goes when nothing refers to it any more.
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
    """Compiles pairs.cpp for the running torch, as hooks are."""
    torch = hook_compile.running_torch()
    library = folder / "pairs.so"
    command = [*hook_compile.find_compiler(), *hook_compile.flags(device), "-std=c++20", "-pthread"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}", f"-DBENCH_{device.upper()}"]
    command += [f"-I{each}" for each in hook_compile.include_dirs(device)]
    command += [str(SOURCE), f"-L{torch.root / 'lib'}", "-lc10", "-o", str(library)]
    subprocess.run(command, check=True)
    return library


class Library:
    """pairs.cpp, compiled."""

    def __init__(self, path: str) -> None:
        import torch  # noqa: F401  # whose libraries it needs

        self._functions = ctypes.CDLL(path)
        self._functions.pairs_in_threads.restype = ctypes.c_double

    def pairs_in_threads(self, devices: list[str], seconds: float) -> float:
        """Nanoseconds of a thread's pair; one thread for each of `devices`."""
        names = (ctypes.c_char_p * len(devices))(*map(str.encode, devices))
        spent: float = self._functions.pairs_in_threads(
            names,
            ctypes.c_size_t(len(devices)),
            ctypes.c_size_t(SIZE_BYTES),
            ctypes.c_uint64(round(seconds * 1e9)),
        )
        return spent

    def attach_empty_tracker(self, device: str) -> None:
        """For good, and once."""
        self._functions.attach_empty_tracker(device.encode())


class Case(NamedTuple):
    """A loop, which returns the nanoseconds of its pairs, and what is to be added to it."""

    loop: Callable[[], float]
    start: Callable[[], object]
    stop: Callable[[], object]


def added(
    cases: list[Case], repeats: int, attaches: bool = True, records: bool = True
) -> list[dict[str, float]]:
    """Nanoseconds of a pair: without recording, with it, and what recording adds.

    To be called once in a process: our hook is attached at the first start, and that is for good.
    So there are two parts to what is added: what the loops take longer after the first start and
    stop than before; and what recording takes from then on, the median of the differences of
    neighbours, off and on by turns.

    Args:
        cases: What to run.
        repeats: How often each loop runs in each part.
        attaches: There is a first part. torch's own recorder is there all the time.
        records: There is a second part.
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
            case.loop()  # until the ring is full and the stacks are known
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
