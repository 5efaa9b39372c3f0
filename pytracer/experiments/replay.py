"""Replay the allocations and frees of a recording under other allocator settings.

The real allocator of this machine's device answers the requests of the recording, in a new process
for each setting.
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

from pytracer.analysis.requests import LEAVE, REQUEST_COLUMNS, Recording, extract_recording
from pytracer.child_process import last_exception, python_command
from pytracer.errors import ConfigError, PytracerError
from pytracer.experiments.comparison import Outcome, Setting
from pytracer.experiments.replay_curves import (
    deviation_of,
    peak_bytes_of,
    read_replay,
    recorded_curve,
    recorded_setting,
)
from pytracer.experiments.replay_result import Replay, Replayed
from pytracer.reading.reader import load
from pytracer.settings import change as allocator_settings
from pytracer.text import number, size

CHECKS_AT_ONCE = 4  # each check takes a process, and device memory

MAX_STREAMS = 65  # torch has 32 of each of two priorities, and the default stream

KEPT_VARIABLES = ("PYTRACER_HOOK_DIR", "PYTRACER_BUILD")


class NoRoomError(PytracerError):
    """The device has less memory than a replay may need."""


NO_ACCELERATOR = (
    "torch finds no accelerator on this machine: run the replay where there is one, because the "
    "real allocator of the device answers the requests"
)

OWN = "own settings"
"""The name of the recording's own settings."""


def replay(
    path: str | os.PathLike[str],
    settings: Sequence[str],
    *,
    capacity_bytes: int | None = None,
    device: int | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Replay:
    """Replay a snapshot under its own settings, and under each of the others.

    Args:
        path: A snapshot of pytracer or of torch's own recorder.
        settings: Changes to the recording's settings, such as `expandable_segments:True`.
        capacity_bytes: How much the allocator may reserve; None: as much as in the recording, if
            the file has that, else all free memory of the device here.
        device: The device's index in the file; None: the accelerator with most events.
        on_progress: Called with each setting's name when its replay begins.

    Raises:
        PytracerError: The file cannot be replayed (see `extract_recording`), or this machine has no
            accelerator, or the accelerator has too little memory.
        ConfigError: The allocator refuses a setting.
    """
    changes = _changes(settings)
    if capacity_bytes is not None and capacity_bytes <= 0:
        raise ConfigError(f"capacity_bytes={capacity_bytes}: give more than 0, or None")
    recording = extract_recording(load(os.fspath(path)), device)
    full = [allocator_settings.merge_settings(recording.settings, change) for change in changes]
    _check(changes, recording.settings)
    own = Setting(f"{OWN} ({recording.settings or 'defaults'})", recording.settings)
    others = [Setting(name, text) for name, text in zip(changes, full, strict=True)]

    def replay_under(setting: Setting, limit_bytes: int | None, needed_bytes: int) -> Replayed:
        on_progress(setting.name)
        return _replay_under(setting, recording, limit_bytes, needed_bytes)

    peak_bytes = peak_bytes_of(recording)
    reference: Replayed | None = None
    why_unknown = "the process of that replay failed"
    if capacity_bytes is None or capacity_bytes == recording.limit_bytes:
        limit_bytes = recording.limit_bytes
        replayed = [replay_under(setting, limit_bytes, peak_bytes) for setting in (own, *others)]
        reference = replayed[0]
    else:
        # A replay with another capacity than the recording's has no deviation from the recording,
        # so the error bar takes one more replay.
        limit_bytes = capacity_bytes
        try:
            reference = replay_under(
                Setting(own.name, own.settings), recording.limit_bytes, peak_bytes
            )
        except NoRoomError as error:
            why_unknown = str(error)
        replayed = [replay_under(setting, limit_bytes, limit_bytes) for setting in (own, *others)]
    recorded, deviation = recorded_curve(recording), None
    if reference is not None and reference.curve is not None:
        deviation = deviation_of(recording, recorded, reference)
    notes = list(_notes(recording, reference))
    if deviation is None:
        notes.append(f"The error bar of the replays is unknown: {why_unknown}.")
    free_bytes = min((result.free_bytes for result in replayed if result.free_bytes), default=None)
    if limit_bytes is not None and free_bytes is not None and free_bytes < limit_bytes:
        notes.append(
            f"The recording had {size(limit_bytes)}, but the device here has {size(free_bytes)} "
            "free, which is what the replays had."
        )
        limit_bytes = free_bytes
    return Replay(
        path=os.fspath(path),
        device=recording.name,
        recorded=recorded_setting(recording),
        recorded_curve=recorded,
        requests=len(recording.requests),
        older_blocks=recording.requests.older_blocks,
        older_freed=recording.requests.older_freed,
        capacity_bytes=limit_bytes,
        deviation=deviation,
        replayed=replayed,
        notes=notes,
    )


def _changes(settings: Sequence[str]) -> list[str]:
    if isinstance(settings, str):
        raise ConfigError(f"settings={settings!r}: give a list of the settings to compare")
    for text in settings:
        if not text.strip():
            raise ConfigError(
                'settings "": give NAME:VALUE; the recording\'s own settings are always replayed'
            )
        if text == "current":
            raise ConfigError(
                '"current": leave it out; the recording\'s own settings are always replayed'
            )
        if "per_process_memory_fraction" in text:
            raise ConfigError(f'"{text}": set the limit of a replay by its capacity instead')
    return list(dict.fromkeys(settings))


def _check(changes: Sequence[str], settings: str) -> None:
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


def _notes(recording: Recording, reference: Replayed | None) -> Iterator[str]:
    """Yield what makes the replays of a recording inexact, in sentences."""
    requests = recording.requests
    if requests.older_blocks:
        freed = ""
        if requests.older_freed:
            freed = f" The trace frees {requests.older_freed:,} of them."
        yield (
            f"{number(requests.older_blocks, 'block is', 'blocks are')} older than the trace. A "
            f"replay allocates these blocks first, in the order of their addresses.{freed}"
        )
    if not recording.starts_empty:
        yield (
            "What was cached before the trace, and how segments were split, is unknown: a replay "
            "starts with an empty cache."
        )
    if requests.pools > 1:
        yield (
            f"The recording has {number(requests.pools - 1, 'memory pool')} of graphs or MemPools "
            "next to the default one. A replay uses MemPools for all of them."
        )
    if recording.were_changed:
        yield (
            "The recording has expandable and other segments, so the setting was changed while the "
            "program ran. A replay has one setting throughout."
        )
    if requests.given_back:
        yield (
            f"Memory was given back {number(requests.given_back, 'time')} just before more was "
            "taken, and the limit of the recording is unknown. A replay takes this for calls of "
            "empty_cache(), and not for a lack of memory. Give --capacity if you know the limit."
        )
    if requests.streams > MAX_STREAMS:
        yield (
            f"The recording has {requests.streams} streams. A replay has {MAX_STREAMS}, so some of "
            "them are shared."
        )
    waiting = int(np.count_nonzero(requests.kind == LEAVE))
    if waiting:
        yield (
            f"{number(waiting, 'free')} waited for streams. In a replay they take effect at the "
            "same request as in the recording."
        )
    if reference is not None and reference.fitted:
        yield (
            f"{number(reference.fitted, 'allocation')} that failed in the recording succeeded in "
            "the replay under its own settings. The limit was not the size of the device, but "
            "perhaps a memory fraction or other processes. Give --capacity."
        )
    if reference is not None and reference.failed_event is not None:
        yield (
            "The replay under the recording's own settings ran out of memory where the recording "
            "did not."
        )
