"""Record the random activity of one seed in processes, each with other recorders.

    recorded_workload.py BACKEND OPTIONS

OPTIONS (JSON) are those of `record`. For each of its `recorders`, a process writes the files
RECORDERS-torch.pickle and RECORDERS-pytracer.pickle: "torch" (torch's recorder alone), "pytracer"
(pytracer alone) and "both" (where pytracer also takes a snapshot after each part). The output is a
line of JSON for each process: the allocator's peaks, and whether memory ran out, which ends the
activity.

The processes are forked from one that has not used the device, so the addresses of their streams
are equal too. torch frees blocks in the order of these addresses.
"""

import gc
import importlib
import json
import multiprocessing
import pickle
import sys
import warnings
from pathlib import Path

import simulated
import torch
from accelerator.workload import Workload
from contexts import with_context

from pytracer import Tracer


class Recordable(Workload):
    """Activity without the limits that change at run time, which a trace cannot express."""

    def _nothing(self, *_: object) -> int:
        return 0

    _retry = _fail = _nothing

    def expand(self, on: bool) -> int:  # the environment has the setting
        self._expands = True
        return 0


def record(
    recorders: str,
    backend: str,
    seed: int,
    events: int,
    *,
    parts: int = 1,
    late: int | None = None,  # events before the recording; None: nor what begins the activity
    context: str | None = "all",
    depth: int = 1,
    entries: int = 1 << 20,
    expandable: str = "",  # "": the environment's setting, and no limits that change
    delays: bool = False,
    pools: bool = True,
) -> None:
    module = getattr(torch, backend)
    module.init()
    tracer = Tracer(
        device=backend, stack_depth=depth, trace_alloc_max_entries=entries, max_oom_snapshots=0
    )

    def start() -> None:
        if recorders != "pytracer":
            module.memory._record_memory_history(
                "all", context=context, stacks="python", max_entries=entries
            )
        if recorders != "torch":
            with_context(tracer, context).start()

    if late is None:
        start()
    if not pools:
        Recordable._pool = Recordable._capture = Recordable._nothing  # type: ignore[method-assign]
    make = Workload if expandable else Recordable
    workload = make(backend, seed, expandable=expandable, delays=delays)
    if late is not None:
        workload.run(late)
        start()
    oom = False
    try:
        for _ in range(parts):
            workload.run(events // parts)
            if recorders == "both":
                tracer.snapshot()
    except torch.OutOfMemoryError:
        oom = True
    if expandable and simulated.active():
        workload.leave_pending()
    Path(f"{recorders}-torch.pickle").write_bytes(pickle.dumps(module.memory._snapshot()))
    if recorders != "torch":
        tracer.dump(f"{recorders}-pytracer.pickle")
    peaks = {key: value for key, value in module.memory_stats(0).items() if key.endswith("peak")}
    print(json.dumps({"oom": oom, **peaks}), flush=True)
    tracer.stop()
    workload.close()


def main(backend: str, options: str) -> int:
    gc.disable()
    warnings.simplefilter("ignore")
    if backend == "npu":
        importlib.import_module("torch_npu")
    given = json.loads(options)
    processes = [
        multiprocessing.get_context("fork").Process(
            target=record, args=(recorders, backend), kwargs=given
        )
        for recorders in given.pop("recorders")
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return sum(process.exitcode != 0 for process in processes)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
