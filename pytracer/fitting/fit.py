"""Will the next run fit? The peaks of a program at other sizes of its data, from recordings."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytracer.analysis.answer import Answer
from pytracer.analysis.call_sites import CallChains
from pytracer.analysis.requests import Recording, extract_recording
from pytracer.errors import ConfigError
from pytracer.fitting.alignment import Recorded, StackNames, common_steps, recorded
from pytracer.fitting.answers import answer_of, notes_of
from pytracer.fitting.lines import grown
from pytracer.fitting.prediction import NO_LIMITS, Peak, Program
from pytracer.fitting.results import (
    DOES_NOT_FIT,
    FITS,
    NO_DEVICE,
    UNKNOWN,
    CheckedFile,
    Failed,
    Fit,
    Largest,
    Prediction,
)
from pytracer.fitting.sizes import (
    Sizes,
    are_independent,
    parsed_file,
    sizes_of,
    targets_of,
    unlike_sizes,
    variables_of,
)
from pytracer.reading.reader import load
from pytracer.recommendation.search import Search
from pytracer.simulator.rules import AllocatorRules
from pytracer.simulator.simulate import Limits, Simulated, own_rules, rules_under, version_note
from pytracer.variables import merge_settings

OWN = "own settings"

MOST_UNCERTAIN = 0.5
"""The largest distance of a bound from the peak, as a part of the peak, that is an answer."""

_MOST_VALUE = 2**30


@dataclass(frozen=True, eq=False)
class _Question:
    """The program, and what it is asked about: the settings by name, and the limits of a device."""

    program: Program
    rules: dict[str, AllocatorRules]
    texts: dict[str, str]
    limits: Limits | None

    def failed(self, done: Simulated, sizes: Sizes) -> Failed | None:
        """Return the request of a simulation that found no memory."""
        if done.failed_request is None:
            return None
        base = self.program.base
        allocation = int(np.searchsorted(base.rows, done.failed_request))
        size_bytes = int(self.program.size_bytes(sizes)[allocation])
        return Failed(size_bytes, _frame(base, allocation))

    def predicted(self, sizes: Sizes, name: str) -> Prediction:
        """Predict the program at some sizes, under the settings of this name."""
        done = self.program.simulate(sizes, self.rules[name])
        peaks = self.program.peaks(done)
        fits, failed = None, None
        if self.limits is not None:
            limited = self.program.simulate(sizes, self.rules[name], self.limits, with_curve=False)
            fits, failed = limited.ooms == 0, self.failed(limited, sizes)
        peak = peaks.get("all", Peak(0, 0))
        return Prediction(sizes, name, peak, peaks.get("first"), peaks.get("steady"), fits, failed)

    def largest(self, target: Sizes, variable: str, name: str) -> Largest:
        """Return the largest value of a variable that fits, by bisection."""
        assert self.limits is not None
        limits = self.limits

        def run(value: int) -> Simulated:
            sizes = {**target, variable: value}
            return self.program.simulate(sizes, self.rules[name], limits, with_curve=False)

        low, high = 0, target[variable]
        while run(high).ooms == 0:
            low, high = high, 2 * high
            if high > _MOST_VALUE:
                return Largest(variable, name, None, None)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if run(middle).ooms else (middle, high)
        return Largest(variable, name, low, self.failed(run(high), {**target, variable: high}))

    def smallest_device(self, target: Sizes, name: str) -> int | None:
        """Return the least memory for the allocator with which the target fits."""
        recording = replace(self.program.requests_at(target), settings=self.texts[name])
        has_fraction = self.limits is not None and self.limits.fraction_bytes is not None
        search = Search(recording, Limits(1 << 50, None) if has_fraction else NO_LIMITS)
        (found,) = search.with_smallest_device([search.own()])
        return found.smallest_device_bytes


def fit(
    *paths: str | os.PathLike[str],
    at: Mapping[str, int | Sequence[int]],
    device_memory_bytes: int | None = None,
    settings: Sequence[str] = (),
    device: int | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Fit:
    """Predict the memory of a program at other sizes of its data.

    Args:
        paths: Recordings of the program at different small sizes, each from the beginning. Their
            sizes are in their metadata, `Tracer(metadata={"batch": 2})`, or in their names, as in
            "snapshot.pickle@batch=2".
        at: The sizes to predict, as in {"batch": 16, "length": [1024, 4096]}. Of several, the last
            is the target.
        device_memory_bytes: The memory of the device; None: that of the recorded device.
        settings: Changes of the recording's settings, as in "expandable_segments:True", which are
            simulated next to the recording's own.
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
    names, files = StackNames(), []
    for given in paths:
        path, sizes = parsed_file(os.fspath(given))
        on_progress(f"Reading {path}")
        snapshot = load(path)
        own = sizes_of(snapshot, sizes, [*targets[0]])
        files.append(recorded(snapshot, extract_recording(snapshot, device), own, names))
    if not files:
        raise ConfigError("give at least one recording")
    variables = variables_of({file.path: file.sizes for file in files}, targets)
    on_progress("Matching the requests")
    files = common_steps(files)
    program = Program(files, variables)
    own_recording = program.base.recording
    texts = {OWN: own_recording.settings}
    texts |= {change: merge_settings(texts[OWN], change) for change in settings}
    rules = {name: rules_under(text, own_recording) for name, text in texts.items()}
    rules[OWN] = own_rules(own_recording)
    total_bytes = program.base.snapshot.metadata.device(own_recording.device).total_bytes
    outside_bytes = _outside_bytes(own_recording, total_bytes)
    memory_bytes = device_memory_bytes or total_bytes
    limits = _limits(own_recording, total_bytes, memory_bytes, outside_bytes)
    question = _Question(program, rules, texts, limits)
    on_progress("Simulating")
    predictions = [question.predicted(sizes, name) for name in rules for sizes in targets]
    target = predictions[len(targets) - 1]
    checked = _checked(files, program, rules[OWN])
    least, most = _bounds(program, rules[OWN], target, checked)
    unlike = unlike_sizes([file.sizes for file in files], variables, target.sizes)
    is_exact = least == most == target.peak and not program.has_bounds and not unlike
    kind = _kind(question, target, least, most)
    on_progress("Searching the largest sizes")
    largest = [
        question.largest(target.sizes, variable, name)
        for name in rules
        for variable in (variables if limits is not None else ())
    ]
    devices = {name: question.smallest_device(target.sizes, name) for name in rules}
    categories, lines = grown(program, target.sizes, rules[OWN])
    varying = program.varying
    found = Fit(
        kind=kind,
        device=own_recording.name,
        torch_version=own_recording.torch_version,
        device_memory_bytes=memory_bytes,
        outside_bytes=outside_bytes,
        requests=len(program.requests_at(target.sizes).requests),
        target=target,
        least=least,
        most=most,
        is_exact=is_exact,
        smallest_device_bytes={name: size for name, size in devices.items() if size is not None},
        largest=largest,
        categories=categories,
        lines=lines,
        predictions=predictions,
        files=checked,
        unchecked=len(program.unchecked),
        unseen=len(program.unseen),
        varying=len(varying),
        varying_frame=_frame(program.base, int(varying[0])) if len(varying) else None,
        notes=[],
        answer=Answer("unknown", "", "", []),
    )
    notes = [*notes_of(found, variables), *unlike]
    if (note := version_note(own_recording)) is not None:
        notes.append(note)
    found = replace(found, notes=notes)
    return replace(found, answer=answer_of(found))


