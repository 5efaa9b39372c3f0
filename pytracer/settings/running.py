"""The settings of the running allocator: reading them, and changing them.

CUDA's allocator shows most of its values. torch_npu reports a string at most, so an allocation
shows whether NPU segments are expandable.
"""

import contextlib
import importlib.metadata
import os
import sys
from collections.abc import Callable
from typing import Any

from pytracer.backends.running_torch import torch_module
from pytracer.errors import ConfigError, PytracerError
from pytracer.settings.keys import BACK_TO_DEFAULT, DEFAULTS, KNOWN, SHOWN, is_shown_as, shown_value
from pytracer.variables import VARIABLE, format_settings, parse_settings


def in_force(backend: str) -> str:
    """Return the settings in force, as the variable would have them. Nothing is initialised.

    The allocator reports the string that was *tried* last. The values that CUDA's allocator shows
    tell which parts of that string were refused, and what an earlier string set.
    """
    text = _reported_settings(backend)
    values = _shown_values() if backend == "cuda" else {}
    try:
        items = parse_settings(text)
    except ConfigError:  # the allocator refused this string
        text, items = "", {}
    accepted = KNOWN | environment_settings(backend).keys()
    right = {key: value for key, value in items.items() if key in accepted}
    for key in values:
        value = right.get(key, DEFAULTS.get(key))
        if value is None or not is_shown_as(key, value, values):
            right[key] = shown_value(key, values) or ""
    right = {key: value for key, value in right.items() if value}
    return text if right == items else format_settings(right)


def _reported_settings(backend: str) -> str:
    """Return the string that the allocator reports, or the best substitute."""
    module = torch_module(backend)
    import torch

    ask = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    if backend == "npu":
        is_unread = not (_changed or module.is_initialized())  # torch_npu's variable, so far
        if ask is None or torch_npu_is_older() or is_unread:
            return format_settings(environment_settings(backend) | _changed)
    return str(_snapshot_settings().get("PYTORCH_CUDA_ALLOC_CONF", "") if ask is None else ask())


_changed: dict[str, str] = {}
"""The settings that torch_npu was given here. An older torch_npu does not report them."""


def torch_npu_is_older() -> bool:
    """Return whether torch_npu is older than 2.10, and ignores torch's general settings.

    Nothing is imported. Observed in 2.7.1.post11 and 2.9.0.post9, against 2.10.0.post7.
    """
    try:
        version = importlib.metadata.version("torch_npu")
        return tuple(int(part) for part in version.split(".")[:2]) < (2, 10)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False


def environment_settings(backend: str) -> dict[str, str]:
    """Return the settings that the process was started with; none if they are malformed."""
    names = [VARIABLE[backend], "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"]
    if backend == "npu" and torch_npu_is_older():
        names = names[:1]
    with contextlib.suppress(ConfigError):
        return parse_settings(next((os.environ[name] for name in names if name in os.environ), ""))
    return {}


def _snapshot_settings() -> dict[str, Any]:
    import torch

    # pytracer may have replaced `_snapshot()`, and `memory_snapshot()` of torch 2.12 leaks a
    # reference with each call.
    try:
        snapshot: dict[str, Any] = torch._C._cuda_memorySnapshot(None)
    except TypeError:  # an older torch cannot select a pool
        snapshot = torch._C._cuda_memorySnapshot()
    found: dict[str, Any] = snapshot.get("allocator_settings", {})
    return found


def _shown_values() -> dict[str, Any]:
    """Return the values that CUDA's allocator shows, by the settings' names."""
    found = _snapshot_settings()
    return {key: found[name] for key, (name, _) in SHOWN.items() if name in found}


def reset_by(backend: str, change: dict[str, str], whole: dict[str, str]) -> str | None:
    """Return a setting that the allocator would reset to its default with this change, or None."""
    if backend == "cuda" or _general_setter(backend) is not None:
        return None
    return next((key for key in BACK_TO_DEFAULT if key in whole.keys() - change.keys()), None)


def send(backend: str, change: dict[str, str], whole: dict[str, str]) -> None:
    """Send all settings to the allocator, `change` among them. The allocator's errors propagate."""
    if backend == "npu":
        # torch_npu's own function refuses settings that it cannot change, which the settings in
        # force may include. The general function accepts everything.
        torch_module(backend).memory._set_allocator_settings(format_settings(change))
        _changed.update(change)
        kept = parse_settings(_reported_settings(backend)).get("expandable_segments")
        requested = change.get("expandable_segments", kept)
        if kept != requested:  # the driver has no expandable segments
            raise PytracerError(
                f"torch_npu set expandable_segments:{kept} instead of "
                f"expandable_segments:{requested}; its driver may lack support"
            )
    send_back(backend, {}, format_settings(whole))


def send_back(backend: str, change: dict[str, str], text: str) -> None:
    """Restore earlier settings: `text`, or only `change` where nothing else is possible."""
    memory = torch_module(backend).memory
    general = _general_setter(backend)
    if general is not None:
        general(text)
    elif backend == "cuda":
        memory._set_allocator_settings(text)
    elif change:
        memory._set_allocator_settings(format_settings(change))
    _changed.update(change)


def _general_setter(backend: str) -> Callable[[str], object] | None:
    """Return the function that newer versions of torch have for all devices, or None."""
    import torch

    if backend == "npu" and torch_npu_is_older():
        return None
    name = "_accelerator_setAllocatorSettings"
    function: Callable[[str], object] | None = getattr(torch._C, name, None)
    return function


def unmet_settings(backend: str, change: dict[str, str]) -> dict[str, str | None]:
    """Return the settings whose values differ from `change`, as far as values can be seen."""
    if backend == "cuda":
        values = _shown_values()
        return {
            key: shown_value(key, values)
            for key, value in change.items()
            if key in values and not is_shown_as(key, value, values)
        }
    observed = str(_observe_expandable_segments()) if "expandable_segments" in change else "None"
    is_as_asked = observed in ("None", change.get("expandable_segments"))
    return {} if is_as_asked else {"expandable_segments": observed}


_ROOM_TO_OBSERVE = 64 * 2**20  # bytes that must be free, so that the test allocation succeeds


def _observe_expandable_segments() -> bool | None:
    """Return whether new segments of an initialised NPU are expandable; None: unknown."""
    import torch

    module = torch_module("npu")
    try:
        if not module.is_initialized() or module.mem_get_info()[0] < _ROOM_TO_OBSERVE:
            return None
        pool = module.MemPool()
        with module.use_mem_pool(pool):
            block = torch.empty(1, device="npu")
        # `pool.snapshot()` drops references of its id's numbers (2.13.0).
        segments = sys.modules["torch_npu"]._C._npu_memorySnapshot(None)["segments"]
        kinds = {bool(s["is_expandable"]) for s in segments if s["segment_pool_id"] == pool.id}
        del block  # before the pool, which then releases its segment
        return kinds.pop() if len(kinds) == 1 else None
    except Exception:  # an older torch_npu has no such pools
        return None
