"""The results of a prediction, and the answer to "will the next run fit?", in lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytracer.analysis.answer import Answer, Line
from pytracer.analysis.answer_words import CATEGORY_WORDS
from pytracer.analysis.frame_text import call_site_text
from pytracer.fitting.prediction import Peak, Program
from pytracer.fitting.sizes import Sizes, sizes_text
from pytracer.reading.snapshot import Frame
from pytracer.text import BriefRepr, number, size, size_range

FITS, DOES_NOT_FIT, UNKNOWN, NO_DEVICE = "fits", "does not fit", "can't tell", "no device"

OWN = "own settings"  # the name of the recording's own settings


@dataclass(frozen=True)
class CheckedFile:
    """A recording, and what is predicted for its own sizes.

    Attributes:
        path: The file.
        sizes: The sizes of the program's data in it; of several steps, those of the first.
        recorded: The peak in the recording.
        predicted: The peak that the simulation of the matched requests has at these sizes.
        foretold: The peak that the other recordings alone predict, of the largest recording that
            they do not need; else None.
        unmatched: How many allocations the largest recording does not have.
    """

    path: str
    sizes: Sizes
    recorded: Peak
    predicted: Peak
    foretold: Peak | None
    unmatched: int


@dataclass(frozen=True)
class Failed:
    """The request for which there is no memory: its bytes, and its call site if it is known."""

    size_bytes: int
    frame: Frame | None


@dataclass(frozen=True)
class Prediction:
    """The program at one choice of sizes, under one choice of settings.

    Attributes:
        sizes: The sizes of the program's data.
        settings: "own settings" of the recording, or those given, as given.
        peak: The peak of what was recorded of the program, without a limit of memory.
        first, steady: The peaks of the first step, with all that comes before it, and of the last
            complete step; None: the recordings do not have such a step.
        fits: Whether every request finds memory on the device; None: no device is known.
        failed: The first request that finds none; None: all do.
    """

    sizes: Sizes
    settings: str
    peak: Peak
    first: Peak | None
    steady: Peak | None
    fits: bool | None
    failed: Failed | None


@dataclass(frozen=True)
class Largest:
    """The largest value of a variable with which the program fits; the others are the target's.

    Attributes:
        variable: The name.
        settings: As in `Prediction`.
        value: The value; 0: not even 1 fits; None: no limit was found.
        failed: The request that finds no memory with the next value.
    """

    variable: str
    settings: str
    value: int | None
    failed: Failed | None


@dataclass(frozen=True)
class Grown:
    """Memory at the target's peak, and how it grows.

    Attributes:
        category: What the memory is for, as in "activation"; "" for one call site.
        frame: The call site; None for one category, or if it is unknown.
        size_bytes: The requested bytes at the peak.
        more_bytes: The additional bytes for each variable that is larger by one.
    """

    category: str
    frame: Frame | None
    size_bytes: int
    more_bytes: dict[str, int]


@dataclass(frozen=True, repr=False)
class Fit(BriefRepr):
    """What a program needs at other sizes of its data.

    Attributes:
        kind: "fits"; "does not fit"; "can't tell": the bounds are on both sides of the device's
            memory, or too far apart; "no device": the memory of the device is unknown.
        device: The device, as in "cuda:0".
        torch_version: The version of torch (of torch_npu on an NPU); None if unknown.
        device_memory_bytes: The memory of the device; None if unknown.
        outside_bytes: The part of it that the allocator does not get.
        requests: The number of simulated requests.
        target: The prediction for the target: the last sizes under the recording's own settings.
        least, most: The bounds of the target's peak; both are the peak itself if it is exact.
        is_exact: Whether a recording confirms how each request grows, and each recording is
            reproduced to the byte.
        smallest_device_bytes: By settings, the least memory for the allocator with which the target
            fits, to 2 MiB or 0.2 %; without settings that fit into no device.
        largest: The largest values that fit, of each variable under each setting.
        categories, lines: How memory grows, the largest first.
        predictions: All sizes that were asked for, under all settings.
        files: The recordings.
        is_estimate: Whether the growth or a change of the program is an estimate, which the first
            notes explain.
        unchecked, unseen, varying: How many allocations grow in a way that no recording confirms,
            of them are not in all recordings, and depend on values.
        notes: What makes the prediction inexact, in sentences.
        process: The process of the recordings, as in "rank3"; "" for files.
        processes: By process, the peak that is predicted for the target. This one is the worst.
        answer: The answer in lines.
    """

    kind: str
    device: str
    torch_version: str | None
    device_memory_bytes: int | None
    outside_bytes: int
    requests: int
    target: Prediction
    least: Peak
    most: Peak
    is_exact: bool
    smallest_device_bytes: dict[str, int]
    largest: list[Largest]
    categories: list[Grown]
    lines: list[Grown]
    predictions: list[Prediction]
    files: list[CheckedFile]
    is_estimate: bool
    unchecked: int
    unseen: int
    varying: int
    notes: list[str]
    process: str
    processes: dict[str, Peak]
    answer: Answer

    def __str__(self) -> str:
        """Return the answer as a terminal of 80 columns shows it."""
        return str(self.answer)


_LINES, _ROWS = 4, 6
"""The most call sites, and the most sizes of a table, that an answer shows; JSON has all."""

_LEAST_SHARE = 0.01
"""The least part of the memory at the peak that a category or a line is shown for."""

_VERDICTS = {FITS: "FITS", DOES_NOT_FIT: "DOES NOT FIT", UNKNOWN: "CAN'T TELL", NO_DEVICE: "PEAK"}


_DRY_RUN = "runs the program itself at this size, on a device that is not there"


def answer_of(found: Fit) -> Answer:
    """Return the answer in lines."""
    target = found.target
    room = f" in {size(found.device_memory_bytes)}" if found.device_memory_bytes else ""
    by = " BY ESTIMATE" if found.is_estimate else ""
    verdict = f"{_VERDICTS[found.kind]}{by}: {sizes_text(target.sizes)}{room}"
    kind = {DOES_NOT_FIT: "oom", FITS: "none"}.get(found.kind, "unknown")
    at = ",".join(f"{name}={value}" for name, value in target.sizes.items())
    where = f"{found.device}, {number(len(found.files), 'recording')}"
    lines = [
        *(*_peaks(found), *_certainty(found), *_room(found), *_growth(found), *_table(found)),
        *(Line("note", note) for note in found.notes),
        Line("more", f"pytracer fit --on DEVICE --at {at} -- PROGRAM", _DRY_RUN, is_command=True),
    ]
    return Answer(kind, verdict, where, lines)  # type: ignore[arg-type]


def _peaks(found: Fit) -> Iterator[Line]:
    target, least, most = found.target, found.least, found.most
    peaks = {" in the first step": target.first, " in a later step": target.steady}
    known = {where: peak for where, peak in peaks.items() if peak is not None}
    others = [peak.reserved_bytes for who, peak in found.processes.items() if who != found.process]
    if others:
        text = f"{found.process} needs most of {number(len(others) + 1, 'process', 'processes')}; "
        yield Line("process", f"{text}others reserve {size_range(min(others), max(others))}")
    for where, peak in (known or {"": target.peak}).items():
        yield Line("peak", f"{_peak(peak)}{where}")
    if least != most:
        bounds = [
            size_range(getattr(least, name), getattr(most, name))
            for name in ("allocated_bytes", "reserved_bytes")
        ]
        yield Line("bounds", f"{bounds[0]} allocated, {bounds[1]} reserved")
    elif found.unchecked and not found.is_estimate:
        yield Line("bounds", "none: however the requests of the note grow, the peaks are the same")


def _peak(peak: Peak) -> str:
    return f"{size(peak.allocated_bytes)} allocated, {size(peak.reserved_bytes)} reserved"


def _room(found: Fit) -> Iterator[Line]:
    own = found.target.settings
    if found.target.failed is not None:
        yield Line("asked", f"{_failed(found.target.failed)} finds no memory")
    for largest in found.largest:
        if largest.settings == own:
            about = "" if found.is_exact else "about "
            yield Line("largest", about + _largest(largest))
    if own in found.smallest_device_bytes:
        text = f"{size(found.smallest_device_bytes[own])} is the least for the allocator"
        note = ""
        if found.outside_bytes:
            note = f"{size(found.outside_bytes)} are outside of it, as in the recording"
        room = (found.device_memory_bytes or 0) - found.outside_bytes
        if found.target.fits and found.target.peak.reserved_bytes > room:
            text += ": the run fits because the allocator gives its cache back"
        yield Line("device", text, note)
    targets = [row for row in found.predictions if row.sizes == found.target.sizes]
    for row in targets[1:]:
        text = f"{row.settings}: {size(row.peak.reserved_bytes)} reserved"
        if row.settings in found.smallest_device_bytes:
            text += f", {size(found.smallest_device_bytes[row.settings])} is the least"
        for each in found.largest:
            if each.settings == row.settings and each.value is not None:
                text += f", largest {each.variable} {each.value:,}"
        yield Line("set", text)


def _largest(largest: Largest) -> str:
    if largest.value is None:
        return f"any {largest.variable} fits: the peak does not grow with it"
    following = f"{largest.variable}={largest.value + 1:,}"
    text = f"{largest.variable}={largest.value:,} fits" if largest.value else "none fits"
    if largest.failed is not None:
        text += f"; {following} does not: {_failed(largest.failed)}"
    return text


def _failed(failed: Failed) -> str:
    return f"{size(failed.size_bytes)} at {call_site_text(failed.frame)}"


def _growth(found: Fit) -> Iterator[Line]:
    total = sum(row.size_bytes for row in found.categories)
    for name in found.target.sizes:
        grows = [row for row in found.categories if row.more_bytes.get(name, 0) > 0]
        grows.sort(key=lambda row: -row.more_bytes[name])
        every = sum(row.more_bytes[name] for row in grows)
        if not grows:
            continue
        shown = [row for row in grows if row.more_bytes[name] >= _LEAST_SHARE * every][:_LINES]
        parts = [
            f"{CATEGORY_WORDS.get(row.category, row.category)} {size(row.more_bytes[name])}"
            for row in shown
        ]
        text = f"by {size(every)} for each further {name}: {' · '.join(parts)}"
        yield Line("grows", text)
    for row in found.lines[:_LINES]:
        if row.size_bytes >= _LEAST_SHARE * total:
            note = _more(row)
            yield Line("lines", call_site_text(row.frame), note, row.size_bytes, row.frame)


def _more(row: Grown) -> str:
    more = [f"+{size(each)} a {name}" for name, each in row.more_bytes.items() if each > 0]
    return ", ".join(more) or "constant"


def _table(found: Fit) -> Iterator[Line]:
    rows = [row for row in found.predictions if row.settings == found.target.settings]
    if len(rows) == 1:
        return
    chosen = {round(i * (len(rows) - 1) / (_ROWS - 1)) for i in range(_ROWS)}
    for i in sorted(chosen) if len(rows) > _ROWS else range(len(rows)):
        yield Line("sizes", _row(rows[i]))
    if len(rows) > _ROWS:
        yield Line("sizes", f"{len(rows):,} in all, which --json shows")


def _row(row: Prediction) -> str:
    fits = {True: ", fits", False: ", does not fit", None: ""}[row.fits]
    return f"{sizes_text(row.sizes)}: {_peak(row.peak)}{fits}"


def _certainty(found: Fit) -> Iterator[Line]:
    for file in found.files:
        if file.foretold is not None:
            text = f"{sizes_text(file.sizes)} is foretold by the other recordings "
            is_same = file.foretold == file.recorded
            text += "to the byte" if is_same else f"as {_peak(file.foretold)}"
            text += "" if is_same else f"; it had {_peak(file.recorded)}"
            yield Line("check", text)
    if found.is_exact and any(row.more_bytes for row in found.lines):
        text = f"how all {found.requests:,} requests grow is confirmed by a recording"
        yield Line("exact", text)


def notes_of(program: Program, files: Sequence[CheckedFile]) -> Iterator[str]:
    """Yield what makes a prediction inexact, in sentences."""
    if len(program.varying):
        where = call_site_text(program.base.frame(int(program.varying[0])))
        yield (
            f"The sizes of {number(len(program.varying), 'request')} depend on values: they are "
            f"others in each step, or no polynomial fits. The first is of {where}."
        )
    if unchecked := len(program.unchecked) - len(program.unseen):
        names = " or ".join(program.variables)
        yield (
            f"{number(unchecked, 'request')} may grow with another power of {names} than these "
            "recordings show: a recording at a further size shows it."
        )
    if len(program.unseen):
        yield (
            f"{number(len(program.unseen), 'request')} begin only above some size: they are not in "
            "all recordings, and their growth is uncertain. Record larger sizes."
        )
    for file in files:
        if file.unmatched:
            yield (
                f"{number(file.unmatched, 'request')} of {file.path} are not in the largest "
                "recording, and are left out."
            )
        elif file.predicted != file.recorded:
            yield (
                f"{file.path} is not reproduced: {size(file.predicted.reserved_bytes)} are "
                f"simulated and {size(file.recorded.reserved_bytes)} were reserved."
            )
