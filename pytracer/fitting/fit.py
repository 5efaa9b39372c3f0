"""Will the next run fit? The peaks of a program at other sizes of its data, from recordings."""

import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytracer.analysis.answer import Answer
from pytracer.analysis.requests import extract_recording
from pytracer.errors import ConfigError
from pytracer.fitting.alignment import Recorded, StackNames, common_steps, recorded
from pytracer.fitting.answers import answer_of, notes_of
from pytracer.fitting.lines import grown
from pytracer.fitting.one_file import doubled, doubled_note, parts_of
from pytracer.fitting.prediction import LEAST, MOST, NO_LIMITS, Peak, Program, recorded_peak
from pytracer.fitting.results import (
    DOES_NOT_FIT,
    FITS,
    NO_DEVICE,
    OWN,
    UNKNOWN,
    CheckedFile,
    Failed,
    Fit,
    Largest,
    Prediction,
)
from pytracer.fitting.scaling import Scale, factors_of, scale_notes
from pytracer.fitting.sizes import (
    Sizes,
    are_independent,
    processes_of,
    sizes_of,
    targets_of,
    unlike_sizes,
    variables_of,
)
from pytracer.reading.reader import load
from pytracer.recommendation.search import Search
from pytracer.simulator.rules import AllocatorRules
from pytracer.simulator.simulate import (
    Limits,
    Simulated,
    own_rules,
    rules_under,
    simulate_recording,
    version_note,
)
from pytracer.variables import merge_settings

MOST_UNCERTAIN = 0.5
"""The largest distance of a bound from the peak, as a part of the peak, that is an answer."""

_MOST_VALUE = 2**30


@dataclass(frozen=True, eq=False)
class _Device:
    """The device of the next run: its memory, the part outside of the allocator, and the limits."""

    memory_bytes: int | None
    outside_bytes: int
    limits: Limits | None

    @property
    def room_bytes(self) -> int | None:
        if self.limits is None:
            return None
        found = (self.limits.fraction_bytes, self.limits.device_bytes)
        return next((each for each in found if each is not None), None)


def _device(base: Recorded, memory_bytes: int | None) -> _Device:
    """Return the device of the next run: it has the limits that the recorded one had."""
    recording = base.recording
    total_bytes = base.snapshot.metadata.device(recording.device).total_bytes
    memory_bytes = memory_bytes or total_bytes
    if memory_bytes is None:
        return _Device(None, 0, None)
    if recording.fraction_bytes is not None and total_bytes:
        share = recording.fraction_bytes / total_bytes
        return _Device(memory_bytes, 0, Limits(round(share * memory_bytes), None))
    outside_bytes = 0
    if total_bytes is not None and recording.limit_bytes is not None:
        outside_bytes = max(total_bytes - recording.limit_bytes, 0)
    return _Device(memory_bytes, outside_bytes, Limits(None, max(memory_bytes - outside_bytes, 0)))


