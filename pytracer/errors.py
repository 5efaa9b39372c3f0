"""The exceptions of pytracer: each message names the value at fault and says what to do.

And the import of packages that may be missing.
"""

import importlib
from typing import Any


class PytracerError(Exception):
    """Base of all exceptions that pytracer raises on purpose."""


class ConfigError(PytracerError, ValueError):
    """An option has a value that cannot be used."""


class HookError(PytracerError, RuntimeError):
    """An allocator hook could not be found, built or attached, so that nothing can be recorded."""


class NoMomentError(PytracerError):
    """A device, or none of several devices, has the moment that was asked for."""


def optional(who_needs: str, *modules: str) -> list[Any]:
    """Import modules of packages that pytracer does not depend on.

    Args:
        who_needs: The beginning of the error's text, such as "tables need".
        modules: The modules.

    Raises:
        PytracerError: Packages are not installed; it names all of them.
    """
    found, missing = [], {}
    for module in modules:
        try:
            found.append(importlib.import_module(module))
        except ImportError as error:
            missing[module.partition(".")[0]] = str(error)
    if missing:
        raise PytracerError(
            f"{who_needs} {' and '.join(missing)} ({'; '.join(missing.values())}): "
            f"`pip install {' '.join(missing)}`"
        )
    return found
