"""The results of the search for leaks, which `pytracer show --leaks` reports, and their words."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from pytracer.analysis.allocator_rules import MIN_BLOCK_BYTES
from pytracer.analysis.frame_text import call_site_text, is_users
from pytracer.analysis.holder_names import (
    LIKELY,
    bound_of,
    common_holder,
    is_garbage,
    kept_by_text,
    likely_remedy,
    look_at,
    main_holders,
    marked,
    tells_where,
)
from pytracer.reading.snapshot import Column, Frame
from pytracer.text import BriefRepr, number, size

Verdict = Literal["leak", "none", "unknown"]

_FAR = 1_000_000
"""A leak is harmless that takes all memory only after so many steps, longer than a training."""

LEAST_STEPS = 3
"""The number of steps from which a leak can be looked for in one file; 8 are needed to find one."""

OF_MODEL = "the model"
"""`kept_by` begins with it for parameters and buffers, as in "the model's adapters.[…].weight"."""

_GRADIENT = ".grad of the model"  # how `kept_by` ends for gradients that grow


def is_of_optimizer(name: str) -> bool:
    """Return whether a parameter has the name that its optimizer gives it, and no module's."""
    return re.match(r"\w+ group ", name) is not None


def gradient_of(parameter: str) -> str:
    """Return the text of a gradient that keeps memory."""
    return parameter + _GRADIENT


@dataclass(frozen=True)
class Growth:
    """Memory of one call site that grew and was not released.

    Attributes:
        verdict: "leak", or "unknown" if the growth is not certainly a leak.
        reason: Why the verdict is "unknown"; "" for a leak.
        kind: "kept" if the blocks themselves stay, as in a list that grows; "replaced" if each
            block is replaced by a larger one, as with `torch.cat`.
        frames: The call site and its callers in the program, innermost first, as far as all blocks
            share them; [] if the stacks are unknown.
        phase: The phase in which all blocks were allocated, "" if some have none; None if they
            have several, or if it is unknown.
        bytes_per_step: The growth per step (Theil-Sen estimate). Without steps: per second, or
            per file; see `unit` of the device.
        least_bytes_per_step, most_bytes_per_step: The 95% confidence interval of the growth.
        growths: The number of observed steps in which the memory grew.
        period_steps: The median number of steps from one growth to the next.
        first_step: The step of the first growth in the file; None without steps.
        is_older: Whether the growth began before the first event of the file.
        held_bytes: The bytes that these blocks held at the end of the last step.
        blocks: The number of these blocks.
        kept_by: The Python object that keeps at least half of these bytes, as the `holder` of
            `Group`, or `OF_MODEL`; None if there is none, or if it is unknown.
        kept_bytes: What it kept at an earlier step, if only that is known; else None.
        is_of_model: Whether the blocks are parameters and buffers.
    """

    verdict: Verdict
    reason: str
    kind: Literal["kept", "replaced"]
    frames: tuple[Frame, ...]
    phase: str | None
    bytes_per_step: float
    least_bytes_per_step: float
    most_bytes_per_step: float
    growths: int
    period_steps: float
    first_step: int | None
    is_older: bool
    held_bytes: int
    blocks: int
    kept_by: str | None
    kept_bytes: int | None = None
    is_of_model: bool = False


@dataclass(frozen=True)
class Release:
    """Memory of one call site that grew during some steps, but is no leak.

    Attributes:
        frames: As in `Growth`.
        most_bytes: The most bytes that blocks of the call site held at the end of a step.
        reason: Why the memory is no leak.
    """

    frames: tuple[Frame, ...]
    most_bytes: int
    reason: str


