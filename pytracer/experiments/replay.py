"""Replay the allocations and frees of a recording under other allocator settings.

The simulator answers the requests of the recording, on any machine. On request, the real allocator
of this machine's device answers them, in a new process for each setting.
"""

import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pytracer.analysis.requests import LEAVE, Recording, extract_recording
from pytracer.errors import ConfigError
from pytracer.experiments.comparison import Setting
from pytracer.experiments.real_replay import check_settings, replay_with_device
from pytracer.experiments.replay_curves import deviation_of, recorded_curve, recorded_setting
from pytracer.experiments.replay_result import Replay, Replayed
from pytracer.experiments.simulated_replay import replay_with_simulator
from pytracer.experiments.what_if import change_requests
from pytracer.reading.reader import load
from pytracer.settings import change as allocator_settings
from pytracer.text import number


def replay(
    path: str | os.PathLike[str],
    settings: Sequence[str],
    *,
    capacity_bytes: int | None = None,
    device: int | None = None,
    real: bool = False,
    without: Sequence[str] = (),
    scale: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda _: None,
) -> Replay:
    """Replay a snapshot under its own settings, and under each of the others.

    Args:
        path: A snapshot of pytracer or of torch's own recorder.
        settings: Changes to the recording's settings, such as `expandable_segments:True`.
        capacity_bytes: How much the allocator may reserve; None: as much as in the recording, if
            the file has that, else no limit (`real`: all free memory of the device here).
        device: The device's index in the file; None: the accelerator with most events.
        real: Whether the real allocator of this machine's device answers the requests, and not the
            simulator.
        without: Call sites and categories whose allocations are left out (see `change_requests`).
        scale: The same with a factor for their sizes, as in "model.py:12=0.5".
        on_progress: Called with each setting's name when its replay begins.

    Raises:
        PytracerError: The file cannot be replayed (see `extract_recording`), or the recording's own
            settings cannot be simulated. With `real`: this machine has no accelerator, or the
            accelerator has too little memory.
        ConfigError: The allocator refuses a setting, or `without` or `scale` match no allocation.
    """
    changes = _changes(settings)
    if capacity_bytes is not None and capacity_bytes <= 0:
        raise ConfigError(f"capacity_bytes={capacity_bytes}: give more than 0, or None")
    snapshot = load(os.fspath(path))
    recording = extract_recording(snapshot, device)
    full = [allocator_settings.merge_settings(recording.settings, change) for change in changes]
    changed, what_if = change_requests(snapshot, recording, without, scale)
    own = Setting(recording.own_name, recording.settings)
    others = [Setting(name, text) for name, text in zip(changes, full, strict=True)]
    if real:
        check_settings(changes, recording.settings)
    run = replay_with_device if real else replay_with_simulator
    done = run(recording, changed, [own, *others], capacity_bytes, on_progress)
    recorded, deviation = recorded_curve(recording), None
    if done.reference is not None and done.reference.curve is not None:
        deviation = deviation_of(recording, recorded, done.reference)
    notes = [*what_if, *_notes(recording, done.reference), *done.notes]
    if deviation is None:
        notes.append(f"The error bar of the replays is unknown: {done.why_unknown}.")
    return Replay(
        path=os.fspath(path),
        device=recording.name,
        is_simulated=not real,
        is_estimate=bool(what_if),
        recorded=recorded_setting(recording),
        recorded_curve=recorded,
        requests=len(changed.requests),
        older_blocks=recording.requests.older_blocks,
        older_freed=recording.requests.older_freed,
        capacity_bytes=done.limit_bytes,
        deviation=deviation,
        replayed=done.replayed,
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
