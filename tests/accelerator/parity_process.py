"""The processes of test_parity_processes.py: the activity of a seed, thrice, for each recorder.

    parity_process.py BACKEND OPTIONS FOLDER

OPTIONS (JSON): seed, expandable, context, depth, events, parts. Writes to FOLDER, each of a process
of its own, the pickles `native` (PyTorch's recorder alone), `pytracer` (pytracer alone) and `both`
(where pytracer makes a snapshot after each part): PyTorch's snapshot and pytracer's.

The processes are forked from one that has not touched the device. So they agree about the addresses
of streams too, by which PyTorch orders what it frees.
"""

import gc
import importlib
import json
import multiprocessing
import pickle
import sys
from pathlib import Path
from typing import Any

import simulated
import torch
from accelerator.workload import Workload

ROOM = 1 << 20
RECORDERS = ("native", "pytracer", "both")


def record(recorders: str, backend: str, options: dict[str, Any], output: Path) -> None:
    memory = getattr(torch, backend).memory
    workload = Workload(
        backend,
        options["seed"],
        expandable=options["expandable"],
        # What a real device does in the meantime is not the same twice.
        delays=simulated.active(),
    )
    tracer = None
    if recorders != "pytracer":
        memory._record_memory_history(
            "all", context=options["context"], stacks="python", max_entries=ROOM
        )
    if recorders != "native":
        import pytracer

        tracer = pytracer.Tracer(
            device=backend,
            context=options["context"],
            stack_depth=options["depth"],
            trace_alloc_max_entries=ROOM,
        ).start()
    for _ in range(options["parts"]):
        workload.run(options["events"] // options["parts"])
        if tracer is not None and recorders == "both":
            tracer.snapshot()
    if simulated.active():
        workload.leave_pending()
    native = memory._snapshot()
    ours = tracer.snapshot() if tracer is not None else None
    output.write_bytes(pickle.dumps((native, ours)))
    if tracer is not None:
        tracer.stop()
    workload.close()


def main(backend: str, options: str, folder: str) -> int:
    gc.disable()
    if backend == "npu":
        importlib.import_module("torch_npu")
    fork = multiprocessing.get_context("fork")
    processes = [
        fork.Process(target=record, args=(each, backend, json.loads(options), Path(folder) / each))
        for each in RECORDERS
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return sum(process.exitcode != 0 for process in processes)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
