"""What a dry run does within the program: it stops it, and reports what it was.

`prepare` is called at the start of each interpreter of a dry run, before torch is imported.
"""

import atexit
import contextlib
import json
import multiprocessing.util
import os
import sys
import threading
import time
from collections import Counter
from types import ModuleType
from typing import Any, NoReturn

from pytracer.activation import import_hook
from pytracer.rehearsal import choices, simulated, stand_ins, values
from pytracer.rehearsal import plan as plans

LIBRARIES = ("transformers", "accelerate", "peft", "trl", "lightning", "torchtitan", "diffusers")

_report = plans.Report()
_plan = plans.Plan(**json.loads(os.environ[plans.VARIABLE]))
_ooms_before_step = 0  # how often memory had run out at the last step of an optimizer


def prepare() -> None:
    """Prepare this process of a dry run."""
    import_hook.after_import("torch", _begin)
    stand_ins.prepare(_plan, _report)


def _begin(torch: ModuleType) -> None:
    """Watch the program from the end of torch's import on."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    values.watch(_report, choices.spread_evenly(torch, stand_ins.device_backend(), _report))
    stand_ins.replace_in_torch(torch, _plan, _report)
    counts: Counter[int] = Counter()

    def count(optimizer: Any, *_: Any) -> None:
        global _ooms_before_step
        if not stand_ins.is_on_default_stream(torch):
            return  # the program warms up for a graph, or captures one
        counts[id(optimizer)] += 1
        _report.steps = max(counts.values())
        _ooms_before_step = stand_ins.ooms(torch)
        # All of them, but for those that make fewer steps.
        if 0 < _plan.stop_after_steps in (min(counts.values()), _report.steps - 1):
            _stop("steps")

    register_optimizer_step_post_hook(count)
    atexit.register(_write)
    # Children of multiprocessing end without `atexit`.
    multiprocessing.util.register_after_fork(_report, _follow)
    _follow()
    threading.Thread(target=_end_in_time, daemon=True).start()


def _end_in_time() -> None:
    """End this process when its time is over, or its parent has been killed."""
    parent, end = os.getppid(), time.monotonic() + _plan.time_limit_s
    while os.getppid() == parent and time.monotonic() < end:
        time.sleep(0.5)
    main = threading.main_thread().ident or 0
    _report.place = values.place_of(sys._current_frames().get(main))
    _stop("time")


def _follow(_: object = None) -> None:
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _write, exitpriority=1)


def _write() -> None:
    """Write the report of a process that used a device."""
    torch = sys.modules["torch"]
    if not getattr(torch, stand_ins.device_backend()).is_initialized():
        return
    if _report.world_size == 1:  # the program made no process group
        _report.world_size = int(os.environ.get("WORLD_SIZE") or 1)
    used = [name for name in ("torch", *LIBRARIES) if name in sys.modules]
    _report.versions = {name: str(getattr(sys.modules[name], "__version__", "?")) for name in used}
    error = getattr(sys, "last_value", None)
    _report.is_other_error = error is not None and "out of memory" not in str(error).lower()
    _report.gave_up = stand_ins.ooms(torch) > _ooms_before_step
    if simulated.counter("unknown_workspaces"):
        _report.unknown.append("workspaces of cuDNN's convolutions and recurrent networks")
    _report.unknown += ["buffers of collective communication"] * (_report.world_size > 1)
    _report.unknown = [*dict.fromkeys(_report.unknown)]  # a child that is spawned writes twice
    with contextlib.suppress(OSError):
        _report.write(_plan.folder)


def _stop(why: str) -> NoReturn:
    """End this process: its snapshot is written, and no code of the program runs any more.

    What a program does at its end is left out: it would save and upload what it has not computed.
    """
    from pytracer.tracing import box, process

    _report.stopped = why
    with contextlib.suppress(Exception):
        process.finish()
        box.remove_unused()
    _write()
    process.end(0)