class _Allocator:
    """A program's allocator under some settings."""

    def __init__(self, program: Program, device: _Device, name: str, settings: str) -> None:
        self.name = name
        self._program, self._device, self._settings = program, device, settings
        recording = program.base.recording
        is_own = name == OWN
        self.rules = own_rules(recording) if is_own else rules_under(settings, recording)

    def _limited(self, sizes: Sizes) -> tuple[bool, Failed | None]:
        """Return whether the program fits into the device, and the request that does not."""
        done: Simulated = self._program.simulate(
            sizes, self.rules, self._device.limits or NO_LIMITS
        )
        if done.failed_request is None:
            return done.ooms == 0, None
        base = self._program.base
        allocation = int(np.searchsorted(base.rows, done.failed_request))
        size_bytes = int(self._program.size_bytes(sizes)[allocation])
        return False, Failed(size_bytes, base.frame(allocation))

    def predicted(self, sizes: Sizes) -> Prediction:
        peaks = self._program.peaks(self._program.simulate(sizes, self.rules))
        fits, failed = None, None
        if self._device.limits is not None:
            fits, failed = self._limited(sizes)
        first, steady = peaks.get("first"), peaks.get("steady")
        return Prediction(sizes, self.name, peaks["all"], first, steady, fits, failed)

    def largest(self, target: Sizes, variable: str) -> Largest:
        """Return the largest value of a variable that fits, by bisection.

        It is searched below the first value whose blocks alone need more memory than there is: to
        add them up takes a tenth of the time of a simulation.
        """
        room_bytes, high = self._device.room_bytes or 0, target[variable]

        def is_too_large(value: int) -> bool:
            return self._program.held_bytes({**target, variable: value}) > room_bytes

        def limited(value: int) -> tuple[bool, Failed | None]:
            return self._limited({**target, variable: value})

        while not is_too_large(high):
            high *= 2
            if high > _MOST_VALUE and limited(high)[0]:
                return Largest(variable, self.name, None, None)
            if high > _MOST_VALUE:
                break
        high = bisect_left(range(1, high), True, key=is_too_large) + 1
        low, step = high - 1, max(high // 32, 1)
        while low > 0 and not limited(low)[0]:
            low, high, step = max(low - step, 0), low, 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if limited(middle)[0] else (low, middle)
        return Largest(variable, self.name, low, limited(high)[1])

    def smallest_device(self, target: Sizes) -> int | None:
        """Return the least memory for the allocator with which the target fits; None: none is."""
        has_fraction = self._device.limits and self._device.limits.fraction_bytes is not None
        search = Search(
            replace(self._program.at(target), settings=self._settings),
            Limits(1 << 50, None) if has_fraction else NO_LIMITS,
        )
        (found,) = search.with_smallest_device([search.own()])
        return found.smallest_device_bytes


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
        parts: dict[str, Recorded] = {}
        for file, own in zip(files, sizes, strict=True):
            parts |= parts_of(file, own)
        notes = [*scale_notes(scale)]
        if variable := _only_change(parts, targets):
            parts["twice"] = doubled(parts[files[0].path], variable)
            notes.append(doubled_note(variable))
        variables = variables_of({name: part.sizes for name, part in parts.items()}, targets)
        program = Program([*parts.values()], variables)
        if len(files) == 1:
            checked = [_repeated(files[0], parts, program)]
        else:
            checked = _checked([*parts.values()], program)
        if scale:
            program = program.scaled(factors_of(program.base, scale))
        found = _fit(program, checked, targets, settings, device_memory_bytes)
        fits[who] = replace(
            found,
            notes=[*notes, *found.notes],
            is_estimate=bool(notes),
            is_exact=found.is_exact and not notes,
        )
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
) -> Fit:
    recording = program.base.recording
    device = _device(program.base, memory_bytes)
    own = _Allocator(program, device, OWN, recording.settings)
    allocators = [own] + [
        _Allocator(program, device, change, merge_settings(recording.settings, change))
        for change in settings
    ]
    predictions = [each.predicted(sizes) for each in allocators for sizes in targets]
    target = predictions[len(targets) - 1]
    least, most = _bounds(program, own.rules, target, checked)
    unlike = unlike_sizes(program.recorded_sizes, program.variables, target.sizes)
    devices = {each.name: each.smallest_device(target.sizes) for each in allocators}
    limited = allocators if device.limits is not None else []
    variables = program.variables
    categories, lines = grown(program, target.sizes, own.rules)
    note = version_note(recording)
    return Fit(
        kind=_kind(device.room_bytes, target, least, most),
        device=recording.name,
        torch_version=recording.torch_version,
        device_memory_bytes=device.memory_bytes,
        outside_bytes=device.outside_bytes,
        requests=len(recording.requests),
        target=target,
        least=least,
        most=most,
        is_exact=least == most and not program.has_bounds and not unlike,
        smallest_device_bytes={name: size for name, size in devices.items() if size is not None},
        largest=[each.largest(target.sizes, name) for each in limited for name in variables],
        categories=categories,
        lines=lines,
        predictions=predictions,
        files=[*checked],
        is_estimate=False,
        unchecked=len(program.unchecked),
        unseen=len(program.unseen),
        varying=len(program.varying),
        notes=[*notes_of(program, checked), *unlike, *([] if note is None else [note])],
        process="",
        processes={},
        answer=Answer("unknown", "", "", []),
    )