@dataclass(frozen=True)
class DeviceLeaks:
    """The search for leaks on one device of one process.

    Attributes:
        verdict: "leak"; "none": nothing kept growing; "unknown": the files do not tell.
        reason: Why the verdict is "none" or "unknown"; "" for a leak.
        device: The device's name, as in "cuda:0".
        rank, pid: The process; None if unknown.
        path: The file that decided; the last file if several files together decided.
        files: The number of files that decided.
        unit: What the growth was observed over: "step"; "second" or "slice" (a 24th of the events)
            in files without steps; "file" if only the ends of files without steps were compared.
        first, last: The first and the last observed step; None without steps.
        observed: The number of observed complete steps, slices or files.
        begin_bytes, end_bytes: The allocated bytes at the end of the first and of the last
            observed step.
        growths: The growths, leaks first, the largest first.
        releases: The largest memory that grew for some steps, but is no leak; at most five.
        bytes_per_step: The sum of the growth per step of all leaks; 0 without a leak.
        available_bytes: The bytes from the peak of a step at the end of the file to the limit of
            the process: the memory of the device that no other process held, and at most the memory
            fraction. Negative if the limit has become lower; None if unknown, or without steps.
        exhausted_step: The first step in which the leaks will have taken more than
            `available_bytes`; None if unknown, without a leak, or if memory has already run out.
        oom_step: The step in which memory ran out, if it is the last one of the file; else None.
    """

    verdict: Verdict
    reason: str
    device: str
    rank: int | None
    pid: int | None
    path: str
    files: int = 1
    unit: Literal["step", "second", "slice", "file"] = "step"
    first: int | None = None
    last: int | None = None
    observed: int = 0
    begin_bytes: int | None = None
    end_bytes: int | None = None
    growths: list[Growth] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    bytes_per_step: float = 0
    available_bytes: int | None = None
    exhausted_step: int | None = None
    oom_step: int | None = None

    @property
    def matters(self) -> bool:
        """Whether there is a leak that is not harmless."""
        return self.verdict == "leak" and not self.is_harmless

    @property
    def is_harmless(self) -> bool:
        """Whether all leaks together will not take the memory in `_FAR` further steps.

        If it is unknown how much is left, they must be as small as a single number in each step.
        """
        per_step, available = self.bytes_per_step, self.available_bytes
        if self.unit != "step" or self.oom_step is not None or available is None or available < 0:
            return self.unit == "step" and per_step <= MIN_BLOCK_BYTES
        return per_step * _FAR <= available

    def with_growths(self, growths: list[Growth]) -> "DeviceLeaks":
        """Return the result with these growths, and with what follows from them."""
        per_step, exhausted = bytes_per_step(growths), None
        last, available = self.last, self.available_bytes
        if last is not None and available is not None and per_step > 0 and self.oom_step is None:
            exhausted = last + 1 + int(min(max(available, 0) / per_step, 2**53))
        return replace(self, growths=growths, bytes_per_step=per_step, exhausted_step=exhausted)


def bytes_per_step(growths: Iterable[Growth]) -> float:
    """Return the sum of the growth per step of all leaks."""
    return sum(growth.bytes_per_step for growth in growths if growth.verdict == "leak")


def bytes_when_full(growth: Growth) -> int:
    """Return what a growth will hold when the container that keeps it is full; without a bound,
    what it holds now."""
    items, most = bound_of(growth.kept_by) or (1, 1)
    return (growth.kept_bytes or growth.held_bytes) * most // items


def in_order(growths: Iterable[Growth]) -> list[Growth]:
    """Return the growths, leaks first, the largest first."""
    return sorted(growths, key=lambda growth: (growth.verdict != "leak", -growth.bytes_per_step))


@dataclass(frozen=True, repr=False)
class LeakReport(BriefRepr):
    """The search for leaks in all files.

    Attributes:
        verdict: "leak" if a device has one; else "unknown" if that of a device is unknown; else
            "none".
        devices: The result for each device of each process.
    """

    verdict: Verdict
    devices: list[DeviceLeaks]


def rate_text(device: DeviceLeaks, count_bytes: float) -> str:
    """Return a growth, as in "40 MiB a step"."""
    unit = {"slice": "24th of the events"}.get(device.unit, device.unit)
    return f"{size(round(count_bytes))} a {unit}"


def since_text(leaks: Sequence[Growth], device: DeviceLeaks) -> str:
    """Return when leaks began, as in " since step 3"; "" if it is unknown."""
    if leaks[0].is_older:
        unit = {"slice": "part"}.get(device.unit, device.unit)
        begin = f"the first {unit}" if device.first is None else f"step {device.first}"
        return f" since {begin} or before"
    first = leaks[0].first_step
    return "" if first is None else f" since step {first}"


def where_text(growths: Sequence[Growth]) -> str:
    """Return the line of the largest growth, how many others there are, and their caller."""
    largest = growths[0]
    if not largest.frames:
        return "allocations without a Python stack, such as those of backward"
    text = call_site_text(largest.frames[0])
    lines = {growth.frames[0] for growth in growths if growth.frames}
    if len(lines) > 1:
        text += f" and {number(len(lines) - 1, 'other line')}"
    if caller := _caller(growths):
        text += f", called from {caller}"
    return text


def holder_of(growths: Sequence[Growth]) -> str | None:
    """Return the Python object that keeps at least half of the memory; None if it is unknown."""
    return common_holder(*_keepers(growths))


def is_named(device: DeviceLeaks) -> bool:
    """Return whether the object that keeps the memory of a device's leaks is known."""
    return holder_of(leaks_of(device)) is not None