def _frame(file: Recorded, allocation: int):  # type: ignore[no-untyped-def]
    event = int(file.recording.requests.event[file.rows[allocation]])
    return CallChains(file.snapshot.stacks).site(int(file.recording.trace.stack[event]))


def _outside_bytes(recording: Recording, total_bytes: int | None) -> int:
    """Return the memory of the recorded device that other processes and the driver had."""
    if total_bytes is None or recording.limit_bytes is None or recording.fraction_bytes is not None:
        return 0
    return max(total_bytes - recording.limit_bytes, 0)


def _limits(
    recording: Recording, total_bytes: int | None, memory_bytes: int | None, outside_bytes: int
) -> Limits | None:
    """Return the limits on a device, of the kind that the recording had."""
    if memory_bytes is None:
        return None
    fraction_bytes = recording.fraction_bytes
    if fraction_bytes is not None and total_bytes:
        return Limits(round(fraction_bytes / total_bytes * memory_bytes), None)
    return Limits(None, max(memory_bytes - outside_bytes, 0))


def _checked(
    files: Sequence[Recorded], program: Program, rules: AllocatorRules
) -> list[CheckedFile]:
    """Compare recordings with what is predicted for them.

    The largest recording that the others do not need is also predicted by the others alone.
    """
    variables = program.variables
    left_out, foretold = None, None
    for file in sorted(files, key=lambda file: -_extent(file, variables)):
        others = [other for other in files if other is not file]
        sizes = [other.sizes for other in others]
        if len(others) > len(variables) and variables and are_independent(sizes, variables):
            left_out, alone = file, Program(others, variables)
            done = alone.simulate(file.sizes, own_rules(alone.base.recording))
            foretold = alone.peaks(done)["all"]
            break
    found = []
    for file in files:
        done = program.simulate(file.sizes, own_rules(file.recording))
        found.append(
            CheckedFile(
                file.path,
                file.sizes,
                program.recorded_peak(file),
                program.peaks(done)["all"],
                foretold if file is left_out else None,
                program.unmatched.get(file.path, 0),
            )
        )
    return found


def _extent(file: Recorded, variables: Sequence[str]) -> int:
    return int(np.prod([file.sizes[name] for name in variables]))


def _bounds(
    program: Program, rules: AllocatorRules, target: Prediction, checked: Sequence[CheckedFile]
) -> tuple[Peak, Peak]:
    """Return the bounds of the target's peak: what is unknown of requests, and the deviations.

    Where sizes vary, so does what is reserved and not allocated: it may be none, and at most as
    much as in any of the simulations more than what is allocated.
    """
    peaks = [target.peak]
    if program.has_bounds:
        for which in ("least", "most"):
            done = program.simulate(target.sizes, rules, which=which)
            peaks.append(program.peaks(done)["all"])
    allocated = [peak.allocated_bytes for peak in peaks]
    reserved = [peak.reserved_bytes for peak in peaks]
    if program.has_bounds:
        reserved += [
            min(allocated),
            max(allocated) + max(two - one for one, two in zip(allocated, reserved, strict=True)),
        ]
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


def _kind(question: _Question, target: Prediction, least: Peak, most: Peak) -> str:
    if (
        max(
            most.reserved_bytes / max(target.peak.reserved_bytes, 1) - 1,
            1 - least.reserved_bytes / max(target.peak.reserved_bytes, 1),
        )
        > MOST_UNCERTAIN
    ):
        return UNKNOWN
    if target.fits is None or question.limits is None:
        return NO_DEVICE
    room = question.limits.device_bytes or question.limits.fraction_bytes or 0
    if least != most:
        # The allocator needs at least what is allocated, and at most what it would like to reserve.
        if target.fits and most.allocated_bytes > room:
            return UNKNOWN
        if not target.fits and least.reserved_bytes <= room:
            return UNKNOWN
    return FITS if target.fits else DOES_NOT_FIT
