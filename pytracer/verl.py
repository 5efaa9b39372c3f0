"""What verl's `torch_memory` profiler lacks: `annotate`, which makes a role a phase.

verl calls a profiler's `annotate` where it exists, around each of a worker's stages, while the step
and the rank are profiled (verl 0.9.1, `verl/utils/profiler/profile.py`).
"""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from pytracer.phases import annotate

MODULE = "verl.utils.profiler.torch_memory_profile"

Function = TypeVar("Function", bound=Callable[..., Any])


def add_annotate() -> None:
    """To verl's profiler, if verl has been imported and it has none of its own."""
    profiler = getattr(sys.modules.get(MODULE), "TorchMemoryProfiler", None)
    if profiler is not None and not hasattr(profiler, "annotate"):
        profiler.annotate = _annotate


def remove_annotate() -> None:
    """What `add_annotate` added."""
    profiler = getattr(sys.modules.get(MODULE), "TorchMemoryProfiler", None)
    if getattr(profiler, "annotate", None) is _annotate:
        del profiler.annotate  # type: ignore[union-attr]


def _annotate(
    _profiler: object, message: str | None = None, role: str | None = None, **_others: object
) -> Callable[[Function], Function]:
    def decorate(stage: Function) -> Function:
        return annotate(role or message or stage.__qualname__)(stage)

    return decorate
