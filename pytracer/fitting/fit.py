"""Will the next run fit? The peaks of a program at other sizes of its data, from recordings."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pytracer.analysis.answer import Answer
from pytracer.analysis.requests import extract_recording
from pytracer.errors import ConfigError
from pytracer.fitting.alignment import StackNames, common_steps, recorded
from pytracer.fitting.allocators import Allocator, device_of
from pytracer.fitting.certainty import bounds_of, checked_files, kind_of
from pytracer.fitting.lines import grown
from pytracer.fitting.one_file import shown_by
from pytracer.fitting.prediction import Program
from pytracer.fitting.results import OWN, CheckedFile, Fit, answer_of, notes_of
from pytracer.fitting.scaling import Scale, factors_of, scale_notes
from pytracer.fitting.sizes import (
    Sizes,
    processes_of,
    sizes_of,
    targets_of,
    unlike_sizes,
    variables_of,
)
from pytracer.reading.reader import load
from pytracer.simulator.simulate import version_note
from pytracer.variables import merge_settings


def fit(
    *paths: str | os.PathLike[str],
    at: Mapping[str, int | Sequence[int]],
    device_memory_bytes: int | None = None,
    settings: Sequence[str] = (),
    scale: Scale | None = None,
    device: int | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Fit:
    """Predict the memory of a program at other sizes of its data.

    Args:
        paths: Recordings of the program at different small sizes, each from the beginning. Their
            sizes are in their metadata, `Tracer(metadata={"batch": 2})`, or in their names, as in
            "snapshot.pickle@batch=2". Directories that have one recording of each rank are of all
            ranks; the prediction is that of the rank which needs most.
        at: The sizes to predict, as in {"batch": 16, "length": [1024, 4096]}. Of several, the last
            is the target.
        device_memory_bytes: The memory of the device; None: that of the recorded device.
        settings: Changes of the recording's settings, as in "expandable_segments:True", which are
            simulated next to the recording's own.
        scale: Factors of categories for an estimate of a changed program: {"optimizer_state": 0.25}
            for 8-bit states of Adam, {"parameter": 1 / 8, "gradient": 1 / 8} for shards of 8 ranks,
            0 for what is left out.
        device: The device's index in the files; None: the accelerator with most events.
        on_progress: Called with what is being done.

    Returns:
        The prediction; its `answer` is what `pytracer fit` prints.

    Raises:
        ConfigError: A size or a setting is malformed or missing.
        PytracerError: A recording is not complete, the recordings are of different programs, or
            they do not show how the program grows with a variable.
    """
    targets = targets_of(at)
    if device_memory_bytes is not None and device_memory_bytes <= 0:
        raise ConfigError(f"device_memory_bytes={device_memory_bytes}: give more than 0, or None")
    if isinstance(settings, str) or not all(change.strip() for change in settings):
        raise ConfigError(f"settings={settings!r}: give a list of settings such as NAME:VALUE")
    if not paths:
        raise ConfigError("give at least one recording")
    scale = dict(scale or {})
    processes = processes_of([os.fspath(path) for path in paths])
    fits = {}
    for who, named in processes.items():
        read = []
        for path, _ in named:
            on_progress(f"Reading {path}")
            snapshot = load(path)
            read.append((snapshot, extract_recording(snapshot, device)))
        sizes = sizes_of(read, [given for _, given in named], [*targets[0]])
        on_progress("Matching and simulating the requests")
        names = StackNames()
        files = common_steps([recorded(*each, names) for each in read])
        parts, estimates = shown_by(files, sizes, targets)
        variables = variables_of({name: part.sizes for name, part in parts.items()}, targets)
        program = Program([*parts.values()], variables)
        program.check_growth()
        checked = checked_files(files, [*parts.values()], program)
        if scale:
            program = program.scaled(factors_of(program.base, scale))
        estimates += scale_notes(scale)
        fits[who] = _fit(program, checked, targets, settings, device_memory_bytes, estimates)
    peaks = {who: each.target.peak for who, each in fits.items()}
    worst = max(peaks, key=lambda who: (fits[who].target.fits is False, peaks[who].reserved_bytes))
    found = replace(fits[worst], process=worst, processes=peaks)
    return replace(found, answer=answer_of(found))


def _fit(
    program: Program,
    checked: Sequence[CheckedFile],
    targets: Sequence[Sizes],
    settings: Sequence[str],
    memory_bytes: int | None,
    estimates: Sequence[str],
) -> Fit:
    recording = program.base.recording
    device = device_of(program.base, memory_bytes)
    own = Allocator(program, device, OWN, recording.settings)
    allocators = [own] + [
        Allocator(program, device, change, merge_settings(recording.settings, change))
        for change in settings
    ]
    predictions = [each.predicted(sizes) for each in allocators for sizes in targets]
    target = predictions[len(targets) - 1]
    least, most = bounds_of(program, own.rules, target, checked)
    unlike = unlike_sizes(program.recorded_sizes, program.variables, target.sizes)
    devices = {each.name: each.smallest_device(target.sizes) for each in allocators}
    limited = allocators if device.limits is not None else []
    variables = program.variables
    categories, lines = grown(program, target.sizes, own.rules)
    note = version_note(recording)
    return Fit(
        kind=kind_of(device.room_bytes, target, least, most),
        device=recording.name,
        torch_version=recording.torch_version,
        device_memory_bytes=device.memory_bytes,
        outside_bytes=device.outside_bytes,
        requests=len(recording.requests),
        target=target,
        least=least,
        most=most,
        is_exact=least == most and not (program.has_bounds or unlike or estimates),
        smallest_device_bytes={name: size for name, size in devices.items() if size is not None},
        largest=[each.largest(target.sizes, name) for each in limited for name in variables],
        categories=categories,
        lines=lines,
        predictions=predictions,
        files=[*checked],
        is_estimate=bool(estimates),
        unchecked=len(program.unchecked),
        unseen=len(program.unseen),
        varying=len(program.varying),
        notes=[*estimates, *notes_of(program, checked), *unlike, *([note] if note else [])],
        process="",
        processes={},
        answer=Answer("unknown", "", "", []),
    )
