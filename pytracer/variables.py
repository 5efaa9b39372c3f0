"""The environment variables of the allocators' settings, and the form of their values.

These names work in every version of torch and torch_npu: docs/reference/allocator-settings.md.
"""

import contextlib
import re
import shlex
from collections.abc import Mapping

from pytracer.errors import ConfigError

VARIABLE = {"cuda": "PYTORCH_CUDA_ALLOC_CONF", "npu": "PYTORCH_NPU_ALLOC_CONF"}

_ITEM = re.compile(r"(?P<key>[^,:\[\]]+):(?P<value>[^,:\[\]]+|\[[^\[\]]+\])(?:,|$)")


def format_settings(settings: dict[str, str]) -> str:
    """Return the settings in one string."""
    return ",".join(f"{key}:{value}" for key, value in settings.items())


def parse_settings(settings: str) -> dict[str, str]:
    """Return the value of each key; the last value of a repeated key counts.

    Raises:
        ConfigError: `settings` are not of the form `key:value,key:[value,value]`.
    """
    text = "".join(settings.split())  # the allocators ignore blanks everywhere
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        item = _ITEM.match(text, at)
        if item is None:
            raise ConfigError(
                f'allocator settings "{settings}" are malformed from "{text[at:]}" onwards; write '
                'key:value pairs with commas between them, as in "expandable_segments:True"'
            )
        found[item["key"]] = item["value"]
        at = item.end()
    return found


def merge_settings(settings: str, change: str) -> str:
    """Return the settings after `change`. Keys keep their order, and new keys come last."""
    return format_settings(parse_settings(settings) | parse_settings(change))


_GENERAL = "PYTORCH_ALLOC_CONF"
_NOT_WITH_EXPANDABLE = {"npu": ("max_split_size_mb", "garbage_collection_threshold")}


def with_settings(own: str, change: Mapping[str, str], backend: str) -> str:
    """Return settings with a change, in the form of the variable.

    The other settings stay, except those that the allocator refuses next to expandable segments, or
    all of a text that no allocator can read.
    """
    settings: dict[str, str] = {}
    with contextlib.suppress(ConfigError):
        settings |= parse_settings(own)
    settings |= change
    if settings.get("expandable_segments") == "True":
        for key in _NOT_WITH_EXPANDABLE.get(backend, ()):
            settings.pop(key, None)
    return format_settings(settings)


def command_of(settings: str, backend: str, torch_version: str | None, own_settings: str) -> str:
    """Return the line to paste into a shell.

    torch before 2.10 ignores the general variable (2.9 knows its name only, see its issue 183387),
    and later versions call the older name
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
        if version >= (2, 10) and (version < (2, 12) or not own_settings):
            variable = _GENERAL
    return f"export {variable}={shlex.quote(settings)}"
