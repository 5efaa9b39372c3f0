"""The results of an estimate, and the answer to "will the next run fit?", in lines."""

from collections.abc import Iterator
from dataclasses import dataclass

from pytracer.analysis.answer import Answer, Answered, Line
from pytracer.fitting.program import Peak
from pytracer.fitting.sizes import Sizes, sizes_text
from pytracer.text import size

FITS, DOES_NOT_FIT, UNKNOWN, NO_DEVICE = "fits", "does not fit", "can't tell", "no device"


@dataclass(frozen=True)
class Prediction:
    """The program at one choice of sizes.

    Attributes:
        sizes: The sizes of the program's data.
        peak: The estimated peak of what was recorded, without a limit of memory.
        fits: Whether it fits on the device; None: the device's memory is within the margin, or
            unknown.
    """

    sizes: Sizes
    peak: Peak
    fits: bool | None


@dataclass(frozen=True, repr=False)
class Fit(Answered):
    """An estimate of what a program needs at other sizes of its data.

    Attributes:
        kind: "fits"; "does not fit"; "can't tell": the device's memory is within the margin; "no
            device": the memory of the device is unknown.
        device: The device, as in "cuda:0".
        device_memory_bytes: The memory of the device; None if unknown.
        room_bytes: What the allocator can get of it; None if unknown.
        target: The estimate for the last of the sizes.
        predictions: The estimates for all sizes.
        recorded: The sizes that were recorded, also of steps.
        margin: The error that is assumed, as a share: what fits does so if it needs as much more.
        check_error: The error of an estimate of the largest recording from the others, as a share;
            None: the others do not suffice.
        largest: The largest value of each variable that fits with the target's other sizes; 0: not
            even 1 fits; None: no limit was found.
        more_bytes: By how much the allocated peak grows if a variable is larger by one.
        notes: What makes the estimate uncertain, in sentences.
        command: The command that runs the program itself at the target, on a simulated device.
        answer: The answer in lines.
    """

    kind: str
    device: str
    device_memory_bytes: int | None
    room_bytes: int | None
    target: Prediction
    predictions: list[Prediction]
    recorded: list[Sizes]
    margin: float
    check_error: float | None
    largest: dict[str, int | None]
    more_bytes: dict[str, int]
    notes: list[str]
    command: str
    answer: Answer


_ROWS, _VALUES = 6, 3  # the most sizes of a table, and of a variable, that an answer shows


def answer_of(found: Fit) -> Answer:
    """Return the answer in lines."""
    room = f" of {size(found.device_memory_bytes)}" if found.device_memory_bytes else ""
    verdict = "" if found.kind == NO_DEVICE else f"{found.kind.upper()}: "
    verdict += f"about {size(found.target.peak.reserved_bytes)}{room}"
    columns = {name: sorted({each[name] for each in found.recorded}) for name in found.target.sizes}
    ranges = ", ".join(
        f"{name} {', '.join(f'{value:,}' for value in values)}"
        if len(values) <= _VALUES
        else f"{name} {values[0]:,} to {values[-1]:,}"
        for name, values in columns.items()
    )
    kinds = {DOES_NOT_FIT: "oom", FITS: "none"}
    return Answer(
        kinds.get(found.kind, "unknown"),  # type: ignore[arg-type]
        f"{verdict} at {sizes_text(found.target.sizes)}",
        f"estimate from {ranges}",
        [*_lines(found)],
    )


def _lines(found: Fit) -> Iterator[Line]:
    yield Line("peak", _peak(found.target.peak), found.device)
    if found.check_error is not None:
        check = "estimating the largest recording from the others"
        yield Line("check", f"{check} gives an error of {100 * found.check_error:.1f} %")
    for name, value in found.largest.items():
        spare = f"with {100 * found.margin:.0f} % to spare"
        text = f"about {name}={value:,} fits {spare}" if value else f"none fits {spare}"
        if value is None:
            text = f"any {name} fits: the peak does not grow with it"
        yield Line("largest", text)
    for name, more_bytes in found.more_bytes.items():
        yield Line("grows", f"by {size(more_bytes)} for each further {name}")
    rows = found.predictions if len(found.predictions) > 1 else []
    chosen = {round(i * (len(rows) - 1) / (_ROWS - 1)) for i in range(_ROWS)} if rows else set()
    for i in sorted(chosen):
        fits = {True: ", fits", False: ", does not fit", None: ""}[rows[i].fits]
        yield Line("sizes", f"{sizes_text(rows[i].sizes)}: {_peak(rows[i].peak)}{fits}")
    if len(rows) > len(chosen):
        yield Line("sizes", f"{len(rows):,} in all, which --json shows")
    yield from (Line("note", note) for note in found.notes)
    how = "runs the program itself at this size, on a simulated device"
    yield Line("do", found.command, how, is_command=True)


def _peak(peak: Peak) -> str:
    return f"{size(peak.allocated_bytes)} allocated, {size(peak.reserved_bytes)} reserved"
