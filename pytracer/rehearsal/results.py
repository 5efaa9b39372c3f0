"""The result of a dry run, and its answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pytracer.analysis.answer import Answer, Line
from pytracer.analysis.answer_of_files import answer_of_files, answered_file
from pytracer.analysis.explanation import explain
from pytracer.experiments.run_files import RunFiles
from pytracer.reading.snapshot import Snapshot
from pytracer.rehearsal.models import MODELS
from pytracer.rehearsal.plan import Plan, Report, Value
from pytracer.simulator.trials import try_settings
from pytracer.text import BriefRepr, number, size

_VALUES = 3  # the most lines that an answer names


@dataclass(frozen=True, repr=False)
class DryRun(BriefRepr):
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

    def __str__(self) -> str:
        """Return the answer as a terminal of 80 columns shows it."""
        return str(self.answer)


def result_of(
    plan: Plan,
    files: RunFiles,
    snapshots: Sequence[Snapshot],
    report: Report,
    is_oom: bool,
    seconds: float,
) -> DryRun:
    """Return what a dry run found, from its recordings and what its processes said."""
    decides = any(value.decides for value in report.values)
    found = DryRun(
        fits=not is_oom,
        device=plan.device,
        world_size=report.world_size,
        peak_allocated_bytes=files.numbers["peak_allocated_bytes"],
        peak_reserved_bytes=files.numbers["peak_reserved_bytes"],
        device_bytes=plan.device_bytes,
        context_bytes=plan.context_bytes,
        flushes=files.numbers.get("retries", 0),
        is_least=decides or bool(report.unknown) or report.stopped == "time",
        unknown=report.unknown,
        values=sorted(report.values, key=lambda value: not value.decides),
        steps=report.steps,
        seconds=seconds,
        paths=[str(path) for path in files.paths],
        answer=_answer_of_files(snapshots),
    )
    return replace(found, answer=_answer(found, plan, report, files))


def _answer_of_files(snapshots: Sequence[Snapshot]) -> Answer:
    tried = try_settings if len(snapshots) == 1 else None
    return answer_of_files([answered_file(each, explain(each, None, tried)) for each in snapshots])


def _answer(found: DryRun, plan: Plan, report: Report, files: RunFiles) -> Answer:
    answer = found.answer
    last = [line for line in answer.lines if line.role in ("do", "more")]
    lines = [line for line in answer.lines if line not in last]
    where = found.device
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
        if files.numbers.get("ooms"):  # the other lines are of that moment
            last = [line for line in last if line.role == "more"]
            lines = []
        lines = [*_remarks(files), *(line for line in lines if line.role in _OF_A_FIT)]
    where = ", ".join(filter(None, (where, answer.where)))
    lines = [*_ended(report), *lines, *_values(found), *_notes(plan, report, files), *last]
    return replace(answer, where=where, lines=lines)


_OF_A_FIT = ("held", "lines", "lost")


def _remarks(files: RunFiles) -> Iterator[Line]:
    if ooms := files.numbers.get("ooms", 0):
        yield Line("why", f"memory ran out {number(ooms, 'time')}, and the program went on")
    elif flushes := files.numbers.get("retries", 0):
        times = number(flushes, "time")
        yield Line("why", f"the allocator gave back its cache {times} to find memory: slow")


def _ended(report: Report) -> Iterator[Line]:
    if report.stopped == "time":
        yield Line("ended", f"by the time limit, at {report.place}; it may wait for a value")
    elif report.stopped:
        steps = number(report.steps, "step")
        text = f"after {steps} of the optimizer; what follows runs with --stop-after-steps 0"
        yield Line("ended", text)


def _values(found: DryRun) -> Iterator[Line]:
    deciding = [value for value in found.values if value.decides]
    if deciding:
        yield Line("values", "these lines decide by what the device computes, which is 0 here:")
    for value in deciding[:_VALUES]:
        yield Line("values", f"{value.place} {value.source}")
    if len(deciding) > _VALUES:
        yield Line("values", f"and {number(len(deciding) - _VALUES, 'more line')}")


def _notes(plan: Plan, report: Report, files: RunFiles) -> Iterator[Line]:
    if report.warning:
        yield Line("note", report.warning)
    if report.unknown:
        yield Line("note", f"not known without the device: {'; '.join(report.unknown)}")
    facts = [f"{name} {text}" for name, text in report.versions.items()]
    if capability := MODELS[plan.device].capability:
        facts.append(f"compute capability {capability / 10}")
    facts += sorted(files.settings - {""}) or ["default settings of the allocator"]
    yield Line("note", ", ".join(facts))
    context = size(plan.context_bytes)
    yield Line("note", f"assumed: {context} outside of torch's allocator (--context-memory)")
    if plan.mask_part:
        yield Line(
            "note", f"assumed: {100 * plan.mask_part:g} % of each mask is true (--mask-part)"
        )
    if report.unsaved:
        yield Line("note", f"{number(report.unsaved, 'checkpoint')} not written (--allow-writes)")
