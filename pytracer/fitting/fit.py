"""Will the next run fit? An estimate of the peak at other sizes of the data, from recordings."""

import os
import shlex
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace

import numpy as np

from pytracer.analysis.answer import Answer
from pytracer.analysis.frame_text import is_users
from pytracer.analysis.requests import extract_recording
from pytracer.errors import ConfigError, PytracerError
from pytracer.fitting.program import Peak, Program, Recorded, recorded
from pytracer.fitting.results import (
    DOES_NOT_FIT,
    FITS,
    NO_DEVICE,
    UNKNOWN,
    Fit,
    Prediction,
    answer_of,
)
from pytracer.fitting.sizes import (
    Sizes,
    are_independent,
    parsed_file,
    sizes_of,
    sizes_text,
    targets_of,
    variables_of,
)
from pytracer.reading.reader import load
from pytracer.rehearsal.models import MODELS
from pytracer.simulator.simulate import limits_of, version_note
from pytracer.text import number, printable

_MARGIN, _FAR = 0.05, 4
"""The error that is assumed, and twice as much beyond this many times the largest recorded data.

Known errors count twice, because they grow with the distance from the recordings.
"""

_LEAST_SHARE = 0.01  # an error, or uncertain requests, below this share need no note

_SAME_MEMORY = 0.02  # drivers differ by about 1 % in the memory that they report

_MOST_VALUE = 2**30


