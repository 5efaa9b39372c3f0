"""The running allocator's settings: what they are, and giving it others.

CUDA's allocator shows most of its values; torch_npu tells a string at most, so there an allocation
shows whether segments are expandable.
"""

import contextlib
import importlib.metadata
import os
import sys
from collections.abc import Callable
from typing import Any

from pytracer import devices
from pytracer.errors import ConfigError, PytracerError
from pytracer.settings_keys import (
    BACK_TO_DEFAULT,
    DEFAULTS,
    KNOWN,
    SHOWN,
    VARIABLE,
    is_shown_as,
    joined,
    parsed,
    shown,
)


def in_force(backend: str) -> str:
    """The settings in force, as its variable has them; nothing is initialised.

    The allocator tells the string that was *tried* last. What was refused of it, and what an
    earlier one set that it does not name, follows from the values that CUDA's allocator shows.
    """
    text = _told(backend)
    values = _shown_values() if backend == "cuda" else {}
    try:
        items = parsed(text)
    except ConfigError:  # which was refused
        text, items = "", {}
    accepted = KNOWN | of_environment(backend).keys()
    right = {key: value for key, value in items.items() if key in accepted}
    for key in values:
        value = right.get(key, DEFAULTS.get(key))
        if value is None or not is_shown_as(key, value, values):
            right[key] = shown(key, values) or ""
    right = {key: value for key, value in right.items() if value}
    return text if right == items else joined(right)


def _told(backend: str) -> str:
    """The string that the allocator tells, as far as it can be asked."""
    module = devices.torch_module(backend)
    import torch

    ask = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    if backend == "npu":
        if ask is None or torch_npu_is_older():
            return joined(of_environment(backend) | _changed)
        if not (_changed or module.is_initialized()):
            return joined(of_environment(backend))  # torch_npu has not looked at it yet
    return str(_snapshot_settings().get("PYTORCH_CUDA_ALLOC_CONF", "") if ask is None else ask())


_changed: dict[str, str] = {}
"""What torch_npu was given here; an older one cannot be asked."""


def torch_npu_is_older() -> bool:
    """Whether it is one before 2.10, whose settings have nothing to do with torch's general ones.

    Nothing is imported. Seen in 2.7.1.post11 and 2.9.0.post9, against 2.10.0.post7.
    """
    try:
        version = importlib.metadata.version("torch_npu")
        return tuple(int(part) for part in version.split(".")[:2]) < (2, 10)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False


def of_environment(backend: str) -> dict[str, str]:
    """The settings that the process was started with; none, where they are malformed."""
    names = [VARIABLE[backend], "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"]
    if backend == "npu" and torch_npu_is_older():
        names = names[:1]
    with contextlib.suppress(ConfigError):
        return parsed(next((os.environ[name] for name in names if name in os.environ), ""))
    return {}


def _snapshot_settings() -> dict[str, Any]:
    import torch

    # Not `_snapshot()`, in whose place pytracer may stand; nor `memory_snapshot()`, which in torch
    # 2.12 gives a reference away with each call.
    try:
        snapshot: dict[str, Any] = torch._C._cuda_memorySnapshot(None)
    except TypeError:  # older torch: of no pool but all
        snapshot = torch._C._cuda_memorySnapshot()
    found: dict[str, Any] = snapshot.get("allocator_settings", {})
    return found


def _shown_values() -> dict[str, Any]:
    """The values that CUDA's allocator shows, by the names that settings have."""
    found = _snapshot_settings()
    return {key: found[name] for key, (name, _) in SHOWN.items() if name in found}


def lost_by(backend: str, change: dict[str, str], whole: dict[str, str]) -> str | None:
    """A setting that the allocator would put back to its default with this change."""
    if backend == "cuda" or _general(backend) is not None:
        return None
    return next((key for key in BACK_TO_DEFAULT if key in whole.keys() - change.keys()), None)


def send(backend: str, change: dict[str, str], whole: dict[str, str]) -> None:
    """Puts all settings in force, `change` among them; what the allocator raises goes through."""
    if backend == "npu":
        # torch_npu's own function refuses what it cannot change, and so what was in force before;
        # the general one takes everything.
        devices.torch_module(backend).memory._set_allocator_settings(joined(change))
        _changed.update(change)
        kept = parsed(_told(backend)).get("expandable_segments")
        if kept != change.get("expandable_segments", kept):  # the driver has none
            raise PytracerError(f"torch_npu made expandable_segments:{kept} of it")
    send_back(backend, {}, joined(whole))


def send_back(backend: str, change: dict[str, str], text: str) -> None:
    """Puts settings in force that were so before: `text`, or `change` where that is all one can."""
    memory = devices.torch_module(backend).memory
    general = _general(backend)
    if general is not None:
        general(text)
    elif backend == "cuda":
        memory._set_allocator_settings(text)
    elif change:
        memory._set_allocator_settings(joined(change))
    _changed.update(change)


def _general(backend: str) -> Callable[[str], object] | None:
    """The function that torch has for all devices, since 2.9 or so."""
    import torch

    if backend == "npu" and torch_npu_is_older():
        return None
    function: Callable[[str], object] | None = getattr(
        torch._C, "_accelerator_setAllocatorSettings", None
    )
    return function


def unmet(backend: str, change: dict[str, str]) -> dict[str, str | None]:
    """What is in force instead of what was asked for, as far as it can be seen."""
    if backend == "cuda":
        values = _shown_values()
        return {
            key: shown(key, values)
            for key, value in change.items()
            if key in values and not is_shown_as(key, value, values)
        }
    if "expandable_segments" in change:
        observed = str(_observed())
        if observed not in ("None", change["expandable_segments"]):
            return {"expandable_segments": observed}
    return {}


_ROOM_TO_OBSERVE = 64 * 2**20  # bytes that are free, so that no out-of-memory comes of it


def _observed() -> bool | None:
    """Whether segments that an initialised NPU makes are expandable; None: can't be seen."""
    import torch

    module = devices.torch_module("npu")
    try:
        if not module.is_initialized() or module.mem_get_info()[0] < _ROOM_TO_OBSERVE:
            return None
        pool = module.MemPool()
        with module.use_mem_pool(pool):
            block = torch.empty(1, device="npu")
        # Not `pool.snapshot()`, which takes references of its id's numbers away (2.13.0).
        segments = sys.modules["torch_npu"]._C._npu_memorySnapshot(None)["segments"]
        kinds = {bool(s["is_expandable"]) for s in segments if s["segment_pool_id"] == pool.id}
        del block  # before the pool, which then gives its segment back
        return kinds.pop() if len(kinds) == 1 else None
    except Exception:  # an older torch_npu has no such pools
        return None
