"""The line that sets the allocator's settings, to paste into a shell."""

import contextlib
import shlex
from collections.abc import Mapping

from pytracer.errors import ConfigError
from pytracer.variables import VARIABLE, format_settings, parse_settings

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
