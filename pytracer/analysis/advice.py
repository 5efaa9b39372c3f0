"""What to do next: the adviser of the log, the page, and all commands.

1. A leak comes first: with it, memory runs out under any settings.
2. Settings are named if a simulation has shown that they help, and otherwise as untested.
3. Nothing is advised that the recording has already.
"""

import shlex
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from pytracer.analysis.allocator_rules import may_be_rounded
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.holder_names import (
    AUTOCAST,
    INSIDE,
    ITEM,
    LIKELY,
    is_garbage,
    is_of_forward,
    is_of_last_exception,
    is_variable,
    likely_remedy,
    look_at,
    outermost_name,
    tells_keeper,
    tells_where,
)
from pytracer.analysis.holders import Holder, bytes_of_keepers
from pytracer.analysis.host_growth import HostGrowth, PinnedMemory
from pytracer.analysis.leaks.results import DeviceLeaks, holder_of, leaks_of, remedy
from pytracer.analysis.oom import reasons
from pytracer.analysis.oom.reasons import Facts, Verdict, helps
from pytracer.analysis.oom.savings import lowering
from pytracer.analysis.oom.trials import Trial, longest_lasting
from pytracer.analysis.ooms import is_of_failure
from pytracer.analysis.usage import UsageSample
from pytracer.reading.snapshot import Snapshot
from pytracer.text import sentence, size
from pytracer.variables import command_of, format_settings, with_settings

UNTESTED = "untested"  # the evidence for settings that were not simulated

_MUCH_OF_ITEMS, _MOST_OF_ITEMS = 0.25, 0.5
"""The least part of the memory that the items of an object keep if they are where to look: if only
less memory helps, and else."""

_OF_STEPS = {reasons.LARGER_INPUT, reasons.GROWING}
"""The verdicts on a step's requests, for which what keeps their blocks is not to blame."""

_HELD = {reasons.EXHAUSTED, reasons.SHORT, reasons.TOO_LARGE, reasons.REPLACED} | _OF_STEPS
"""The verdicts after which only less memory helps."""

_OF_PLACE = {
    reasons.LIMIT,
    reasons.OTHER_POOL,
    reasons.STREAMS,
    reasons.WAITING,
    reasons.FREED,
    reasons.LIBRARY,
}
"""The verdicts after which the program may hold what it holds."""

_UNTESTED_CHANGE = {"expandable_segments": "True"}


@dataclass(frozen=True)
class Suggestion:
    """Something to do next.

    Attributes:
        command: A command for a shell; "" if the program has to be changed.
        why: What the command shows or changes, as a sentence.
        evidence: How it is known that changed settings help, in a few words; "" for everything that
            changes no setting.
    """

    command: str
    why: str
    evidence: str = ""

    def note(self) -> str:
        """Return the evidence and the reason, as sentences."""
        evidence = f"{sentence(self.evidence)}. " if self.evidence else ""
        return f"{evidence}{self.why}".rstrip()


def _do(what: str) -> Suggestion:
    return Suggestion("", f"{sentence(what)}.")


