"""pytracer: a flight recorder for accelerator memory in PyTorch.

    with pytracer.Tracer("snapshot.pickle") as tracer:
        train()

Importing this package imports nothing: every `import torch` does it, to look at `PYTRACER`. Its
names are imported when they are used.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pytracer.actions import ACTIONS
    from pytracer.errors import ConfigError, HookError, PytracerError
    from pytracer.experiments import experiment
    from pytracer.phases import annotate
    from pytracer.settings import allocator_settings, expandable_segments
    from pytracer.torch_patch import patch_torch, unpatch_torch
    from pytracer.tracer import Tracer

    __version__: str

__all__ = [
    "ACTIONS",
    "ConfigError",
    "HookError",
    "PytracerError",
    "Tracer",
    "__version__",
    "allocator_settings",
    "annotate",
    "expandable_segments",
    "experiment",
    "patch_torch",
    "unpatch_torch",
]

_HOMES = {
    "ACTIONS": "actions",
    "ConfigError": "errors",
    "HookError": "errors",
    "PytracerError": "errors",
    "Tracer": "tracer",
    "allocator_settings": "settings",
    "annotate": "phases",
    "expandable_segments": "settings",
    "experiment": "experiments",
    "patch_torch": "torch_patch",
    "unpatch_torch": "torch_patch",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        value: object = _version()
    elif name in _HOMES:
        import importlib

        value = getattr(importlib.import_module(f"pytracer.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module 'pytracer' has no attribute {name!r}")
    globals()[name] = value
    return value


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch-pytracer")
    except PackageNotFoundError:  # running from a source tree that is not installed
        return "0+unknown"
