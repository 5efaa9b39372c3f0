"""The names of allocator settings, how CUDA's allocator shows them, and what errors mean.

The names, defaults and limits are those of torch 2.6 to 2.15 and torch_npu 2.13.
"""

import re
import sys
from collections.abc import Callable
from typing import Any

from pytracer.errors import ConfigError, PytracerError
from pytracer.text import did_you_mean
from pytracer.variables import VARIABLE, format_settings

_OFF = """expandable_segments graph_capture_record_stream_reuse pinned_free_catch_all
    pinned_use_background_threads pinned_use_cuda_host_register release_lock_on_cudamalloc
    release_lock_on_npumalloc throw_on_cudamalloc_oom throw_on_npumalloc_oom"""
DEFAULTS = {
    **dict.fromkeys(_OFF.split(), "False"),
    "backend": "native",
    "expandable_segments_reserve": "1.125",
    "large_segment_size_mb": "20",
    "max_non_split_rounding_mb": "20",
    "per_process_memory_fraction": "1.0",
    "pinned_max_cached_size_mb": "17592186044415",  # no limit: what fits into 64 bits, in bytes
    "pinned_max_round_threshold_mb": "17592186044415",
    "pinned_num_register_threads": "1",
    "pinned_reserve_segment_size_mb": "0",
}
"""The values of settings that no string ever named. A string that does not name one of these keys
leaves it unchanged (in some versions all but `max_non_split_rounding_mb`)."""

BACK_TO_DEFAULT = ("max_split_size_mb", "garbage_collection_threshold", "roundup_power2_divisions")
"""The settings that each string resets to the default if the string does not name them."""

KNOWN = {
    *DEFAULTS,
    *BACK_TO_DEFAULT,
    "base_addr_aligned_kb",
    "expandable_segments_reserve_by_class",
    "multi_stream_lazy_reclaim",
    "page_size",
    "pin_memory_expandable_segments",
    "pinned_mem_register",
    "pinned_use_hip_host_register",
    "release_lock_on_hipmalloc",
    "segment_size_mb",
}

READ_ONCE = {
    "cuda": (
        "backend",
        "per_process_memory_fraction",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
    ),
    "npu": (),  # torch_npu's own errors name them
}
"""The settings that CUDA's allocator accepts at run time without effect."""

_MIB = 2**20
_INTERVALS = 16  # of roundup_power2_divisions, from 1 MiB on, each twice as large as the previous
_bool = {"True": True, "False": False}.__getitem__


def _count(value: str) -> int:
    if not value.isdecimal():  # the allocator reads "100x" as 100
        raise ValueError(value)
    return int(value)


def _bytes(value: str) -> int:
    return _limited(_count(value) * _MIB)


def _limited(size: int) -> int:
    """Return a size, or -1 (no limit) for a size that no device has."""
    return size if 0 <= size < 2**62 else -1


def _divisions(value: str) -> dict[str, int]:
    """Return the divisions of the named intervals."""
    if not value.startswith("["):
        return {str(1 << index): _count(value) for index in range(_INTERVALS)}
    pairs = [item.split(":") for item in value[1:-1].split(",")]
    largest = 1 << (_INTERVALS - 1)
    return {
        str(min(_count(size), largest)): _count(divisions)
        for size, divisions in pairs
        if size != ">"
    }


SHOWN: dict[str, tuple[str, Callable[[str], Any]]] = {
    "expandable_segments": ("expandable_segments", _bool),
    "garbage_collection_threshold": ("garbage_collection_threshold", float),
    "graph_capture_record_stream_reuse": ("graph_capture_record_stream_reuse", _bool),
    "max_split_size_mb": ("max_split_size", _bytes),
    "pinned_max_cached_size_mb": ("max_cached_size", _bytes),
    "pinned_max_round_threshold_mb": ("max_round_threshold", _bytes),
    "pinned_num_register_threads": ("pinned_num_register_threads", _count),
    "pinned_use_cuda_host_register": ("pinned_use_cuda_host_register", _bool),
    "release_lock_on_cudamalloc": ("release_lock_on_cudamalloc", _bool),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
}
"""The settings that CUDA's allocator shows in its snapshot: the name there, and the function that
converts a string's value to the value there."""


