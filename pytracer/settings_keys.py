"""What allocators' settings are called, how CUDA's shows them, and what its errors mean.

The names, defaults and limits are those of torch 2.6 to 2.15 and torch_npu 2.13.
"""

import difflib
import re
import sys
from collections.abc import Callable
from typing import Any

from pytracer.errors import ConfigError, PytracerError

VARIABLE = {"cuda": "PYTORCH_CUDA_ALLOC_CONF", "npu": "PYTORCH_NPU_ALLOC_CONF"}

DEFAULTS = {
    "backend": "native",
    "expandable_segments": "False",
    "expandable_segments_reserve": "1.125",
    "graph_capture_record_stream_reuse": "False",
    "large_segment_size_mb": "20",
    "max_non_split_rounding_mb": "20",
    "per_process_memory_fraction": "1.0",
    "pinned_free_catch_all": "False",
    "pinned_max_cached_size_mb": "17592186044415",  # no limit: what fits into 64 bits, in bytes
    "pinned_max_round_threshold_mb": "17592186044415",
    "pinned_num_register_threads": "1",
    "pinned_reserve_segment_size_mb": "0",
    "pinned_use_background_threads": "False",
    "pinned_use_cuda_host_register": "False",
    "release_lock_on_cudamalloc": "False",
    "release_lock_on_npumalloc": "False",
    "throw_on_cudamalloc_oom": "False",
    "throw_on_npumalloc_oom": "False",
}
"""What these are if no string ever named them. A string that does not name them leaves them alone
(some versions: but for `max_non_split_rounding_mb`)."""

BACK_TO_DEFAULT = ("max_split_size_mb", "garbage_collection_threshold", "roundup_power2_divisions")
"""What goes back to its default with each string that does not name it."""

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
    "npu": (),  # torch_npu itself says which
}
"""What CUDA's allocator takes at run time, and does not look at any more."""

_ITEM = re.compile(r"(?P<key>[^,:\[\]]+):(?P<value>[^,:\[\]]+|\[[^\[\]]+\])(?:,|$)")

_MIB = 2**20
_INTERVALS = 16  # of roundup_power2_divisions: from 1 MiB on, each twice the one before


def joined(settings: dict[str, str]) -> str:
    """The settings in one string."""
    return ",".join(f"{key}:{value}" for key, value in settings.items())


def parsed(settings: str) -> dict[str, str]:
    """The value of each key.

    Raises:
        ConfigError: `settings` are not of the form `key:value,key:[value,value]`.
    """
    text = "".join(settings.split())  # the allocators ignore blanks, wherever they are
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if item is None:
            raise ConfigError(
                f'allocator settings "{settings}" cannot be read from "{text[at:]}" on; give '
                'key:value, several with commas between them, as in "expandable_segments:True"'
            )
        found[item["key"]] = item["value"]
        at = item.end()
    return found


def _bool(value: str) -> bool:
    return {"True": True, "False": False}[value]


def _count(value: str) -> int:
    if not value.isdecimal():  # of "100x" the allocator takes the 100
        raise ValueError(value)
    return int(value)


def _bytes(value: str) -> int:
    return _limited(_count(value) * _MIB)


def _limited(size: int) -> int:
    """-1 is no limit, and so is what a device can't have."""
    return size if 0 <= size < 2**62 else -1


def _divisions(value: str) -> dict[str, int]:
    """Of the intervals that are named."""
    if not value.startswith("["):
        return {str(1 << index): _count(value) for index in range(_INTERVALS)}
    pairs = [item.split(":") for item in value[1:-1].split(",")]
    largest = 1 << (_INTERVALS - 1)
    return {str(min(_count(size), largest)): _count(each) for size, each in pairs if size != ">"}


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
"""What CUDA's allocator shows in its snapshot: under which name, and what a string's value is
there."""


