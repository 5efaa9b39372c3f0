"""The explanation of a file: what happened, why, who holds the memory, and what to try.

    from pytracer.analysis import explain
    from pytracer.reading import load

    for explanation in explain(load("snapshot.pickle")):
        print(explanation.what, explanation.verdicts, explanation.suggestions)

`pytracer explain --json` writes these dataclasses as `to_json` converts them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytracer.analysis.advice import (
    LEAST_STEPS,
    Suggestion,
    Trial,
    TrySettings,
    advise_after_oom,
    advise_at_peak,
    is_much_unallocated,
)
from pytracer.analysis.call_sites import sites_at_end
from pytracer.analysis.categories import CategoryUsage, categories_at
from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data, expands
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.holders import Holder, holders, holders_at
from pytracer.analysis.ooms import OutOfMemory, is_oom_snapshot, out_of_memories, remainder
from pytracer.analysis.usage import UsageSample, final_sample, sample_at
from pytracer.analysis.verdicts import LEAK, Surroundings, Verdict, verdicts
from pytracer.reading.metadata import backend, device_name, only_phase, read_number
from pytracer.reading.snapshot import Snapshot, has_events
from pytracer.text import number, size

if TYPE_CHECKING:
    from pytracer.analysis.leaks import DeviceLeaks

TOP = 5
"""How many call sites an explanation has."""


@dataclass(frozen=True)
class Explanation:
    """The explanation of one device of a file.

    Attributes:
        path: The file's path.
        device: The index of the device in the file.
        name: The name of the device, as in "cuda:0".
        is_oom_file: Whether the file was written because this device ran out of memory.
        what: What happened, in one or two sentences: the last out-of-memory, or else the peak.
        oom: The last out-of-memory; None if the file has none.
        verdicts: Why the allocation failed, the cheapest remedy first; [] without an out-of-memory.
        held_at: The moment of `holders`: "oom", "peak", or "end" if the usage before the end is
            unknown.
        held_bytes: The active bytes at that moment, which the shares of `holders` refer to.
        holders: The call sites that held most at that moment, the largest first, at most `TOP`.
        categories: What the memory was for at that moment, the largest category first; [] if the
            file does not have the owners of blocks.
        leak: Whether memory is kept from step to step: "leak", "none", or "unknown", also after an
            out-of-memory, where a leak is one of the verdicts.
        leak_answer: The answer of `pytracer leaks`; "" if `leak` is unknown.
        suggestions: What to do next.
        fitting_settings: The changes of the allocator's settings with which the allocation that
            failed would have found memory, in a simulation; []: with none of those tried; None: not
            simulated, because there was no out-of-memory, or because a simulation of the
            recording's own settings does not equal the recording.
    """

    path: str
    device: int
    name: str
    is_oom_file: bool
    what: str
    oom: OutOfMemory | None
    verdicts: list[Verdict]
    held_at: str
    held_bytes: int
    holders: list[Holder]
    categories: list[CategoryUsage]
    suggestions: list[Suggestion]
    leak: str = "unknown"
    leak_answer: str = ""
    fitting_settings: list[str] | None = None

    def leak_sentence(self) -> str:
        """Return the sentence about memory that is kept from step to step; "" without a leak."""
        of_oom = (verdict.text for verdict in self.verdicts if verdict.kind == LEAK)
        return self.leak_answer if self.leak == "leak" else next(of_oom, "")


def explain(
    snapshot: Snapshot, device: int | None = None, try_settings: TrySettings | None = None
) -> list[Explanation]:
    """Explain a snapshot: its last out-of-memory, or else its peak.

    Args:
        snapshot: The snapshot, as returned by `load`.
        device: The index of the only device to explain; None for all devices that were used.
        try_settings: Simulates settings, as `pytracer.simulator.trials.try_settings`; None: no
            setting is simulated.

    Returns:
        One explanation for each device; devices that ran out of memory come first.

    Raises:
        PytracerError: The snapshot has no such device.
    """
    data = (device_data(snapshot, index) for index in chosen_devices(snapshot, device))
    found = [explain_device(each, try_settings) for each in data]
    return sorted(found, key=lambda each: (each.oom is None, each.device))


def explain_device(data: DeviceData, try_settings: TrySettings | None = None) -> Explanation:
    """Explain a device: its last out-of-memory, or else its peak."""
    ooms = out_of_memories(data.snapshot, data.device, data.trace, data.history, data.boundaries)
    return explain_oom(data, ooms, try_settings) if ooms else _explain_peak(data)


def explain_oom(
    data: DeviceData, ooms: list[OutOfMemory], try_settings: TrySettings | None = None
) -> Explanation:
    """Explain the last out-of-memory of a device, which has at least one."""
    oom, snapshot, device = ooms[-1], data.snapshot, data.device
    found = verdicts(oom, _surroundings(data, oom))
    entry = None if data.history is None else oom.event + 1
    held_at, held_bytes, held = _held(data, entry, "oom")
    trials = None if try_settings is None else try_settings(data)
    return Explanation(
        path=snapshot.path,
        device=device,
        name=device_name(snapshot, device),
        is_oom_file=is_oom_snapshot(snapshot, device),
        what=_what_happened(data, ooms),
        oom=oom,
        verdicts=found,
        held_at=held_at,
        held_bytes=held_bytes,
        holders=held,
        categories=_categories(data, entry),
        suggestions=advise_after_oom(data, found, held, trials),
        fitting_settings=_fitting(trials),
    )


def _fitting(trials: list[Trial] | None) -> list[str] | None:
    if trials is None or not all(trial.is_exact for trial in trials):
        return None
    return [trial.name for trial in trials if trial.fits]


def _explain_peak(data: DeviceData) -> Explanation:
    snapshot, device, history = data.snapshot, data.device, data.known_usage
    peak = None if history is None else int(history.usage.allocated_bytes.argmax())
    held_at, held_bytes, held = _held(data, peak, "peak")
    sample = final_sample(snapshot, device, data.boundaries)
    if history is not None and peak is not None:
        sample = sample_at(snapshot, device, history, peak, data.boundaries)
    leak, leak_answer = leak_of(data)
    return Explanation(
        path=snapshot.path,
        device=device,
        name=device_name(snapshot, device),
        is_oom_file=False,
        what=_peak_text(data, sample, held_at),
        oom=None,
        verdicts=[],
        held_at=held_at,
        held_bytes=held_bytes,
        holders=held,
        categories=_categories(data, peak),
        suggestions=advise_at_peak(data, sample, held, has_leak=leak == "leak"),
        leak=leak,
        leak_answer=leak_answer,
    )


def leak_of(data: DeviceData) -> tuple[str, str]:
    """Return whether a device's memory is kept from step to step, as `leak` and `leak_answer`."""
    if data.history is None or len({step for step, _ in data.boundaries}) < LEAST_STEPS:
        return "unknown", ""
    # Not needed for other files.
    from pytracer.analysis.leaks.one_file import leaks_on_device
    from pytracer.analysis.leaks.texts import answer

    found = leaks_on_device(data.snapshot, data.device, data.history)
    return found.verdict, "" if found.verdict == "unknown" else answer(found)


