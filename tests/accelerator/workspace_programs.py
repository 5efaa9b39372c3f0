"""Programs whose blocks of the category "workspace" are compared with what torch itself frees.

    python workspace_programs.py NAME

Each is a process of its own, because torch reads the variables of cuBLAS once.
"""

import contextlib
import ctypes
import os
import pickle
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from amount import amount
from thread_failures import repeated
from torch.nn import functional

import pytracer
from pytracer import _core

Blocks = dict[int, dict[str, Any]]

MUTEX_OFFSET = 48
"""Where libstdc++ has the mutex of torch's `WorkspaceMapWithMutex`: behind a `std::map`."""


def multiply(device: str = "cuda") -> None:
    matrix = torch.ones(64, 64, device=device)
    torch.mm(matrix, matrix)


def multiply_in_a_thread() -> None:
    thread = threading.Thread(target=multiply)
    thread.start()
    thread.join()


def live_blocks(snapshot: dict[str, Any]) -> Blocks:
    return {
        block["address"]: block
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def workspaces(snapshot: dict[str, Any]) -> Blocks:
    blocks = live_blocks(snapshot).items()
    return {address: block for address, block in blocks if block["category"] == "workspace"}


def counts(tracer: pytracer.Tracer) -> list[int]:
    """Return the number of workspaces that live now, of each device."""
    groups = (group for held in tracer.who_holds("category") for group in held.groups)
    return [group.count for group in groups if group.category == "workspace"]


def clear() -> set[int]:
    """Have torch free its workspaces; return the addresses of the blocks that it freed."""
    before = live_blocks({"segments": torch.cuda.memory_snapshot()})
    torch._C._cuda_clearCublasWorkspaces()
    after = live_blocks({"segments": torch.cuda.memory_snapshot()})
    return before.keys() - after.keys()


def streams_threads_and_devices() -> None:
    multiply()  # older than the recording
    with pytracer.Tracer(device="cuda") as tracer:
        with torch.cuda.stream(torch.cuda.Stream()):
            multiply()
        multiply_in_a_thread()
        with torch.cuda.device(1):
            multiply("cuda:1")
        found, live = workspaces(tracer.snapshot()), counts(tracer)
        truth = clear()
        after, live_after = workspaces(tracer.snapshot()), counts(tracer)
    assert found.keys() == truth
    if os.environ["TORCH_CUBLAS_WORKSPACE_CACHE"] == "1":
        assert len(truth) == 4
        names = {(block["category_rule"], block["owner"]) for block in found.values()}
        assert names == {("cublas", "cuBLAS workspace")}
        assert live == [3, 1]
    assert not after
    assert not live_after


def cublas_and_cublaslt() -> None:
    matrix, row = torch.ones(64, 64, device="cuda"), torch.ones(64, device="cuda")
    with pytracer.Tracer(device="cuda") as tracer:
        multiply()
        functional.gelu(functional.linear(matrix, matrix, row))
        found = workspaces(tracer.snapshot())
        truth = clear()
    assert found.keys() == truth
    names = sorted(block["owner"] for block in found.values())
    assert names == ["cuBLAS workspace", "cuBLASLt workspace"]


def out_of_memory() -> None:
    """The file of an out-of-memory, which is written inside of the allocation, has them."""
    with pytracer.Tracer("files", device="cuda"):
        multiply()
        with contextlib.suppress(torch.OutOfMemoryError):
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        truth = clear()
    (path,) = Path("files").glob("oom_*/*.pickle")
    assert workspaces(pickle.loads(path.read_bytes())).keys() == truth


def nothing_is_made() -> None:
    with pytracer.Tracer(device="cuda") as tracer:
        kept = torch.ones(64, 64, device="cuda")
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        assert not workspaces(tracer.snapshot())
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
        assert not clear()
    del kept


def map_in_use() -> None:
    """While a thread changes torch's map, a snapshot is written at once, without workspaces."""
    map_of = ctypes.CDLL("libtorch_cuda.so")["_ZN2at4cuda33cublas_handle_stream_to_workspaceEv"]
    map_of.restype = ctypes.c_void_p
    mutex = ctypes.c_void_p(map_of() + MUTEX_OFFSET)
    locked, ended = threading.Event(), threading.Event()

    def hold() -> None:
        assert ctypes.CDLL(None).pthread_rwlock_wrlock(mutex) == 0
        locked.set()
        ended.wait()
        assert ctypes.CDLL(None).pthread_rwlock_unlock(mutex) == 0

    with pytracer.Tracer(device="cuda") as tracer:
        multiply()
        thread = threading.Thread(target=hold)
        thread.start()
        locked.wait()
        meanwhile = tracer.snapshot()
        ended.set()
        thread.join()
        later = tracer.snapshot()
    assert not workspaces(meanwhile)
    assert meanwhile["pytracer"]["tensors"]["unread"] == 1
    assert len(workspaces(later)) == 1
    assert later["pytracer"]["tensors"]["unread"] == 0


def hook_without_workspaces() -> None:
    """A hook that cannot read workspaces records all else."""
    torch.cuda.init()
    _core.attach_hook(sys.argv[2])
    with pytracer.Tracer(device="cuda") as tracer:
        model = torch.nn.Linear(64, 64, device="cuda")
        multiply()
        snapshot = tracer.snapshot()
        truth = clear()
    blocks = live_blocks(snapshot)
    assert {blocks[address]["category"] for address in truth} == {"unknown"}
    assert blocks[model.weight.data_ptr()]["category"] == "parameter"
    assert snapshot["pytracer"]["tensors"]["unread"] == 0


def changing_threads() -> None:
    """Threads make and free workspaces, with torch's recorder on, while snapshots are written."""
    torch.cuda.memory._record_memory_history(stacks="python", context="all")

    def on_a_stream() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            multiply()

    def clear_now_and_then() -> None:
        torch._C._cuda_clearCublasWorkspaces()
        time.sleep(0.2)  # longer than the owners are read, so that some workspaces live as long

    with pytracer.Tracer(device="cuda") as tracer:
        with repeated(on_a_stream, on_a_stream, clear_now_and_then):
            found = [len(workspaces(tracer.snapshot())) for _ in range(amount(12, 30))]
        multiply()
        last = workspaces(tracer.snapshot())
        truth = clear()
    assert any(found)
    assert last.keys() == truth


if __name__ == "__main__":
    globals()[sys.argv[1]]()