def is_much_unallocated(sample: UsageSample) -> bool:
    """Return whether a large part of the reserved memory is not allocated."""
    return sample.fragmentation_bytes > max(sample.reserved_bytes // 5, 256 * 2**20)


def advise_after_oom(
    data: DeviceData, found: Sequence[Verdict], facts: Facts, leaks: DeviceLeaks | None
) -> list[Suggestion]:
    """Return what to try after an out-of-memory error.

    Args:
        leaks: The leaks that are one of the reasons, or that the program had after it; else None.
    """
    kinds = {verdict.kind for verdict in found}
    path = shlex.quote(data.snapshot.path)
    lower = _dropping(facts) if kinds & {reasons.GARBAGE, reasons.EXCEPTION} else []
    if leaks is not None:
        suggestions = [*_of_leak(path, leaks), *lower, *_of_kinds(data, facts, kinds)]
        best = longest_lasting(facts.trials)
        if kinds >= {reasons.LEAK, reasons.FRAGMENTED} and best is not None and best.is_proven:
            suggestions.append(_of_setting(data, best, leaks.bytes_per_step))
    elif reasons.KEPT_GROWING in kinds and facts.growth is not None:
        return [_do(remedy([facts.growth])), *lower]
    else:
        is_too_little = kinds <= _HELD or (reasons.UNKNOWN in kinds and facts.is_nearly_all)
        least = _MUCH_OF_ITEMS if is_too_little else _MOST_OF_ITEMS
        of_items = [] if kinds & _OF_STEPS else _of_items(data, facts, least)
        has_reason = lower + of_items != []
        less = _less(data, facts, kinds, is_needed=is_too_little and not has_reason)
        of_items += _of_models(facts) if is_too_little else []
        lower += less + of_items if kinds & _OF_PLACE else of_items + less
        # A setting with which only this allocation is known to succeed moves the failure of a
        # program that needs more, or keeps more and more.
        moves = kinds & {reasons.GARBAGE, reasons.EXCEPTION} or facts.is_nearly_all
        of_step_only = kinds <= _HELD or bool(has_reason and moves)
        settings = _of_settings(data, path, kinds, facts, of_step_only=of_step_only)
        if has_reason and facts.is_nearly_all:
            settings = [one for one in settings if one.evidence]
        best = longest_lasting(facts.trials)
        is_first = reasons.FRAGMENTED in kinds or (
            kinds <= _HELD and best is not None and best.is_all
        )
        suggestions = settings + lower if is_first else lower + settings
    if reasons.OTHERS in kinds:
        command = "npu-smi info" if data.snapshot.backend(data.device) == "npu" else "nvidia-smi"
        suggestions.append(Suggestion(command, "Shows which processes use the device."))
    return [*suggestions, *_for_next_run(data, facts.holders)]


def _for_backend(data: DeviceData, text: str) -> str:
    is_npu = data.snapshot.backend(data.device) == "npu"
    return text.replace("torch.cuda", "torch.npu") if is_npu else text


def _of_kinds(data: DeviceData, facts: Facts, kinds: Set[str]) -> list[Suggestion]:
    """Return the remedies of verdicts, with how far each was proven."""
    found = []
    if reasons.OTHER_POOL in kinds:
        kinds = kinds | {reasons.SHARED_POOL}
    for kind, why in _OF_KIND.items():
        if kind in kinds and helps(facts, True, kind):
            if kind == reasons.STREAMS and facts.of_streams is not None:
                why = _OF_STREAMS[facts.of_streams.kind]
            found.append(Suggestion("", _for_backend(data, why) + _proof(facts, kind)))
    return found


def _proof(facts: Facts, kind: str) -> str:
    """Return how far a remedy was proven to help, as sentences; "" if it was not simulated."""
    if (trial := facts.proofs.get(kind)) is None:
        return ""
    return f" {sentence(trial.proof())}. {trial.limits_of_proof()}".rstrip()


def _less(data: DeviceData, facts: Facts, kinds: Set[str], *, is_needed: bool) -> list[Suggestion]:
    """Return how a program holds less that needs more than there is."""
    found: list[Suggestion] = []
    simulation = facts.simulation if kinds <= _HELD | {reasons.UNKNOWN} else None
    if kinds <= _HELD | {reasons.UNKNOWN}:
        found += (Suggestion("", why) for why in facts.avoidable)
    found += _of_kinds(data, facts, kinds)
    if simulation is not None and (fitting := simulation.fitting_bytes()) is not None:
        found.append(_do(f"an input fits if this line requests up to {size(fitting)} (simulated)"))
    asked, free = facts.oom.requested_bytes, facts.free_bytes
    total = 0 if facts.oom.sample is None else facts.total_bytes
    if reasons.TOO_LARGE in kinds and may_be_rounded(data.snapshot, asked, free):
        why = "remove roundup_power2_divisions: it may have rounded a smaller request up to"
        found.append(_do(f"{why} {size(asked)}"))
    if reasons.TOO_LARGE in kinds and 2 * asked > total:
        why = f"this line asks for {size(asked)}: check tensor shapes, or compute in parts"
        found.append(_do(why))
    texts = lowering(
        facts.categories,
        facts.progress,
        total,
        facts.missing_bytes,
        is_needed=is_needed and not found,
        recomputed_bytes=facts.recomputed_bytes,
    )
    return found + [Suggestion("", text) for text in texts]


def advise_at_peak(data: DeviceData, found: Any, recomputed_bytes: int) -> list[Suggestion]:
    """Return what to try to lower a peak, or the memory that was reserved for it.

    Args:
        found: The device's `Explanation`, without suggestions.
    """
    path = shlex.quote(data.snapshot.path)
    leaks = found.leaks if found.has_leak else None
    suggestions = [] if leaks is None else _of_leak(path, leaks)
    if found.growth is not None:
        suggestions.append(_do(remedy([found.growth])))
    if found.host is not None and leaks is None:
        suggestions += _of_host(data, found.host)
    if found.pinned is not None:
        suggestions.append(_of_pinned(data.snapshot, found.pinned))
    if found.of_streams is not None:
        suggestions.append(Suggestion("", _for_backend(data, _OF_STREAMS[found.of_streams.kind])))
    elif is_much_unallocated(found.most_reserved or found.sample):
        suggestions += _of_search(data, path)
    texts = lowering(found.categories, recomputed_bytes=recomputed_bytes)
    less = [Suggestion("", text) for text in texts]
    return [*suggestions, *less, *_for_next_run(data, found.holders)]


def _of_host(data: DeviceData, host: HostGrowth) -> list[Suggestion]:
    """Return how to find what host memory is for."""
    found = []
    if not host.is_cpu_recorded:
        why = "Also records tensors on the CPU in the next run."
        devices = f"{data.snapshot.backend(data.device)},cpu"
        found.append(Suggestion(f"export PYTRACER_DEVICE={devices}", why))
    text = "memray shows what takes host memory: start the program with `memray run`."
    return [*found, Suggestion("", text)]


def _of_pinned(snapshot: Snapshot, pinned: PinnedMemory) -> Suggestion:
    """Return how torch takes less pinned memory."""
    if pinned.limit_mib is None or not pinned.rounding_bytes:
        return Suggestion("", "`torch._C._host_emptyCache()` releases what the program has freed.")
    change = {"pinned_max_cached_size_mb": str(pinned.limit_mib)}
    own, version = snapshot.settings_text or "", snapshot.metadata.torch_version("cuda")
    command = command_of(with_settings(own, change, "cuda"), "cuda", version, own)
    gain = f"{size(pinned.limited_bytes)} would be taken"
    why = "Larger requests are then not rounded or cached: each pins new memory, which is slow."
    if "max_cached_size" not in snapshot.allocator_settings:
        gain = f"With {format_settings(change)} (torch 2.13 or newer), {gain}. {why}"
        return Suggestion("", gain)
    return Suggestion(command, why, f"With it, {gain}")


def _of_leak(path: str, leaks: DeviceLeaks) -> list[Suggestion]:
    why = "Shows each source line whose memory is kept from step to step."
    found = leaks_of(leaks)
    by_name = [_do(remedy(found))] if tells_keeper(holder_of(found)) else []
    return [*by_name, Suggestion(f"pytracer show {path} --leaks", why)]


def _of_settings(
    data: DeviceData, path: str, kinds: Set[str], facts: Facts, *, of_step_only: bool
) -> list[Suggestion]:
    """Return the settings that would have helped, or else how to look for such.

    `of_step_only`: whether only those help with which the rest of the step fits.
    """
    best = longest_lasting(facts.trials)
    if best is not None and (best.is_proven or not (of_step_only or facts.is_short)):
        return [_of_setting(data, best)]
    found = []
    if facts.simulation is None and not of_step_only and reasons.FRAGMENTED in kinds:
        own, kind = data.snapshot.settings_text or "", data.snapshot.backend(data.device)
        command = _command(data, with_settings(own, _UNTESTED_CHANGE, kind))
        why = "Lets the allocator join free memory. Whether that is enough was not simulated."
        found.append(Suggestion(command, why, UNTESTED))
    searched = {reasons.EXHAUSTED, reasons.FRAGMENTED, reasons.UNKNOWN, reasons.SHORT}
    if kinds & searched and facts.missing_bytes <= 0:
        found += _of_search(data, path)
    return found


def _of_setting(data: DeviceData, best: Trial, leaked_bytes: float = 0) -> Suggestion:
    command = _command(data, best.settings)
    return Suggestion(command, best.limits_of_proof(leaked_bytes), best.proof())


def _command(data: DeviceData, settings: str) -> str:
    kind, own = data.snapshot.backend(data.device), data.snapshot.settings_text or ""
    return command_of(settings, kind, data.snapshot.metadata.torch_version(kind), own)


def _of_search(data: DeviceData, path: str) -> list[Suggestion]:
    """Return the command that searches settings, if the file can be simulated."""
    if data.is_cpu or not data.history.is_known or data.snapshot.metadata.only_phase is not None:
        return []
    why = "Simulates the recorded requests under many settings, and names the best."
    return [Suggestion(f"pytracer recommend {path}", why)]


def _of_items(data: DeviceData, facts: Facts, least: float) -> list[Suggestion]:
    """Return where to look if a list's items, or several graphs, keep this part of the memory."""
    held_bytes = sum(each.size_bytes for each in facts.categories)
    # The parameters and states of models in a list are used.
    kept = [(each.unknown_bytes + each.activation_bytes, each) for each in facts.keepers]
    size_bytes, most = max(kept, key=lambda pair: pair[0], default=(0, None))
    if most is None or size_bytes < least * held_bytes:
        return []
    name, is_failed = most.name, is_of_failure(data)
    if name.startswith(LIKELY) and not name.endswith(AUTOCAST):  # a pass may need its copies
        return [_do(likely_remedy(name))]
    if is_garbage(name) or is_failed(name) or is_of_forward(name) or not tells_where(name):
        return []
    is_graph = 2 * most.activation_bytes > size_bytes
    outer = outermost_name(name)
    if ITEM not in outer and INSIDE not in outer and not (is_graph and is_variable(outer)):
        return []
    return [_do(look_at(name, f", which keeps {size(size_bytes)}", is_graph=is_graph))]


def _of_models(facts: Facts) -> list[Suggestion]:
    """Return where to look if a list keeps models and optimizers, of several steps, of much memory.

    A list of the layers of one model is made at once.
    """
    held_bytes = sum(each.size_bytes for each in facts.categories)
    for each in facts.keepers:
        owned = each.size_bytes - each.unknown_bytes - each.activation_bytes
        is_much = each.steps > 1 and owned >= _MUCH_OF_ITEMS * held_bytes
        if is_much and ITEM in outermost_name(each.name):
            keeps = f", which keeps {size(owned)} of models and optimizers"
            return [_do(look_at(each.name, keeps))]
    return []


def _dropping(facts: Facts) -> list[Suggestion]:
    """Return how to drop what the program does not use any more."""
    garbage, failed = facts.garbage_bytes, facts.exception_bytes
    found = []
    if garbage:
        why = "only objects that refer to each other keep this memory."
        why += _proof(facts, reasons.GARBAGE)
        found.append(Suggestion("", f"gc.collect() would free {size(garbage)}: {why}"))
    if failed:
        how = "Retry outside the `except` block, where the exception is gone"
        if 2 * bytes_of_keepers(facts.keepers, is_of_last_exception) > failed:
            how = "Run a cell that fails, such as `1/0`, then gc.collect(), to drop the exception"
        why = f"it keeps {size(failed)}.{_proof(facts, reasons.EXCEPTION)}"
        found.append(Suggestion("", f"{how}: {why}"))
    return found


_OF_STREAMS = {
    "idle": "Make streams once, and use the same ones in each step.",
    "in turn": "Create the stream once, and reuse it.",
    "waiting": "Instead of record_stream(), keep the tensor until its own stream has waited for "
    "the other one: torch.cuda.current_stream().wait_stream(other). Or synchronize once a step.",
}

_OF_KIND = {
    reasons.LIMIT: "Raise or remove the limit, torch's set_per_process_memory_fraction.",
    reasons.SHARED_POOL: "Capture all graphs in the same pool and on one stream: "
    "torch.cuda.graph(g, pool=first.pool(), stream=side). Replay them one at a time, in the order "
    "of their capture.",
    reasons.OTHER_POOL: "Before this line, drop the CUDA graphs or MemPools that own these pools. "
    "torch.cuda.empty_cache() only helps with the default pool, (0, 0).",
    reasons.STREAMS: _OF_STREAMS["idle"],
    reasons.WAITING: _OF_STREAMS["waiting"],
    reasons.FREED: "Retry outside the `except` block, or synchronize the other streams before "
    "this line: torch.accelerator.synchronize().",
    reasons.LIBRARY: "Leave room for libraries: hold less, call torch.cuda.empty_cache() before "
    "this line if much is cached, or limit the allocator at the start: "
    "torch.cuda.set_per_process_memory_fraction(0.95).",
    reasons.LARGER_INPUT: "Limit the size of one step's input (for example, its longest sequence), "
    "or split the input.",
    reasons.GROWING: "Find the input that grows with every step, such as a queue or a cache that "
    "`torch.cat` extends, and cap its size.",
    reasons.REPLACED: "If `torch.cat` extends one tensor in a loop, allocate its final size once "
    "and write into it.",
}


def _for_next_run(data: DeviceData, held: Sequence[Holder]) -> list[Suggestion]:
    """Return what the next recording needs to have the answers that this one lacks."""
    found = []
    sites = [holder.site.call_site for holder in held]
    is_unnamed = any(site is None or not site.filename for site in sites)
    if is_unnamed and data.snapshot.metadata.forward_stacks is False:
        why = "Shows the forward call of each backward allocation in the next run."
        found.append(Suggestion("export PYTRACER_FORWARD_STACKS=1", why))
    # Memory may run out before the first step of an optimizer ends.
    takes_steps = (data.snapshot.metadata.step_from or "").startswith("optimizer")
    if not takes_steps and not data.has_marked_steps:
        why = "Records steps in the next run: without steps, no leak can be seen."
        # A file of torch's own recorder has no metadata.
        is_ours = data.snapshot.metadata.is_pytracers
        switch = "PYTRACER_STEP_FROM=optimizer" if is_ours else "PYTRACER=1"
        found.append(Suggestion(f"export {switch}", why))
    return found
