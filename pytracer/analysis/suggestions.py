"""What to do after an out-of-memory or about a peak: commands that can be pasted into a shell."""

import re
import shlex
from dataclasses import dataclass

from pytracer.analysis.device_data import DeviceData, expands
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.holders import Holder
from pytracer.analysis.ooms import OutOfMemory
from pytracer.analysis.usage import UsageSample
from pytracer.analysis.verdicts import FRAGMENTED, LEAK, LIMIT, OTHERS, UNKNOWN, Verdict
from pytracer.reading.metadata import backend, has_marked_steps, settings_text, torch_version
from pytracer.text import size
from pytracer.variables import VARIABLE

LEAST_STEPS = 3
"""The number of steps from which a leak can be looked for in one file."""

_EXPANDS = "expandable_segments:True"
_SETTING = re.compile(r"([^,:\[\]]+):(\[[^\[\]]*\]|[^,:\[\]]+)")
_GENERAL = "PYTORCH_ALLOC_CONF"
_NOT_WITH_EXPANDABLE = {"npu": ("max_split_size_mb", "garbage_collection_threshold")}


@dataclass(frozen=True)
class Suggestion:
    """Something to do next.

    Attributes:
        command: A command for a shell; "" if the program has to be changed.
        why: What the command shows or changes, as a sentence.
    """

    command: str
    why: str


def joins_segments(suggestion: Suggestion) -> bool:
    """Return whether a suggestion is to switch on expandable segments, or to test that."""
    return _EXPANDS in suggestion.command


def is_much_unallocated(sample: UsageSample) -> bool:
    """Return whether a large part of the reserved memory is not allocated."""
    return sample.fragmentation_bytes > max(sample.reserved_bytes // 5, 256 * 2**20)


def suggestions_after_oom(
    data: DeviceData, oom: OutOfMemory, found: list[Verdict], held: list[Holder]
) -> list[Suggestion]:
    """Return what to try after an out-of-memory with these verdicts."""
    kinds = [verdict.kind for verdict in found]
    path = shlex.quote(data.snapshot.path)
    suggestions = []
    if LEAK in kinds:
        suggestions.append(_of_leak(path))
    if FRAGMENTED in kinds:
        suggestions += _joining(data, path)
    if LIMIT in kinds:
        suggestions.append(
            Suggestion("", "Raise or remove the limit, torch's set_per_process_memory_fraction.")
        )
    if OTHERS in kinds:
        command = "npu-smi info" if backend(data.snapshot, data.device) == "npu" else "nvidia-smi"
        suggestions.append(Suggestion(command, "Shows which processes use the device."))
    if UNKNOWN in kinds and not data.is_cpu and not expands(data):
        suggestions.append(
            Suggestion(f"pytracer recommend {path} --set {_EXPANDS}", "Tests a setting in seconds.")
        )
    return [*suggestions, *_of_holders(data, path, held, has_leak=LEAK in kinds)]


def suggestions_at_peak(
    data: DeviceData, sample: UsageSample, held: list[Holder], *, has_leak: bool
) -> list[Suggestion]:
    """Return what to try to lower a peak."""
    path = shlex.quote(data.snapshot.path)
    leak = [_of_leak(path)] if has_leak else []
    joining = _joining(data, path) if not data.is_cpu and is_much_unallocated(sample) else []
    return [*leak, *joining, *_of_holders(data, path, held, has_leak)]


def _of_leak(path: str) -> Suggestion:
    why = "Shows each line whose memory is kept from step to step."
    return Suggestion(f"pytracer leaks {path}", why)


def _joining(data: DeviceData, path: str) -> list[Suggestion]:
    kind = backend(data.snapshot, data.device)
    own = settings_text(data.snapshot) or ""
    settings = dict(_SETTING.findall(own))
    for key in _NOT_WITH_EXPANDABLE.get(kind, ()):
        settings.pop(key, None)
    settings["expandable_segments"] = "True"
    text = ",".join(f"{key}:{value}" for key, value in settings.items())
    return [
        Suggestion(
            command_of(text, kind, torch_version(data.snapshot, kind), own),
            "Lets the allocator join free memory. Then start the program again.",
        ),
        Suggestion(
            f"pytracer recommend {path} --set {_EXPANDS}",
            "Tests this with the recorded requests, in a simulation.",
        ),
    ]


def command_of(settings: str, backend: str, torch_version: str | None, own_settings: str) -> str:
    """Return the line to paste into a shell.

    torch before 2.9 does not know the general variable, and later versions call the older name
    deprecated. If the job sets a variable already, the line must name the one that counts if both
    are set: in torch 2.12 and later that is the older name.

    Args:
        settings: The settings, in the form of the variable; "" for the defaults.
        backend: "cuda", "npu", or "" if unknown: then the variable of CUDA.
        torch_version: The version of torch; None if unknown.
        own_settings: The settings of the recording; "" if no variable was set.
    """
    variable = VARIABLE.get(backend, VARIABLE["cuda"])
    if not settings:
        return f"unset {variable} {_GENERAL}"
    if backend == "cuda" and torch_version is not None:
        version = tuple(int(part) for part in torch_version.split(".")[:2])
        if version >= (2, 9) and (version < (2, 12) or not own_settings):
            variable = _GENERAL
    return f"export {variable}={shlex.quote(settings)}"


def _of_holders(
    data: DeviceData, path: str, held: list[Holder], has_leak: bool = False
) -> list[Suggestion]:
    found = []
    if held:
        site = held[0].site
        found.append(
            Suggestion(
                f"pytracer stats {path} --top 20",
                f"Shows all holders. Look first at {call_site_text(site.call_site)}, which held "
                f"{size(site.size_bytes)}.",
            )
        )
    is_unnamed = any(holder.site.call_site is None for holder in held)
    if is_unnamed and data.snapshot.metadata.get("forward_stacks") is False:
        why = "Names the forward calls of what backward allocates, in the next run."
        found.append(Suggestion("export PYTRACER_FORWARD_STACKS=1", why))
    if not has_marked_steps(data.snapshot, data.boundaries):
        why = "Records steps, without which a leak cannot be seen, in the next run."
        found.append(Suggestion("export PYTRACER_STEP_FROM=optimizer", why))
    elif not has_leak and len({step for step, _ in data.boundaries}) >= LEAST_STEPS:
        found.append(Suggestion(f"pytracer leaks {path}", "Shows blocks that no step frees."))
    return found
