"""The devices as torch shows them: which are there, when they are ready, how full they are."""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from types import ModuleType

from pytracer.errors import HookError
from pytracer.hook_compile import running_torch
from pytracer.notices import say_once
from pytracer.process_memory import process_bytes

ACCELERATORS = ("cuda", "npu")
BACKENDS = ("cpu", *ACCELERATORS)
MAX_ACCELERATORS = 64  # of a process, that can be recorded
NO_CACHING = {
    "cuda": "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "npu": "PYTORCH_NO_NPU_MEMORY_CACHING",
}
"""Variables under which torch's allocator bypasses its cache, and tells of nothing."""

OomObserver = Callable[[int, int, int, int], None]
"""Called with the device's index (-1: the CPU), the bytes asked for, its total and free bytes."""


_used_before_fork: list[str] = []
_lost_at_fork: set[str] = set()  # backends that the parent used: they cannot be used here


def _before_fork() -> None:
    torch = sys.modules.get("torch")
    modules = {each: getattr(torch, each, None) for each in ACCELERATORS}
    _used_before_fork[:] = [each for each, module in modules.items() if _is_in_use(module)]


def _is_in_use(module: ModuleType | None) -> bool:
    try:
        return module is not None and bool(module.is_initialized())
    except Exception:  # a torch that is half imported
        return False


os.register_at_fork(
    before=_before_fork, after_in_child=lambda: _lost_at_fork.update(_used_before_fork)
)


def torch_module(backend: str) -> ModuleType:
    """`torch.cuda` or `torch.npu`.

    Raises:
        HookError: The running torch has no such backend.
    """
    running_torch()
    import torch

    if backend == "cuda":
        if torch.version.hip is not None:
            raise HookError(
                f"torch {torch.__version__} is built for ROCm, whose allocator pytracer does not "
                'record; give device="cpu"'
            )
        if torch.version.cuda is None:
            raise HookError(
                f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch, "
                'or give device="cpu"'
            )
    else:
        try:
            importlib.import_module("torch_npu")
        except ModuleNotFoundError as error:
            if error.name == "torch_npu":
                raise HookError(
                    'torch_npu is not installed for this Python; install it, or give device="cpu"'
                ) from error
            raise HookError(
                f"importing torch_npu failed ({error}); install what it lacks"
            ) from error
        except Exception as error:
            raise HookError(
                f"importing torch_npu failed ({error}); install the torch_npu that fits torch "
                f"{torch.__version__}"
            ) from error
    module: ModuleType = getattr(torch, backend)
    return module


def built_in() -> list[str]:
    """The backends that the running torch has, whether or not there is a device.

    Raises:
        HookError: There is no torch.
    """
    running_torch()
    backends = ["cpu"]
    for backend in ACCELERATORS:
        with contextlib.suppress(HookError):
            torch_module(backend)
            backends.append(backend)
    return backends


def automatic() -> str:
    """What `device="auto"` means here: the accelerator that is there, else "cpu"."""
    for backend in ACCELERATORS:
        if (backend == "npu" and "torch_npu" not in sys.modules) or backend in _lost_at_fork:
            continue  # installed, perhaps, but not what this process runs on
        try:
            count = _count_without_initialising(backend)
        except Exception:  # whatever it is, it is not what this process runs on
            continue
        if count is None:
            say_once(
                f'device="auto" records the CPU until torch initialises {backend.upper()}: to ask '
                "for devices here would initialise the driver, which forks do not survive; give "
                f'device="{backend}"'
            )
        elif count > 0:
            return backend
    return "cpu"


def _count_without_initialising(backend: str) -> int | None:
    """How many devices there are; None if only an initialised driver could tell.

    `torch.cuda.device_count()` falls back on one, and then a forked child cannot use the device.
    """
    module = torch_module(backend)
    if backend == "cuda" and not (module.is_initialized() or _is_initialising(module)):
        if os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
            return 1  # a process has one such part of a device
        count: int = module._device_count_nvml()
        return None if count < 0 else count
    return int(module.device_count())


