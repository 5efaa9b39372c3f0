"""The largest size with which a program fits on a device, by dry runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytracer.analysis.answer import Answer, Answered, Line
from pytracer.errors import ConfigError, PytracerError
from pytracer.rehearsal.dry_run import dry_run, new_folder
from pytracer.rehearsal.results import DryRun
from pytracer.text import number, size

MOST = 2**20  # the largest size that is tried


@dataclass(frozen=True, repr=False)
class Largest(Answered):
    """The largest value of a variable with which a program fits.

    Attributes:
        variable: The name, as in "batch".
        value: The value; 0: not even 1 fits.
        without_flushes: The largest of the values tried with which the allocator never gave back
            its cache to find memory, which is slow.
        runs: The dry runs, by value.
        answer: The answer in lines.
    """

    variable: str
    value: int
    without_flushes: int
    runs: dict[int, DryRun]
    answer: Answer

    @property
    def run(self) -> DryRun:
        """The run with the largest value that fits, or else with 1."""
        return self.runs[self.value or 1]

    @property
    def fits(self) -> bool:
        """Whether any value fits."""
        return self.value > 0


def filled_in(command: Sequence[str], sizes: Mapping[str, int]) -> list[str]:
    """Return a command with the sizes in the place of their names: "{batch}".

    Raises:
        ConfigError: A name does not occur.
    """
    found = [*command]
    for name, value in sizes.items():
        place = f"{{{name}}}"
        if not any(place in part for part in command):
            raise ConfigError(f"the command has no {place}: put it where {name} belongs")
        found = [part.replace(place, str(value)) for part in found]
    return found


def largest(
    command: Sequence[str],
    variable: str,
    *,
    sizes: Mapping[str, int] | None = None,
    on_run: Callable[[Mapping[str, int], DryRun], object] = lambda *_: None,
    **options: Any,
) -> Largest:
    """Find the largest value that fits: values grow until one does not, then the gap is halved.

    Args:
        command: As `dry_run` takes it, with "{batch}" in the place of the variable "batch".
        variable: The variable.
        sizes: The values of other variables.
        on_run: Is called with the variable's values and their dry runs.
        options: As `dry_run` takes them.

    Raises:
        ConfigError: An argument is wrong.
        PytracerError: A program failed for another reason than memory.
    """
    runs: dict[int, DryRun] = {}
    folder = Path(options.pop("output", None) or new_folder())

    def fits(value: int) -> bool:
        filled = filled_in(command, {**(sizes or {}), variable: value})
        output = folder / f"{options.get('device', 'h100')}_{variable}_{value}"
        try:
            runs[value] = dry_run(filled, output=output, **options)
        except PytracerError as error:
            raise PytracerError(f"{variable}={value}: {error}") from error
        on_run({variable: value}, runs[value])
        return runs[value].fits

    low, high = (1, 0) if fits(1) else (0, 1)  # a `high` of 0 is unknown
    while low < MOST and high != low + 1:
        middle = _between(runs, low, high or min(7 * low, MOST + 1))
        low, high = (middle, high) if fits(middle) else (low, middle)
    calm = [value for value, run in runs.items() if run.fits and not run.flushes]
    found = Largest(variable, low, max(calm, default=0), runs, runs[low or 1].answer)
    return replace(found, answer=_answer(found))


def _between(runs: Mapping[int, DryRun], low: int, high: int) -> int:
    """Return what to try between a value that fits and one that does not, or is not known to.

    Small sizes may seem to need nothing, because the optimizer's states are larger.
    """
    guess = high
    fitting = sorted(value for value, run in runs.items() if run.fits)[-2:]
    if len(fitting) == 2:  # peaks grow evenly
        less, more = (runs[value].peak_allocated_bytes for value in fitting)
        last = runs[fitting[1]]
        room_bytes = (last.device_bytes - last.context_bytes - more) * (fitting[1] - fitting[0])
        guess = fitting[1] + room_bytes // (more - less) if more > less else high
    if guess >= high:
        return (low + high) // 2
    return guess if guess > low else low + max(1, (high - low) // 8)


def _answer(found: Largest) -> Answer:
    name, run = found.variable, found.run
    if not found.fits:
        return replace(run.answer, verdict=f"DOES NOT FIT: not even {name}=1")
    limit, lines = f"with {name}={found.value:,}, the largest that was tried", []
    if (above := found.runs.get(found.value + 1)) is not None:
        limit = f"up to {name}={found.value:,}"
        asked = next((line for line in above.answer.lines if line.role == "asked"), None)
        text = "" if asked is None else f": no memory for {asked.amount} at {asked.text}"
        lines.append(Line("largest", f"{name}={found.value + 1:,} does not fit{text}"))
    if found.without_flushes < found.value:
        calm = f"{name}={found.without_flushes:,} of those tried"
        lines.append(Line("largest", f"{calm}, if the cache is never released (releasing is slow)"))
    peaks = f"{size(run.peak_allocated_bytes)} allocated, {size(run.peak_reserved_bytes)} reserved"
    lines.append(Line("peak", f"{'at least ' * run.is_least}{peaks} with {name}={found.value:,}"))
    lines.append(Line("check", f"by {number(len(found.runs), 'dry run')}"))
    lines += [line for line in run.answer.lines if line.role != "why"]
    return replace(run.answer, verdict=f"FITS  {limit}", lines=lines)