def fit(
    *paths: str | os.PathLike[str],
    at: Mapping[str, int | Sequence[int]],
    device_memory_bytes: int | None = None,
    device: int | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Fit:
    """Estimate the memory of a program at other sizes of its data.

    Args:
        paths: Recordings of the program at different small sizes, each from the beginning. Their
            sizes are in their metadata, `Tracer(metadata={"batch": 2})`, or in their names, as in
            "snapshot.pickle@batch=2".
        at: The sizes to predict, as in {"batch": 16, "length": [1024, 4096]}. Of several, the last
            is the target.
        device_memory_bytes: The memory of the device; None: that of the recorded device.
        device: The device's index in the files; None: the accelerator with most events.
        on_progress: Called with what is being done.

    Returns:
        The estimate; its `answer` is what `pytracer fit` prints.

    Raises:
        ConfigError: A size is malformed or missing.
        PytracerError: A recording is not complete, the recordings are of different programs, or
            they do not show how the program grows with a variable.
    """
    targets = targets_of(at)
    if device_memory_bytes is not None and device_memory_bytes <= 0:
        raise ConfigError(f"device_memory_bytes={device_memory_bytes}: give more than 0, or None")
    named = [parsed_file(os.fspath(path)) for path in paths]
    if not named:
        raise ConfigError("give at least one recording")
    files: list[Recorded] = []
    numbers: dict[tuple[object, ...], int] = {}
    for path, given in named:
        if sum(path == other for other, _ in named) > 1:
            raise ConfigError(f"{path} is given twice: give recordings at different sizes")
        on_progress(f"Reading {path}")
        snapshot = load(path)
        sizes = sizes_of(snapshot, given, [*targets[0]])
        files.append(recorded(snapshot, extract_recording(snapshot, device), sizes, numbers))
    on_progress("Matching and simulating the requests")
    variables = variables_of([sizes for file in files for sizes in file.sizes], targets)
    program = Program(files, variables)
    for name in variables:
        recorded_most = max(program.points, key=lambda each: each[name])
        doubled = {**recorded_most, name: 2 * recorded_most[name]}
        if program.size_bytes(doubled).sum() <= program.size_bytes(recorded_most).sum():
            raise PytracerError(
                f"a larger {name} did not request more memory: check the sizes of the "
                "recordings, " + "; ".join(map(sizes_text, program.points))
            )
    pairs = [(each.peak(), program.peak(each.sizes[0])) for each in files if not each.varies]
    off = max((_error(*pair) for pair in pairs), default=0.0)
    check_error = _check_error(files, variables)
    most = {name: max(each[name] for each in program.points) for name in variables}
    times = float(np.prod([max(targets[-1][name] / most[name], 1) for name in most]))
    margin = max(_MARGIN, 2 * off, 2 * (check_error or 0)) * (2 if times > _FAR else 1)
    found = _estimated(program, targets, device_memory_bytes, margin)
    notes = [*_notes(program, targets[-1], off, times), version_note(program.base.recording)]
    found = replace(found, check_error=check_error, notes=[*filter(None, notes)])
    return replace(found, answer=answer_of(found))


def _check_error(files: Sequence[Recorded], variables: Sequence[str]) -> float | None:
    """Return the error of an estimate of the largest recording from the others, if they do."""
    for file in sorted(files, key=lambda file: -file.peak().allocated_bytes):
        others = [other for other in files if other is not file]
        sizes = [each for other in others for each in other.sizes]
        if variables and sizes and not file.varies and are_independent(sizes, variables):
            return _error(file.peak(), Program(others, variables).peak(file.sizes[0]))
    return None


def _error(recorded: Peak, estimated: Peak) -> float:
    """Return the larger error of the two peaks, as a share."""
    pairs = zip(astuple(recorded), astuple(estimated), strict=True)
    return float(max(abs(found / max(known, 1) - 1) for known, found in pairs))


def _notes(program: Program, target: Sizes, off: float, times: float) -> Iterator[str]:
    """Yield what makes an estimate uncertain: how far `off` it is at recorded sizes, and so on."""
    sizes = program.size_bytes(target)
    if times > _FAR:
        yield (
            f"This size is {times:.3g} times the largest recorded one, so its requests and their "
            "rounding may differ. Record larger sizes."
        )
    for chosen, text in (
        (program.missing, "Some recordings lack {}: the growth is uncertain."),
        (
            program.near,
            "No simple formula gives the sizes of {}: they depend on data or padding.",
        ),
    ):
        if sizes[chosen].sum() >= _LEAST_SHARE * sizes.sum():
            yield text.format(number(int(chosen.sum()), "request"))
    if off >= _LEAST_SHARE:
        yield f"At a recorded size, the estimate misses the recorded peak by {100 * off:.1f} %."


def _estimated(
    program: Program, targets: Sequence[Sizes], memory_bytes: int | None, margin: float
) -> Fit:
    base, recording, target = program.base, program.base.recording, targets[-1]
    total_bytes = base.snapshot.metadata.device(recording.device).total_bytes
    memory_bytes = room_bytes = memory_bytes or total_bytes
    # Other processes and the driver take as much as in the recording.
    if memory_bytes and total_bytes and recording.limit_bytes is not None:
        room_bytes = max(memory_bytes - max(total_bytes - recording.limit_bytes, 0), 0)
        if recording.fraction_bytes is not None:
            room_bytes = round(recording.fraction_bytes / total_bytes * memory_bytes)

    def runs(sizes: Sizes, share: float) -> bool:
        limits = limits_of(recording, round((room_bytes or 0) * share))
        return program.simulate(sizes, limits).ooms == 0

    def fits(sizes: Sizes) -> bool | None:
        if room_bytes is None:
            return None
        return runs(sizes, 1 / (1 + margin)) or (None if runs(sizes, 1 + margin) else False)

    def largest(name: str) -> int | None:
        def is_too_large(value: int) -> bool:
            return not runs({**target, name: value}, 1 / (1 + margin))

        high = target[name]
        while not is_too_large(high):
            if high >= _MOST_VALUE:
                return None
            high *= 2
        return bisect_left(range(1, high), True, key=is_too_large)

    def grows_by(name: str) -> int:
        step = max(target[name] // 8, 1)  # one more would show how the allocator rounds
        more = program.peak({**target, name: target[name] + step}).allocated_bytes
        return (more - program.peak(target).allocated_bytes) // step

    predictions = [Prediction(sizes, program.peak(sizes), fits(sizes)) for sizes in targets]
    kind = {True: FITS, False: DOES_NOT_FIT, None: UNKNOWN}[predictions[-1].fits]
    return Fit(
        kind=NO_DEVICE if room_bytes is None else kind,
        device=recording.name,
        device_memory_bytes=memory_bytes,
        room_bytes=room_bytes,
        target=predictions[-1],
        predictions=predictions,
        recorded=program.points,
        margin=margin,
        check_error=None,
        largest={name: largest(name) for name in program.variables} if room_bytes else {},
        more_bytes={name: grows_by(name) for name in program.variables},
        notes=[],
        command=_command(base, target, memory_bytes),
        answer=Answer("unknown", "", "", []),
    )


def _command(base: Recorded, target: Sizes, memory_bytes: int | None) -> str:
    """Return the command of a dry run of the recorded script, on a device with this memory."""
    stacks = [base.snapshot.stacks.frames(each) for each in np.unique(base.recording.trace.stack)]
    # A launcher may run the script, so the innermost module of a stack is asked for.
    scripts = (
        shlex.quote(printable(frame.filename))
        for frames in stacks
        for frame in frames
        if frame.name == "<module>" and frame.filename.endswith(".py") and is_users(frame)
    )
    near = [
        name
        for name, model in MODELS.items()
        if memory_bytes and abs(model.capacity_bytes / memory_bytes - 1) < _SAME_MEMORY
        if model.backend == base.recording.backend
    ]
    at = shlex.quote(",".join(f"{name}={value}" for name, value in target.items()))
    options = " ".join(f"--{name} {{{name}}}" for name in target)
    on, script = next(iter(near), "DEVICE"), next(scripts, "PROGRAM")
    return f"pytracer fit --on {on} --at {at} -- {script} {options}"
