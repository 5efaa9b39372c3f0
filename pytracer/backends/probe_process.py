"""The trial of a hook in a child process, `pytracer.backends.hook_probe`.

A hook that does not fit the running torch crashes the child, where it harms nobody.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pytracer.backends.hook_compile import quoted
from pytracer.backends.hook_folders import PREBUILT_REMEDY
from pytracer.child_process import run_captured
from pytracer.errors import HookError

PROBE_SECONDS = 300.0

REFUSED = 3  # the exit code of the child if the hook cannot be attached; its last line says why
NOT_TRIED = 4  # the exit code if the device cannot be used, so that nothing is known of the hook
PASSED = "the hook passed its probe"
"""The end of the child's output. A library that calls `exit(0)` does not write it."""


def probe_in_child(
    backend: str, hook: Path, *, python: Sequence[str] = (), timeout_s: float = PROBE_SECONDS
) -> None:
    """Try a hook in a child process of this interpreter: attach it, allocate and free.

    Raises a HookError if the child died, failed or took too long.
    """
    failed = f"the hook for {backend!r} is not used: its trial in a child process"
    interpreter = python or [sys.executable or "python3"]
    # The child imports what this process would import, and not what its working directory has.
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    try:
        child = run_captured(
            [*interpreter, "-m", "pytracer.backends.hook_probe", backend, str(hook)],
            timeout_s,
            {**os.environ, "PYTHONPATH": path, "PYTRACER": "0"},
            "/",
        )
    except subprocess.TimeoutExpired as error:
        raise HookError(f"{failed} took longer than {timeout_s:g} s; {PREBUILT_REMEDY}") from error
    except OSError as error:
        raise HookError(f"{failed} could not start ({error}); {PREBUILT_REMEDY}") from error
    passed = child.returncode == 0 and child.stdout.strip().endswith(PASSED)
    if passed or child.returncode == NOT_TRIED:
        return
    last = (child.stderr.strip().splitlines() or ["it wrote no message"])[-1]
    if child.returncode == REFUSED:
        raise HookError(last)
    end = f"exited with code {child.returncode}"
    if child.returncode < 0:
        number = -child.returncode
        known = number in {*signal.Signals}
        end = f"died of {signal.Signals(number).name if known else f'signal {number}'}"
    raise HookError(
        f"{failed} {end} ({quoted(last)}); report this, with the output of `pytracer doctor`"
    )
