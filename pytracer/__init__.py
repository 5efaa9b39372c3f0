"""pytracer: a flight recorder for accelerator memory in PyTorch.

    with pytracer.Tracer("snapshot.pickle") as tracer:
        train()

Importing this package imports neither torch nor the recorder; a `Tracer` does.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from pytracer.errors import ConfigError, HookError, PytracerError

if TYPE_CHECKING:
    from pytracer.tracer import ACTIONS, Tracer

try:
    __version__ = version("torch-pytracer")
except PackageNotFoundError:  # running from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = ["ACTIONS", "ConfigError", "HookError", "PytracerError", "Tracer", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("Tracer", "ACTIONS"):
        from pytracer import tracer

        return getattr(tracer, name)
    raise AttributeError(f"module 'pytracer' has no attribute {name!r}")
