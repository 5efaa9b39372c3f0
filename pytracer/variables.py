"""The environment variables of the allocators' settings, and the form of their values.

These names work in every version of torch and torch_npu: docs/reference/allocator-settings.md.
"""

import re

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
                f'allocator settings "{settings}" cannot be read from "{text[at:]}" on; write '
                'key:value pairs with commas between them, as in "expandable_segments:True"'
            )
        found[item["key"]] = item["value"]
        at = item.end()
    return found


def merge_settings(settings: str, change: str) -> str:
    """Return the settings after `change`. Keys keep their order, and new keys come last."""
    return format_settings(parse_settings(settings) | parse_settings(change))
