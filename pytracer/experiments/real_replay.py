"""Replay the requests of a recording with the real allocator of this machine's device.

A new process answers the requests for each setting.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from pytracer.analysis.requests import REQUEST_COLUMNS, Recording, Requests
from pytracer.child_process import last_exception, python_command
from pytracer.errors import PytracerError
from pytracer.experiments.comparison import Outcome, Setting
from pytracer.experiments.replay_curves import peak_bytes_of, read_replay
from pytracer.experiments.replay_result import Answers, Replayed
from pytracer.settings import change as allocator_settings
from pytracer.text import number, size

CHECKS_AT_ONCE = 4  # each check takes a process, and device memory

MAX_STREAMS = 65  # torch has 32 of each of two priorities, and the default stream

KEPT_VARIABLES = ("PYTRACER_HOOK_DIR", "PYTRACER_BUILD")


class NoRoomError(PytracerError):
    """The device has less memory than a replay may need."""


NO_ACCELERATOR = (
    "torch finds no accelerator on this machine: leave out --real to simulate the allocator, or "
    "replay where there is an accelerator, because its allocator answers the requests"
)


def replay_with_device(
    recording: Recording,
    changed: Recording,
    settings: Sequence[Setting],
    capacity_bytes: int | None,
    on_progress: Callable[[str], None],
) -> Answers:
    """Replay under each setting, the recording's own first, with the device of this machine.

    Args:
        recording: The recording.
        changed: The recording with the requests to replay.
        settings: The settings, to which the outcomes are added.
        capacity_bytes: How much the allocator may reserve; None: as much as in the recording.
        on_progress: Called with each setting's name when its replay begins.

    Raises:
        PytracerError: This machine has no accelerator, or it has too little memory.
    """

    def replay_under(
        setting: Setting, chosen: Recording, limit_bytes: int | None, needed_bytes: int
    ) -> Replayed:
        on_progress(setting.name)
        return _replay_under(setting, chosen, limit_bytes, needed_bytes)

    own, peak_bytes = settings[0], peak_bytes_of(recording)
    is_same = changed is recording and capacity_bytes in (None, recording.limit_bytes)
    reference: Replayed | None = None
    why_unknown = "the process of that replay failed"
    limit_bytes = recording.limit_bytes if capacity_bytes is None else capacity_bytes
    if not is_same:
        # A replay with another capacity than the recording's has no deviation from the recording,
        # so the error bar takes one more replay.
        again = Setting(own.name, own.settings)
        try:
            reference = replay_under(again, recording, recording.limit_bytes, peak_bytes)
        except NoRoomError as error:
            why_unknown = str(error)
    needed_bytes = peak_bytes if capacity_bytes is None or is_same else capacity_bytes
    replayed = [replay_under(setting, changed, limit_bytes, needed_bytes) for setting in settings]
    if is_same:
        reference = replayed[0]
    notes = list(_notes(recording.requests))
    free_bytes = min((result.free_bytes for result in replayed if result.free_bytes), default=None)
    if limit_bytes is not None and free_bytes is not None and free_bytes < limit_bytes:
        notes.append(
            f"The recording had {size(limit_bytes)}, but the device here has {size(free_bytes)} "
            "free, which is what the replays had."
        )
        limit_bytes = free_bytes
    return Answers(replayed, reference, limit_bytes, why_unknown, notes)


def check_settings(changes: Sequence[str], settings: str) -> None:
    """Have the allocator try all changes, so that a wrong one is an error before any replay."""
    with ThreadPoolExecutor(CHECKS_AT_ONCE) as pool:
        backends = pool.map(
            lambda change: allocator_settings.check_in_new_process(change, settings), changes
        )
        if None in backends:
            raise PytracerError(NO_ACCELERATOR)


def _replay_under(
    setting: Setting,
    recording: Recording,
    limit_bytes: int | None,
    needed_bytes: int,
) -> Replayed:
    """Replay a recording under one setting, in a new process."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTRACER") or name in KEPT_VARIABLES
    }
    environment |= allocator_settings.variables("", setting.settings)
    limit = "" if limit_bytes is None else str(limit_bytes)
    with tempfile.TemporaryDirectory(prefix="pytracer-replay-") as folder:
        columns = {name: getattr(recording.requests, name) for name in REQUEST_COLUMNS}
        np.savez(Path(folder, "requests.npz"), **columns)
        began = time.monotonic()
        process = subprocess.run(
            python_command("pytracer.experiments.replay_process", folder, limit, str(needed_bytes)),
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        wall_s = time.monotonic() - began
        if process.returncode != 0:
            reason = last_exception(process.stderr)
            failure = f"its process ended with exit code {process.returncode}: {reason}"
            setting.outcomes.append(Outcome(wall_s=wall_s, failure=failure))
            return Replayed(setting)
        answer = json.loads(Path(folder, "answer.json").read_text(encoding="utf-8"))
        _check_answer(answer, needed_bytes)
        return read_replay(setting, recording, Path(folder), answer, wall_s)


def _check_answer(answer: dict[str, Any], needed_bytes: int) -> None:
    """Raise an error if the process could not replay the requests."""
    if answer["backend"] is None:
        raise PytracerError(NO_ACCELERATOR)
    if needed_bytes > answer["free_bytes"]:
        raise NoRoomError(
            f"the device here has {size(answer['free_bytes'])} free, less than the "
            f"{size(needed_bytes)} that the replay may need: give a smaller --capacity, or use a "
            "larger device"
        )
    if answer["untraced"] is not None:
        raise PytracerError(f"the replay cannot be recorded here: {answer['untraced']}")


def _notes(requests: Requests) -> Iterator[str]:
    """Yield what makes a replay with a device differ from a recording, in sentences."""
    if requests.pools > 1:
        yield (
            f"The recording has {number(requests.pools - 1, 'memory pool')} of graphs or MemPools "
            "next to the default one. A replay uses MemPools for all of them."
        )
    if requests.streams > MAX_STREAMS:
        yield (
            f"The recording has {requests.streams} streams. A replay has {MAX_STREAMS}, so some of "
            "them are shared."
        )