def _held(data: DeviceData, entry: int | None, moment: str) -> tuple[str, int, list[Holder]]:
    """Return the moment, the active bytes, and who held them at an entry of the history."""
    snapshot, device = data.snapshot, data.device
    history = data.history if entry is None else data.known_usage
    if history is None or entry is None:
        active = final_sample(snapshot, device, data.boundaries).active_bytes
        sites = sites_at_end(snapshot, device, TOP)
        return "end", active, holders(snapshot.stacks, sites, active, {})
    active = int(history.usage.active_bytes[entry])
    return moment, active, holders_at(history, snapshot, entry, data.boundaries, TOP)


def _categories(data: DeviceData, entry: int | None) -> list[CategoryUsage]:
    if not data.snapshot.blocks.category.any():
        return []
    return categories_at(data, entry)


def _surroundings(data: DeviceData, oom: OutOfMemory) -> Surroundings:
    process, reserved = (
        read_number(data.metadata, f"{name}_bytes") for name in ("process", "reserved")
    )
    phase = only_phase(data.snapshot)
    why = data.contradiction
    if phase is not None:
        why = f"the file has the events of phase {phase!r} only"
    return Surroundings(
        is_cpu=data.is_cpu is True,
        expands=expands(data),
        outside_bytes=remainder(process, reserved),
        why_no_history=why,
        leaks=_leaks(data, oom) if why is None else None,
    )


def _leaks(data: DeviceData, oom: OutOfMemory) -> "DeviceLeaks | None":
    """Return the leaks until an out-of-memory; None if steps came after it, or there are none."""
    if data.history is None or len(data.boundaries) < 2 or oom.event < data.boundaries[-1][1]:
        return None
    from pytracer.analysis.leaks.one_file import leaks_on_device  # not needed for other files

    return leaks_on_device(data.snapshot, data.device, data.history)


def _what_happened(data: DeviceData, ooms: list[OutOfMemory]) -> str:
    oom = ooms[-1]
    kind = backend(data.snapshot, data.device).upper() or device_name(data.snapshot, data.device)
    where = call_site_text(oom.call_site)
    text = f"{kind} out of memory: {size(oom.requested_bytes)} were requested at {where}"
    if oom.step is not None and len(data.boundaries) > 1:
        text += f", step {oom.step}"
    text += f", phase {oom.phase}. " if oom.phase else ". "
    place = "in the system" if data.is_cpu else "on the device"
    text += f"{size(oom.device_free_bytes)} were free {place}"
    if oom.available_bytes < oom.device_free_bytes:
        text += f" ({size(oom.available_bytes)} within the limit of the process)"
    if oom.sample is not None and not data.is_cpu:
        bound = "" if oom.sample.is_exact else "up to "
        inside = "segments" if oom.free_segments is None else number(oom.free_segments, "segment")
        text += (
            f", {bound}{size(oom.sample.free_bytes)} were free inside {inside}, largest block "
            f"{bound}{size(oom.sample.largest_free_bytes)}"
        )
    text += "."
    if len(ooms) > 1:
        text += f" The file has {len(ooms):,} out-of-memory errors; this is the last."
    elif not oom.is_at_end and not data.is_cpu and data.history is not None:
        text += " The recording continued afterwards."
    return text


def _peak_text(data: DeviceData, sample: UsageSample, moment: str) -> str:
    name, amount = device_name(data.snapshot, data.device), size(sample.allocated_bytes)
    is_sum = moment == "peak" and data.history is None
    bound = "" if sample.is_exact or is_sum else "at least "
    oom = "no out-of-memory"
    if not has_events(data.trace):
        oom = "the file has no events, so whether memory ran out is unknown"
    text = f"{name}: {oom}. At the {moment}, {bound}{amount} were allocated"
    if sample.step is not None and len(data.boundaries) > 1:
        text += f", in step {sample.step}"
    if sample.phase:
        text += f", phase {sample.phase}"
    if data.is_cpu:
        return f"{text}."
    if is_sum:
        return f"{text} by the sum of the trace alone, which does not lead to the final state."
    text += f", and {size(sample.reserved_bytes)} reserved."
    if is_much_unallocated(sample):
        text += (
            f" {size(sample.fragmentation_bytes)} of the reserved memory were not allocated: they "
            "were cached, or fragmented."
        )
    return text