def _keepers(growths: Sequence[Growth]) -> tuple[list[str], Column, Column]:
    """Return the object that keeps each growth, with its number, and the bytes."""
    size_bytes = np.array([growth.held_bytes for growth in growths], np.int64)
    return [growth.kept_by or "" for growth in growths], np.arange(len(growths)), size_bytes


def _second_holder(growths: Sequence[Growth]) -> str | None:
    """Return the object that keeps a quarter of the memory, next to one that keeps half."""
    holders = main_holders(*_keepers(growths), least=0.25)[:2]
    if len(holders) < 2 or holder_of(growths) not in holders:
        return None
    is_named = all(tells_where(name) and not is_garbage(name) for name in holders)
    return holders[1] if is_named else None


def keepers_text(growths: Sequence[Growth]) -> str:
    """Return what keeps the memory, as in ", kept by `x` of f()"; "" if that is unknown."""
    name, second = holder_of(growths), _second_holder(growths)
    text = "" if name is None else f", {kept_by_text(name)}"
    return text if second is None else f"{text} and by {marked(second)}"


def source_text(growths: Sequence[Growth]) -> str:
    """Return where the memory comes from, and what keeps it, if that is known."""
    return where_text(growths) + keepers_text(growths)


def remedy(growths: Sequence[Growth]) -> str:
    """Return what to do against leaks, as a sentence without a capital letter and a full stop."""
    holder = holder_of(growths)
    if holder is not None and holder.startswith(LIKELY):
        return likely_remedy(holder)
    if not tells_where(holder):
        return (
            "find what keeps the memory of these lines after the step: a list, a cache, a closure, "
            "a module in C++, or a loss that keeps its graph"
        )
    if is_garbage(holder):
        return "call gc.collect(), or break the references between these objects"
    if is_of_optimizer(holder):
        return "remove parameters that are not used any more from the optimizer's param_groups"
    if holder.startswith(OF_MODEL):
        return "find where the program keeps a new module or parameter, or a buffer that grows"
    if holder.endswith(_GRADIENT):
        name = holder.removesuffix(_GRADIENT)
        return f"call zero_grad() for `{name}`: each backward pass makes its sparse gradient larger"
    if second := _second_holder(growths):
        return look_at(holder, f" and {marked(second)}")
    if bound_of(holder):
        full = sum(map(bytes_when_full, growths))
        return f"let {marked(holder)} keep fewer items: when full, it takes {size(full)}"
    # All that a graph keeps has the holder of the graph; parameters of a model have theirs, too.
    lines = {growth.frames[0] for growth in growths if growth.frames}
    is_graph = len(lines) > 1 and len({growth.kept_by for growth in growths}) == 1
    is_graph &= not any(growth.is_of_model for growth in growths)
    return look_at(holder, is_graph=is_graph)


def _caller(growths: Sequence[Growth]) -> str:
    """Return the innermost function of the user's own code that calls the largest growths: its
    line for the largest, and how many other lines there are; "" if there is none."""
    largest = growths[0]
    others = [g for g in growths if g.bytes_per_step >= 0.05 * largest.bytes_per_step]
    for frame in filter(is_users, largest.frames[1:]):
        same = frame.filename, frame.name
        lines = [
            next((f.line for f in growth.frames if (f.filename, f.name) == same), None)
            for growth in others
        ]
        if None not in lines:
            more = len({*lines}) - 1
            text = call_site_text(frame) + (f" and {number(more, 'other line')}" if more else "")
            return "" if frame.name == "<module>" else text
    return ""


def answer(device: DeviceLeaks) -> str:
    """Return the verdict on a device in one or two sentences."""
    if device.verdict == "leak":
        leaks = leaks_of(device)
        text = "Harmless leak" if device.is_harmless else "Leak"
        text += f": {rate_text(device, device.bytes_per_step)}{since_text(leaks, device)}, from "
        text += f"{source_text(leaks)}."
        if device.oom_step is not None:
            text += f" Memory ran out in step {device.oom_step:,}."
        elif device.exhausted_step is not None:
            text += f" Memory would run out at about step {device.exhausted_step:,}."
        return text
    if device.verdict == "none":
        span = f"steps {device.first} to {device.last}"
        if device.first is None:
            span = f"{device.files} files"
        return f"No leak found in {span}: {device.reason}."
    text = f"Can't tell whether there is a leak, because {device.reason}."
    if device.growths:
        growth = device.growths[0]
        text += f" The largest growth is {rate_text(device, growth.bytes_per_step)}, "
        text += f"from {source_text([growth])}."
    return text


def leaks_of(device: DeviceLeaks) -> list[Growth]:
    """Return the growths that are leaks."""
    return [growth for growth in device.growths if growth.verdict == "leak"]
