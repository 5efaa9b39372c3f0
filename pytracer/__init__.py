"""pytracer: a flight recorder for accelerator memory in PyTorch.

    with pytracer.Tracer("snapshot.pickle") as tracer:
        train()

Importing this package imports nothing else, because each `import torch` imports it to look at
`PYTRACER`. Its names are imported when they are used.

PYTEST_DONT_REWRITE: with PYTRACER=1, this module is imported before pytest is, which would warn.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pytracer.commands.show_answer import show as show
    from pytracer.errors import ConfigError as ConfigError
    from pytracer.errors import HookError as HookError
    from pytracer.errors import PytracerError as PytracerError
    from pytracer.experiments.function_experiment import experiment as experiment
    from pytracer.fitting.fit import fit as fit
    from pytracer.rehearsal.dry_run import dry_run as dry_run
    from pytracer.settings.change import allocator_settings as allocator_settings
    from pytracer.settings.change import expandable_segments as expandable_segments
    from pytracer.torch_recorder.patch import patch_torch as patch_torch
    from pytracer.torch_recorder.patch import unpatch_torch as unpatch_torch
    from pytracer.tracing.phases import annotate as annotate
    from pytracer.tracing.tracer import Tracer as Tracer
    from pytracer.tracing.training_phases import annotate_modules as annotate_modules

    __version__: str

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "workspace_snapshot",
    "annotate",
)
"""The names of the actions of allocator events, by value, as in csrc/hooks/hook_abi.h
(`enum pytracer_action`) and csrc/reading/allocator_rules.h."""

_HOMES = {
    "ConfigError": "errors",
    "HookError": "errors",
    "PytracerError": "errors",
    "Tracer": "tracing.tracer",
    "allocator_settings": "settings.change",
    "annotate": "tracing.phases",
    "annotate_modules": "tracing.training_phases",
    "dry_run": "rehearsal.dry_run",
    "expandable_segments": "settings.change",
    "experiment": "experiments.function_experiment",
    "fit": "fitting.fit",
    "patch_torch": "torch_recorder.patch",
    "show": "commands.show_answer",
    "unpatch_torch": "torch_recorder.patch",
}
"""Where the public names are defined."""

__all__ = ["ACTIONS", "__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name == "__version__":
        import contextlib
        from importlib import metadata

        value: object = "0+unknown"  # of a source tree that is not installed
        with contextlib.suppress(metadata.PackageNotFoundError):
            value = metadata.version("torch-pytracer")
    elif name in _HOMES:
        import importlib
        import importlib.util

        try:
            value = getattr(importlib.import_module(f"pytracer.{_HOMES[name]}"), name)
        except ImportError as error:
            if importlib.util.find_spec("pytracer._core") is not None:
                raise
            raise ImportError(
                f"Python imports the sources in {__path__[0]}, not the installed package. Start "
                "the program in another folder, or install the package with `pip install .`"
            ) from error
    else:
        raise AttributeError(f"module 'pytracer' has no attribute {name!r}")
    globals()[name] = value
    return value


def load_ipython_extension(shell: object) -> None:
    """Define `%%pytracer`: IPython calls this function for `%load_ext pytracer`."""
    from pytracer.integrations.ipython import load

    load(shell)


def __dir__() -> list[str]:
    """Return the public names, for `dir()` and tab completion; few are imported until used."""
    return sorted(__all__)
