"""The functions of pytracer that Python and torch call at every start.

This module is installed next to the package, because it must not fail. The package may be partly
uninstalled, or a `pytracer.py` in the script's folder may take its place. Still, every interpreter
has to start, and every `import torch` has to succeed.

PYTEST_DONT_REWRITE: pytest looks at the modules of every distribution that has a plugin, and warns
of those that are imported already, as this one is.
"""

import os

_OFF = ("0", "false", "off", "no")


def watch() -> None:
    """Watch for torch's import.

    The line in `torch_pytracer.pth` calls this when an interpreter starts.
    """
    if _is_requested():
        try:
            from pytracer.activation import import_hook

            import_hook.watch()
            if "PYTRACER_DRY_RUN" in os.environ:
                from pytracer.rehearsal import in_program

                in_program.prepare()
        except Exception:  # `autoload` logs it, in processes that import torch
            pass


def autoload() -> None:
    """Start tracing.

    torch calls this entry point of `torch.backends` near the end of every `import torch`.
    """
    if _is_requested():
        try:
            from pytracer.activation import import_hook

            import_hook.autoload()
        except Exception as error:
            import logging

            logging.getLogger("pytracer").warning("pytracer: nothing is recorded: %r", error)
    elif _has_variables():
        try:
            from pytracer.activation import unused_variables

            unused_variables.report_unrecorded()
        except Exception:  # nothing was asked for
            pass


def _is_requested() -> bool:
    """Return whether the environment asks for anything. Otherwise the package is not imported."""
    switch = _switch()
    return switch not in _OFF and bool(switch or os.environ.get("PYTRACER_PATCH_TORCH"))


def _has_variables() -> bool:
    """Return whether variables have no effect. Switched off, only the signal's does harm."""
    if _switch() in _OFF:
        return "PYTRACER_DUMP_SIGNAL" in os.environ
    return any(name.startswith("PYTRACER_") for name in os.environ)


def _switch() -> str:
    return os.environ.get("PYTRACER", "").strip().lower()
