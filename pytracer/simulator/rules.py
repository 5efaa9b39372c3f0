"""The rules of an allocator under its settings, as numbers for the simulator."""

import re
from dataclasses import dataclass, replace

from pytracer.analysis.allocator_rules import INTERVALS, PADDING_BYTES, PAGE_BYTES, UNLIMITED
from pytracer.errors import ConfigError
from pytracer.settings.keys import KNOWN
from pytracer.text import did_you_mean
from pytracer.variables import parse_settings

_MIB = 2**20

CHECKED: dict[str, tuple[str, ...]] = {"cuda": ("2.12.1", "2.15.0"), "npu": ("2.13.0", "2.14.0")}
"""The versions of torch, or of torch_npu, whose allocators tests compare with the simulator."""

_NPU_ALIGNMENT_BYTES = 16 * 2**10

_NEW_KEYS = {
    "expandable_segments_reserve": (2, 15),
    "expandable_segments_reserve_by_class": (2, 15),
}
"""The settings that older releases refuse, with the first release that has them."""

_PAGES = ("page_size", "segment_size_mb", "base_addr_aligned_kb")
_NOT_SIMULATED = (*_PAGES, "per_process_memory_fraction")

_LEAST_SPLIT_MB = 20  # max_split_size_mb must be larger
_DIVISIONS = "roundup_power2_divisions"


@dataclass(frozen=True)
class AllocatorRules:
    """The numbers by which an allocator places blocks, as in csrc/simulator/rules.h."""

    padding_bytes: int = 0
    max_split_bytes: int = UNLIMITED  # free blocks of this size or more are not split
    # Such blocks serve requests that are smaller by less than this.
    max_rounding_bytes: int = PAGE_BYTES
    # The size of segments that several requests of more than 1 MiB share.
    large_segment_bytes: int = PAGE_BYTES
    large_page_bytes: int = PAGE_BYTES
    # The part of the memory fraction above which blocks that have not been used for long are given
    # back; 0 for none.
    collection_threshold: float = 0.0
    # Whether the allocator waits for the device before it gives such blocks, or blocks of
    # `max_split_bytes`, back (NPU).
    waits_to_release: bool = False
    expandable: bool = False
    range_factor: float = 1.125
    range_bytes: int = 0
    # The `Tie` of several free blocks of the same size: "address", "creation" or "segment".
    tie: str = "creation"
    alignment_bytes: int = 0
    pools_give_back: bool = True
    # Into how many parts each of the 16 powers of two from 1 MiB on is divided; 0: it is not
    # divided.
    divisions: tuple[int, ...] = (0,) * INTERVALS


def rules_of(settings: str, backend: str, torch_version: str | None) -> AllocatorRules:
    """Return the rules of an allocator.

    Args:
        settings: The settings, in the form of PYTORCH_ALLOC_CONF. Settings that do not change where
            blocks are placed have no effect.
        backend: "cuda" or "npu".
        torch_version: The version of torch, or of torch_npu for "npu", as in "2.12.1+cu130"; None
            for the newest that the simulator knows. Rules of an unknown version are those of the
            nearest known one: see `is_checked`.

    Raises:
        ConfigError: A setting is unknown, has a value that the allocator refuses, or selects an
            allocator that is not simulated.
    """
    if backend not in CHECKED:
        raise ConfigError(f'backend "{backend}" is not simulated; use "cuda" or "npu"')
    version = _version(torch_version)
    is_npu = backend == "npu"
    rules = AllocatorRules(
        padding_bytes=PADDING_BYTES if is_npu else 0,
        tie=_tie(backend, version),
        waits_to_release=is_npu,
        alignment_bytes=_NPU_ALIGNMENT_BYTES if is_npu else 0,
        pools_give_back=is_npu or version is None or version >= (2, 15),
    )
    for key, value in parse_settings(settings).items():
        since = _NEW_KEYS.get(key)
        is_new = since is not None and version is not None and version < since
        if key not in KNOWN or is_new or (since is not None and is_npu):
            raise ConfigError(
                f"the {backend.upper()} allocator of version {torch_version or '?'} has no setting "
                f'"{key}"{did_you_mean(key, KNOWN - {key}) or "; remove it"}'
            )
        rules = _changed(rules, key, value)
    if is_npu and rules.expandable and rules.max_split_bytes != UNLIMITED:
        raise ConfigError(
            "torch_npu refuses max_split_size_mb together with expandable_segments:True; remove one"
        )
    return rules


