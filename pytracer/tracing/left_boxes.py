"""Snapshots of killed processes of the same run, made when this process begins and when it ends.

So there is a file although nobody asks for one: torchrun's agent writes it, which ends after its
workers, or the process that is started in place of a killed one.
"""

import atexit
import os
import threading
import time
from pathlib import Path

from pytracer.boxes.restoring import left_in, restore
from pytracer.log import report_once, warn_once

_AT_START_S = 60.0  # beside the job
_AT_EXIT_S = 10.0
_MOST_OUTPUTS = 8

_threads: dict[Path, threading.Thread | None] = {}  # of this process, by the output
_pid: int | None = None


def look_after(output: Path) -> None:
    """Restore what processes with this output have left, now and at the end. Never raises."""
    global _pid
    try:
        if _pid != os.getpid():
            _pid = os.getpid()
            _threads.clear()
            atexit.register(_at_exit, _pid)
        if output in _threads or len(_threads) >= _MOST_OUTPUTS:
            return
        _threads[output] = None
        if any(left_in(output, also_below=False)):
            thread = threading.Thread(target=_restore, args=(output, _AT_START_S), daemon=True)
            _threads[output] = thread
            thread.start()
    except Exception as error:
        _warn(error)


def _restore(output: Path, within_s: float) -> None:
    try:
        for line in restore(output, within_s):
            report_once(line)
    except Exception as error:
        _warn(error)


def _at_exit(pid: int) -> None:
    if pid != os.getpid():
        return
    end = time.monotonic() + _AT_EXIT_S
    for output, thread in _threads.items():
        if thread is not None:
            thread.join(max(end - time.monotonic(), 0.0))
        _restore(output, end - time.monotonic())


def _warn(error: Exception) -> None:
    warn_once(f"what killed processes have left cannot be restored: {error!r}", "left boxes")