def is_shown_as(key: str, value: str, values: dict[str, Any]) -> bool:
    """Whether `values`, as the allocator shows them, are what a string with `value` asks for."""
    actual = values[key]
    wanted = _meant(key, value)
    if isinstance(wanted, dict):
        return all(actual.get(interval) == each for interval, each in wanted.items())
    return bool((_limited(actual) if SHOWN[key][1] is _bytes else actual) == wanted)


def _meant(key: str, value: str) -> Any:
    """None: nothing, although CUDA's allocator may make something of it."""
    try:
        return SHOWN[key][1](value)
    except (KeyError, ValueError):
        return None


def not_in_force(change: dict[str, str], unmet: dict[str, str | None]) -> PytracerError:
    """The error for settings that were taken, but have other values (`unmet`) afterwards."""
    asked = joined({key: change[key] for key in unmet})
    actual = ", ".join(f"{key} is {value or 'the default'}" for key, value in unmet.items())
    told = f'the allocator took "{asked}" without an error, but {actual}'
    if wrong := [change[key] for key in unmet if key in SHOWN and _meant(key, change[key]) is None]:
        return ConfigError(f"{told}; give another value than {wrong[0]}")
    return PytracerError(f"{told}; it cannot be changed here")


def shown(key: str, values: dict[str, Any]) -> str | None:
    """What a string has to say for `values` to be what they are; None: it must not name the key."""
    actual = values[key]
    if key == "roundup_power2_divisions":
        return (
            f"[{','.join(f'{size}:{n}' for size, n in actual.items())}]"
            if any(actual.values())
            else None
        )
    if SHOWN[key][1] is _bytes:
        size = _limited(actual)
        return DEFAULTS.get(key) if size < 0 else str(size // _MIB)
    if key == "garbage_collection_threshold" and not actual:
        return None
    return str(actual)


def refusal(backend: str, change: dict[str, str], told: str) -> ConfigError:
    """What the allocator's error about these settings means, and what to do about it."""
    lines = told.strip().splitlines() or ["no reason"]
    told = lines[0].rpartition("please report a bug to PyTorch. ")[2].strip().rstrip(",. ")
    unknown = re.search(r"Unrecognized (?:key|CachingAllocator option:?) '?(\w+)", told)
    if unknown:
        return _unknown(backend, change, unknown[1], told)
    fixed = re.search(r"unsupported setting: (\w+)", told)
    if fixed:
        key = fixed[1]
        value = change.get(key, "...")
        return ConfigError(
            f"torch_npu cannot change {key} while the program runs ({told}); start the program "
            f"with {VARIABLE[backend]}={key}:{value}"
        )
    if re.fullmatch(r"sto\w+|invalid \w+ argument|.*out of range.*", told):
        wrong = [f"{key}:{value}" for key, value in change.items() if not _has_number(value)]
        told = f"a number is expected ({told})"
    else:
        wrong = [f"{key}:{value}" for key, value in change.items() if key in told]
        wrong = wrong or [f"{key}:{value}" for key, value in change.items() if f"'{value}'" in told]
    about = wrong[0] if len(wrong) == 1 else joined(change)
    return ConfigError(f'the {backend.upper()} allocator refuses "{about}": {told}')


def _unknown(backend: str, change: dict[str, str], key: str, told: str) -> ConfigError:
    torch = sys.modules.get("torch")
    version = f" of torch {torch.__version__}" if torch is not None else ""
    near = difflib.get_close_matches(key, KNOWN - {key}, n=1, cutoff=0.7)
    if key not in change:
        hint = ", which it was started with; correct its environment variable"
    elif key in KNOWN:
        hint = "; another version or device has it"
    elif near:
        hint = f"; did you mean {near[0]}?"
    else:
        hint = "; the settings are in torch's notes on CUDA, under PYTORCH_ALLOC_CONF"
    return ConfigError(
        f'the {backend.upper()} allocator{version} has no setting "{key}" ({told}){hint}'
    )


def _has_number(value: str) -> bool:
    return all(
        each in ("", ">", "True", "False") or re.fullmatch(r"\d{1,18}|\d*\.\d+", each)
        for each in re.split(r"[\[\]:,]", value)
    )