def makes_same_segments(rules: AllocatorRules, settings: str) -> bool:
    """Return whether an allocator with other settings makes segments of the same kind and size.

    Raises:
        ConfigError: The settings are malformed.
    """
    other = AllocatorRules()
    for key, value in parse_settings(settings).items():
        if key in ("expandable_segments", "large_segment_size_mb"):
            other = _changed(other, key, value)
    is_same_kind = rules.expandable == other.expandable
    return is_same_kind and rules.large_segment_bytes == other.large_segment_bytes


def is_checked(backend: str, torch_version: str | None) -> bool:
    """Return whether tests compare the simulator with this version's allocator."""
    number = (torch_version or "").partition("+")[0].partition(".post")[0]
    return number in CHECKED.get(backend, ())


def _version(text: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return None if found is None else (int(found[1]), int(found[2]))


def _tie(backend: str, version: tuple[int, int] | None) -> str:
    if backend == "npu" or (version is not None and version < (2, 12)):
        return "address"
    return "creation" if version is not None and version < (2, 15) else "segment"


def _changed(rules: AllocatorRules, key: str, value: str) -> AllocatorRules:
    if key in ("max_split_size_mb", "max_non_split_rounding_mb"):
        size = _megabytes(key, value)
        _check(size > _LEAST_SPLIT_MB * _MIB, key, value, f"more than {_LEAST_SPLIT_MB}")
        if key == "max_split_size_mb":
            return replace(rules, max_split_bytes=size)
        return replace(rules, max_rounding_bytes=size)
    if key == "large_segment_size_mb":
        size = _megabytes(key, value)
        _check(2 * _MIB <= size < 2**40, key, value, "at least 2")
        return replace(rules, large_segment_bytes=size, large_page_bytes=size)
    if key == "garbage_collection_threshold":
        threshold = _number(key, value)
        _check(0 < threshold < 1, key, value, "between 0 and 1")
        return replace(rules, collection_threshold=threshold)
    if key == _DIVISIONS:
        return replace(rules, divisions=_divisions(value))
    if key == "expandable_segments":
        _check(value in ("True", "False"), key, value, "True or False")
        return replace(rules, expandable=value == "True")
    if key == "expandable_segments_reserve":
        return _with_range(rules, key, value)
    if key == "backend" and value != "native":
        raise ConfigError(f'backend:{value} is not simulated; the simulator has "native" only')
    if key in _NOT_SIMULATED:
        raise ConfigError(f"the setting {key} is not simulated; remove it")
    return rules


def _with_range(rules: AllocatorRules, key: str, value: str) -> AllocatorRules:
    if value[-1:] in "Gg":
        size = int(_number(key, value[:-1]) * 2**30)
        _check(0 < size < 2**50, key, value, "a positive number")
        return replace(rules, range_bytes=size)
    factor = _number(key, value)
    wanted = "a share of the device (at most 1.125), or gibibytes as in 40G"
    _check(0 < factor <= 1.125, key, value, wanted)
    return replace(rules, range_factor=factor)


def _divisions(value: str) -> tuple[int, ...]:
    """Return the divisions of each interval: intervals below the first named one have its value."""
    if not value.startswith("["):
        return (_parts(value, value),) * INTERVALS
    found = [0] * INTERVALS
    last = -1
    for item in value[1:-1].split(","):
        size, _, count = item.partition(":")
        parts = _parts(count, value)
        if size == ">":
            found[last + 1 :] = [parts] * (INTERVALS - last - 1)
            continue
        megabytes = _count(_DIVISIONS, size)
        _check(megabytes.bit_count() == 1, _DIVISIONS, value, "sizes that are powers of two")
        index = min(megabytes.bit_length() - 1, INTERVALS - 1)
        if last < 0:
            found[:index] = [parts] * index
        found[index] = parts
        last = index
    return tuple(found)


def _parts(text: str, value: str) -> int:
    parts = _count(_DIVISIONS, text)
    is_power = parts.bit_count() <= 1 and parts <= 2**32
    _check(is_power, _DIVISIONS, value, "divisions that are powers of two")
    return parts


def _count(key: str, text: str) -> int:
    _check(re.fullmatch(r"\d{1,18}", text), key, text, "a number")
    return int(text)


def _megabytes(key: str, text: str) -> int:
    return min(_count(key, text) * _MIB, UNLIMITED)


def _number(key: str, text: str) -> float:
    _check(re.fullmatch(r"\d{1,18}|\d{0,18}\.\d{1,18}", text), key, text, "a number")
    return float(text)


def _check(is_right: object, key: str, value: str, wanted: str) -> None:
    if not is_right:
        raise ConfigError(f"{key}:{value} cannot be simulated: the value must be {wanted}")
