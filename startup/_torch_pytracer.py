"""What Python and torch call, of pytracer: installed beside the package, for it must not fail.

The package may be half uninstalled, or a `pytracer.py` in the script's folder may take its place;
every interpreter still has to start, and every `import torch` to succeed.
"""

import os

_OFF = ("0", "false", "off", "no")


def watch() -> None:
    """Called by the line in `torch_pytracer.pth`, when an interpreter starts with tracing asked."""
    if _is_asked():
        try:
            from pytracer import autostart

            autostart.watch()
        except Exception:  # `autoload` tells, in those processes that import torch
            pass


def autoload() -> None:
    """Called by every `import torch`, near its end: the entry point in `torch.backends`."""
    if _is_asked():
        try:
            from pytracer import autostart

            autostart.autoload()
        except Exception as error:
            import logging

            logging.getLogger("pytracer").warning("pytracer: not recording: %r", error)


def _is_asked() -> bool:
    """Under `PYTRACER=0` nothing of pytracer is even imported."""
    switch = os.environ.get("PYTRACER", "").strip().lower()
    return switch not in _OFF and bool(switch or os.environ.get("PYTRACER_PATCH_TORCH"))
