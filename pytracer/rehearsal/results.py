"""The result of a dry run, and its answer."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pytracer.analysis.answer import Answer, Answered, Line
from pytracer.experiments.run_files import RunFiles
from pytracer.rehearsal.models import MODELS
from pytracer.rehearsal.plan import Report, Value
from pytracer.text import number, size

_VALUES = 3  # the most lines that an answer names


@dataclass(frozen=True, repr=False)
class DryRun(Answered):
    """What a program needs on a device, by a run on a simulated one.

    Attributes:
        fits: Whether the program found memory for every request.
        device: The model of the device.
        world_size: The number of ranks.
        peak_allocated_bytes, peak_reserved_bytes: The highest usage of any rank that ran.
        device_bytes: The memory of the device.
        context_bytes: What of it was assumed to be taken outside of torch's allocator.
        flushes: How often the allocator gave back its cache to find memory, which is slow.
        is_least: Whether a real run of the same steps may need more: see `unknown` and `values`.
        unknown: What takes memory of a real device, and was not simulated.
        values: The lines that read values of the device, those that decide something first.
        steps: How many steps of an optimizer were made.
        seconds: How long the run took.
        paths: The recordings, which `pytracer show` reads.
        answer: The answer in lines.
    """

    fits: bool
    device: str
    world_size: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_bytes: int
    context_bytes: int
    flushes: int
    is_least: bool
    unknown: list[str]
    values: list[Value]
    steps: int
    seconds: float
    paths: list[str]
    answer: Answer


def answer_of(found: DryRun, report: Report, files: RunFiles) -> Answer:
    """Return the answer of a dry run whose answer is, so far, that of its recordings."""
    answer, where = found.answer, found.device
    last = [line for line in answer.lines if line.role in ("do", "more")]
    lines = [line for line in answer.lines if line not in last]
    if found.world_size > 1:
        where += f", {number(found.world_size, 'rank')}"
    if found.fits:
        reserved = found.peak_reserved_bytes
        verdict = (
            f"FITS  {'at least' if found.is_least else 'peak'} {size(found.peak_allocated_bytes)} "
            f"of {size(found.device_bytes)}, "
            f"reserved {size(reserved)} ({100 * reserved / found.device_bytes:.0f} %)"
        )
        kind = "none" if answer.kind == "oom" else answer.kind
        answer = replace(answer, kind=kind, verdict=verdict, where="")
        lines = [line for line in lines if line.role in ("held", "lines", "lost")]
        if ooms := files.numbers.get("ooms"):  # the other lines are of that moment
            last = [line for line in last if line.role == "more"]
            lines = [Line("why", f"memory ran out {number(ooms, 'time')}, and the program went on")]
        elif found.flushes:
            times = number(found.flushes, "time")
            lines.insert(0, Line("why", f"the cache was emptied {times} to find memory (slow)"))
    if report.stopped:
        steps = number(report.steps, "step")
        text = f"after {steps} of the optimizer; to run the rest, give --stop-after-steps 0"
        if report.stopped == "time":
            text = f"by the time limit, at {report.place}; a loop may wait for a value to change"
        lines.insert(0, Line("ended", text))
    deciding = [f"{value.place} {value.source}" for value in found.values if value.decides]
    if deciding:
        deciding.insert(0, "these lines depend on values from the device, which are 0 here:")
    if hidden := len(deciding[1 + _VALUES :]):
        deciding[1 + _VALUES :] = [f"and {number(hidden, 'more line')}"]
    lines += [Line("values", text) for text in deciding]
    lines += [Line("note", text) for text in _notes(found, report, files)]
    where = ", ".join(filter(None, (where, answer.where)))
    return replace(answer, where=where, lines=[*lines, *last])


def _notes(found: DryRun, report: Report, files: RunFiles) -> Iterator[str]:
    if report.unknown:
        yield f"not known without the device: {'; '.join(report.unknown)}"
    facts = [f"{name} {text}" for name, text in report.versions.items()]
    if capability := MODELS[found.device].compute_capability:
        facts.append(f"compute capability {capability / 10}")
    yield ", ".join(
        facts + (sorted(files.settings - {""}) or ["default settings of the allocator"])
    )
    yield f"assumed: {size(found.context_bytes)} outside of torch's allocator (--context-memory)"
    if report.unsaved:
        yield f"{number(report.unsaved, 'checkpoint')} not written (--allow-writes)"