def is_shown_as(key: str, value: str, values: dict[str, Any]) -> bool:
    """Return whether `values`, as the allocator shows them, agree with a string's `value`."""
    actual = values[key]
    wanted = _expected_value(key, value)
    if isinstance(wanted, dict):
        return all(actual.get(interval) == count for interval, count in wanted.items())
    return bool((_limited(actual) if SHOWN[key][1] is _bytes else actual) == wanted)


def _expected_value(key: str, value: str) -> Any:
    """Return the value that a string asks for; None if the string is malformed.

    CUDA's allocator may accept such a string all the same.
    """
    try:
        return SHOWN[key][1](value)
    except (KeyError, ValueError):
        return None


def not_in_force_error(change: dict[str, str], unmet: dict[str, str | None]) -> PytracerError:
    """Return the error for settings that were accepted, but have other values (`unmet`)."""
    asked = format_settings({key: change[key] for key in unmet})
    actual = ", ".join(f"{key} is {value or 'the default'}" for key, value in unmet.items())
    problem = f'the allocator accepted "{asked}" without an error, but {actual}'
    if wrong := [
        change[key] for key in unmet if key in SHOWN and _expected_value(key, change[key]) is None
    ]:
        return ConfigError(f"{problem}; give another value than {wrong[0]}")
    return PytracerError(f"{problem}; it cannot be changed here")


def shown_value(key: str, values: dict[str, Any]) -> str | None:
    """Return the value in a string that has the effect `values`; None: the string omits the key."""
    actual = values[key]
    if key == "roundup_power2_divisions":
        intervals = ",".join(f"{size}:{divisions}" for size, divisions in actual.items())
        return f"[{intervals}]" if any(actual.values()) else None
    if SHOWN[key][1] is _bytes:
        size = _limited(actual)
        return DEFAULTS.get(key) if size < 0 else str(size // _MIB)
    return None if key == "garbage_collection_threshold" and not actual else str(actual)


def refusal(backend: str, change: dict[str, str], message: str) -> ConfigError:
    """Return the error that explains the allocator's `message` about these settings."""
    lines = message.strip().splitlines() or ["no reason"]
    reason = lines[0].rpartition("please report a bug to PyTorch. ")[2].strip().rstrip(",. ")
    unknown = re.search(r"Unrecognized (?:key|CachingAllocator option:?) '?(\w+)", reason)
    if unknown:
        return _unknown(backend, change, unknown[1], reason)
    if fixed := re.search(r"unsupported setting: (\w+)", reason):
        key = fixed[1]
        return ConfigError(
            f"torch_npu cannot change {key} while the program runs ({reason}); start the program "
            f"with {VARIABLE[backend]}={key}:{change.get(key, '...')}"
        )
    if re.fullmatch(r"sto\w+|invalid \w+ argument|.*out of range.*", reason):
        wrong = {key: value for key, value in change.items() if not _has_number(value)}
        reason = f"a number is expected ({reason})"
    else:
        wrong = {key: value for key, value in change.items() if key in reason}
        wrong = wrong or {key: value for key, value in change.items() if f"'{value}'" in reason}
    settings = format_settings(wrong if len(wrong) == 1 else change)
    return ConfigError(f'the {backend.upper()} allocator refuses "{settings}": {reason}')


def _unknown(backend: str, change: dict[str, str], key: str, reason: str) -> ConfigError:
    torch = sys.modules.get("torch")
    version = f" of torch {torch.__version__}" if torch is not None else ""
    if key not in change:
        hint = ", which the process was started with; correct the environment variable"
    elif key in KNOWN:
        hint = "; another version or device has it"
    else:
        notes = "; torch's notes on CUDA list the settings, under PYTORCH_ALLOC_CONF"
        hint = did_you_mean(key, KNOWN) or notes
    return ConfigError(
        f'the {backend.upper()} allocator{version} has no setting "{key}" ({reason}){hint}'
    )


def _has_number(value: str) -> bool:
    return all(
        part in ("", ">", "True", "False") or re.fullmatch(r"\d{1,18}|\d*\.\d+", part)
        for part in re.split(r"[\[\]:,]", value)
    )
