"""pytracer: a flight recorder for accelerator memory in PyTorch.

    with pytracer.Tracer("snapshot.pickle") as tracer:
        train()

Importing this package imports nothing else, because each `import torch` imports it to look at
`PYTRACER`. Its names are imported when they are used.

PYTEST_DONT_REWRITE: with PYTRACER=1, this module is imported before pytest is, which would warn.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pytracer.commands.show_answer import show
    from pytracer.errors import ConfigError, HookError, PytracerError
    from pytracer.experiments.function_experiment import experiment
    from pytracer.fitting.fit import fit
    from pytracer.rehearsal.dry_run import dry_run
    from pytracer.settings.change import allocator_settings, expandable_segments
    from pytracer.torch_recorder.patch import patch_torch, unpatch_torch
    from pytracer.tracing.phases import annotate
    from pytracer.tracing.tracer import Tracer
    from pytracer.tracing.training_phases import annotate_modules

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
    "annotate_modules",
    "dry_run",
    "expandable_segments",
    "experiment",
    "fit",
    "patch_torch",
    "show",
    "unpatch_torch",
]

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
(`enum pytracer_action`) and csrc/reading/actions.h."""

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


def __getattr__(name: str) -> object:
    if name == "__version__":
        value: object = _version()
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


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch-pytracer")
    except PackageNotFoundError:  # running from a source tree that is not installed
        return "0+unknown"