def resolve(names: Iterable[str]) -> dict[str, list[int] | None]:
    """Backends, and which of their devices: indices, or None for all. `names`: see `Options`."""
    wanted: dict[str, list[int] | None] = {}
    for name in names:
        backend, _, index = (automatic() if name == "auto" else name).partition(":")
        before = wanted.setdefault(backend, [])
        wanted[backend] = None if before is None or not index else [*before, int(index)]
    return wanted


def indices(backend: str, wanted: list[int] | None) -> list[int]:
    """The devices to record: `wanted`, or all.

    Raises:
        HookError: There is none, one of them is not there, or its allocator is bypassed.
    """
    module = torch_module(backend)
    if backend in _lost_at_fork:
        raise HookError(
            f"this process was forked from one that used the {backend.upper()} device, so it "
            'cannot use it; start it by spawn, or give device="cpu"'
        )
    count = _count_without_initialising(backend)
    if count is None:
        count = int(module.device_count())
    if wanted is None and count > MAX_ACCELERATORS:
        raise HookError(
            f"torch finds {count} {backend.upper()} devices; pytracer records {MAX_ACCELERATORS} "
            f'at most: name them, as in device=["{backend}:0"]'
        )
    if count == 0:
        raise HookError(f'torch finds no {backend.upper()} device; give device="cpu" or "auto"')
    if NO_CACHING[backend] in os.environ:
        raise HookError(
            f"{NO_CACHING[backend]} is set: torch's allocator then reports nothing; unset it"
        )
    if absent := [index for index in wanted or [] if index >= count]:
        raise HookError(
            f"{backend}:{absent[0]} does not exist: torch finds {count} {backend.upper()} "
            f"device{'s' if count > 1 else ''}; give {backend}:0 to {backend}:{count - 1}"
        )
    return sorted(set(range(count) if wanted is None else wanted))


def to_be_initialised() -> list[str]:
    """The accelerators that torch may yet initialise here, devices or not; asks no driver."""
    torch = sys.modules.get("torch")
    cuda = getattr(getattr(torch, "version", None), "cuda", None) is not None
    built = {"cuda": cuda, "npu": "torch_npu" in sys.modules}
    modules = {each: getattr(torch, each, None) for each in ACCELERATORS if built[each]}
    return [
        backend
        for backend, module in modules.items()
        if module is not None and backend not in _lost_at_fork and not _is_in_use(module)
    ]


def when_initialised(backend: str, action: Callable[[], None]) -> None:
    """Has torch run `action`, which must not raise, as soon as it has initialised the device.

    That is before anything can be allocated; in the middle of it `action` runs at once.
    """
    module = torch_module(backend)
    if _is_initialising(module):  # with a lock, which `_lazy_call` would wait for
        action()
    else:
        module._lazy_call(action)


def _is_initialising(module: ModuleType) -> bool:
    """Whether this thread runs what `when_initialised` was given."""
    return hasattr(module._tls, "is_initializing")


def attach_oom_observer(backend: str, observer: OomObserver) -> None:
    """Has `observer` called when an allocation fails for good, before the exception is raised.

    With the GIL and without the device's lock. The device is initialised. For good: torch cannot
    detach it.
    """
    if backend == "cpu":
        from pytracer import _core  # which the package can be looked at without

        _core.observe_oom(observer)
    elif backend == "cuda":
        import torch

        torch._C._cuda_attach_out_of_memory_observer(observer)
    else:
        sys.modules["torch_npu"]._C._npu_attach_out_of_memory_observer(observer)


def memory(backend: str, index: int) -> dict[str, int | None]:
    """How full a device is, in bytes; the device is initialised and in use.

    Returns:
        `total_bytes` and `free_bytes` of the device, as its driver tells; `process_bytes`: what the
        driver says this process holds on it. None: not known.
    """
    try:
        free, total = torch_module(backend).mem_get_info(index)
    except Exception:
        free = total = None
    return {
        "total_bytes": total,
        "free_bytes": free,
        "process_bytes": process_bytes(backend, index),
    }