def _only_change(parts: Mapping[str, Recorded], targets: Sequence[Sizes]) -> str | None:
    """Return the only variable in which targets differ from the only recording; else None."""
    file = next(iter(parts.values()))
    changed = [
        name for name in targets[0] if any(each[name] != file.sizes[name] for each in targets)
    ]
    return changed[0] if len(parts) == len(changed) == 1 and file.complete else None


def _repeated(file: Recorded, parts: Mapping[str, Recorded], program: Program) -> CheckedFile:
    """Compare a recording that serves alone with the simulation of its own requests."""
    sizes = next(iter(parts.values())).sizes
    done = simulate_recording(file.recording, own_rules(file.recording), NO_LIMITS, with_curve=True)
    return CheckedFile(file.path, sizes, recorded_peak(file), program.peaks(done)["all"], None, 0)


def _checked(files: Sequence[Recorded], program: Program) -> list[CheckedFile]:
    """Compare recordings with what is predicted for them.

    The largest recording that the others do not need is also predicted by the others alone.
    """

    def predicted(by: Program, file: Recorded) -> Peak:
        return by.peaks(by.simulate(file.sizes, own_rules(file.recording)))["all"]

    variables, foretold = program.variables, {}
    for file in sorted(files, key=lambda file: -np.prod([file.sizes[name] for name in variables])):
        others = [other for other in files if other is not file]
        if variables and are_independent([other.sizes for other in others], variables):
            foretold[file.path] = predicted(Program(others, variables), file)
            break
    return [
        CheckedFile(
            path=file.path,
            sizes=file.sizes,
            recorded=recorded_peak(file),
            predicted=predicted(program, file),
            foretold=foretold.get(file.path),
            unmatched=program.unmatched[file.path],
        )
        for file in files
    ]


def _bounds(
    program: Program, rules: AllocatorRules, target: Prediction, checked: Sequence[CheckedFile]
) -> tuple[Peak, Peak]:
    """Return the bounds of the target's peak: what is unknown of requests, and the deviations.

    Where sizes depend on values, so does what is reserved and not allocated: it may be none, and at
    most as much as in any of the simulations more than what is allocated.
    """
    peaks = [target.peak]
    if program.has_bounds:
        for which in (LEAST, MOST):
            done = program.simulate(target.sizes, rules, which=which)
            peaks.append(program.peaks(done)["all"])
    allocated = [peak.allocated_bytes for peak in peaks]
    reserved = [peak.reserved_bytes for peak in peaks]
    if len(program.varying):
        unused = max(two - one for one, two in zip(allocated, reserved, strict=True))
        reserved += [min(allocated), max(allocated) + unused]
    share = max(
        abs(getattr(one, name) / max(getattr(file.recorded, name), 1) - 1)
        for file in checked
        for one in (file.predicted, file.foretold or file.predicted)
        for name in ("allocated_bytes", "reserved_bytes")
    )
    least, most = (
        Peak(*(round(bound(column) * (1 + sign * share)) for column in (allocated, reserved)))
        for bound, sign in ((min, -1), (max, 1))
    )
    return least, most


def _kind(room_bytes: int | None, target: Prediction, least: Peak, most: Peak) -> str:
    reserved = target.peak.reserved_bytes
    if max(most.reserved_bytes - reserved, reserved - least.reserved_bytes) > (
        MOST_UNCERTAIN * reserved
    ):
        return UNKNOWN
    if room_bytes is None:
        return NO_DEVICE
    # What is reserved is more than what has to be.
    is_near = least != most and (
        most.allocated_bytes > room_bytes if target.fits else least.reserved_bytes <= room_bytes
    )
    if is_near:
        return UNKNOWN
    return FITS if target.fits else DOES_NOT_FIT
