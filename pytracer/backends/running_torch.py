"""The torch of this process: its version, its backends, and their state."""

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pytracer.backends.names import ACCELERATORS, RECORD_THE_CPU
from pytracer.errors import HookError

OLDEST_TORCH = (2, 6)
"""The first release of torch that is recorded. pip does not check it: torch is no dependency."""


@dataclass(frozen=True)
class TorchBuild:
    """What a hook must match of the running torch."""

    version: str
    root: Path  # the folder of the package, with its headers and libraries
    cxx11_abi: bool  # of libstdc++


def torch_build() -> TorchBuild:
    """Describe the running torch, and import it if nothing has, or raise a HookError."""
    torch: Any = _imported("torch", "pip install torch", "repair the installation")
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise HookError(
            f"torch {torch.__version__} is older than {oldest}, the first release that pytracer "
            "records; install a newer torch"
        )
    return TorchBuild(
        torch.__version__, Path(torch.__file__).parent, bool(torch.compiled_with_cxx11_abi())
    )


def _imported(package: str, install: str, repair: str) -> ModuleType:
    """Import a package, or raise a HookError with one of the remedies."""
    try:
        return importlib.import_module(package)
    except Exception as error:
        problem, remedy = f"importing {package} failed ({error})", repair
        if isinstance(error, ModuleNotFoundError):
            remedy = "install the missing module"
            if error.name == package:
                problem, remedy = f"{package} is not installed for this Python", install
        raise HookError(f"{problem}; {remedy}") from error


def torch_module(backend: str) -> ModuleType:
    """Return `torch.cuda` or `torch.npu`, or raise a HookError if the running torch has none."""
    torch_build()
    torch: Any = sys.modules["torch"]
    if backend != "cuda":
        repair = f"install the torch_npu that fits torch {torch.__version__}"
        _imported("torch_npu", f"install it, or {RECORD_THE_CPU}", repair)
    elif torch.version.hip is not None or torch.version.cuda is None:
        how = "without CUDA; install a CUDA build of torch, or "
        if torch.version.hip is not None:
            how = "for ROCm, whose allocator pytracer does not record; "
        raise HookError(f"torch {torch.__version__} is built {how}{RECORD_THE_CPU}")
    module: ModuleType = getattr(torch, backend)
    return module


def built_backends() -> list[str]:
    """Return the backends that the running torch supports, with or without a device."""
    torch_build()
    backends = ["cpu"]
    for backend in ACCELERATORS:
        with contextlib.suppress(HookError):
            torch_module(backend)
            backends.append(backend)
    return backends


def uses_driver(module: ModuleType) -> bool:
    """Return whether torch uses the driver, which a forked child then cannot use."""
    return _is_initialised(module) or _is_initialising(module)


def _is_initialised(module: ModuleType | None) -> bool:
    try:
        return module is not None and bool(module.is_initialized())
    except Exception:  # torch is only half imported
        return False


def _is_initialising(module: ModuleType) -> bool:
    """Return whether this thread is in the middle of torch's initialisation of the device."""
    return hasattr(module._tls, "is_initializing")


def uninitialised_accelerators() -> list[str]:
    """Return the accelerators that torch may still initialise here. No driver is asked."""
    torch = sys.modules.get("torch")
    has_cuda = getattr(getattr(torch, "version", None), "cuda", None) is not None
    built = {"cuda": has_cuda, "npu": "torch_npu" in sys.modules}
    return [
        backend
        for backend in ACCELERATORS
        if built[backend]
        and (module := getattr(torch, backend, None)) is not None
        and not is_lost_at_fork(backend)
        and not _is_initialised(module)
    ]


def when_initialised(backend: str, action: Callable[[], None]) -> None:
    """Have torch call `action`, which must not raise, as soon as it has initialised the device.

    torch calls it before anything can be allocated. In the middle of torch's initialisation
    `action` runs at once.
    """
    module = torch_module(backend)
    if _is_initialising(module):  # torch holds the lock that `_lazy_call` would wait for
        action()
    else:
        module._lazy_call(action)


def is_lost_at_fork(backend: str) -> bool:
    """Return whether a fork made the backend unusable here: the parent had initialised it."""
    return backend in _lost_at_fork


_initialised_before_fork: list[str] = []
_lost_at_fork: set[str] = set()


def _before_fork() -> None:
    torch = sys.modules.get("torch")
    modules = {backend: getattr(torch, backend, None) for backend in ACCELERATORS}
    _initialised_before_fork[:] = [name for name, m in modules.items() if _is_initialised(m)]


os.register_at_fork(
    before=_before_fork, after_in_child=lambda: _lost_at_fork.update(_initialised_before_fork)
)


def is_compiled() -> bool:
    """Return whether `torch.compile` traces this code; it takes the answer for a constant."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)  # torch may be half imported
    return compiler is not None and compiler.is_compiling()
