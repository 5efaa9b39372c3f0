"""The devices as torch shows them: which exist, and how full they are."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from pytracer.backends import running_torch
from pytracer.backends.names import (
    ACCELERATORS,
    MAX_ACCELERATORS,
    NO_CACHING_VARIABLE,
    RECORD_THE_CPU,
)
from pytracer.backends.running_torch import is_lost_at_fork, torch_module
from pytracer.errors import HookError
from pytracer.log import warn_once

OomObserver = Callable[[int, int, int, int], None]
"""Called with the device's index (-1: the CPU), the bytes asked for, its total and free bytes."""


def present_accelerator() -> str | None:
    """Return the accelerator that torch finds, or None.

    Call this only in a process that does not fork afterwards: where NVML does not answer, torch
    asks the driver, which initialises it. `automatic_backend` never does.
    """
    _, *accelerators = running_torch.built_backends()
    for backend in reversed(accelerators):  # torch_npu next to a CUDA build means the NPU
        if torch_module(backend).is_available():
            return backend
    return None


def automatic_backend() -> str:
    """Return what `device="auto"` means: the accelerator that exists, or else "cpu"."""
    for backend in ACCELERATORS:
        if (backend == "npu" and "torch_npu" not in sys.modules) or is_lost_at_fork(backend):
            continue  # torch_npu may be installed, but this process does not run on it
        try:
            count = _count_without_initialising(backend)
        except Exception:  # a backend that fails to count its devices is not the one in use
            continue
        if count is None:
            warn_once(
                f"NVML does not answer: until {backend.upper()} is initialised, the CPU is "
                "recorded instead. To avoid this, set "
                f'device="{backend}" (PYTRACER_DEVICE={backend})'
            )
        elif count > 0:
            return backend
    return "cpu"


def may_come_later(backend: str, names: Iterable[str]) -> bool:
    """Return whether `device="auto"` of `names` records a backend once torch initialises it."""
    if "auto" not in names:
        return False
    try:
        is_built = backend in running_torch.built_backends()
        return is_built and _count_without_initialising(backend) is None
    except Exception:  # there is no torch, or a backend fails to count its devices
        return False


def _count_without_initialising(backend: str) -> int | None:
    """Return the number of devices; None if only an initialised driver knows.

    `torch.cuda.device_count()` may initialise the driver, which a forked child then cannot use.
    """
    module = torch_module(backend)
    if backend == "cuda" and not running_torch.uses_driver(module):
        if os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
            return 1  # a process can use one MIG part of one device
        count: int = module._device_count_nvml()
        return None if count < 0 else count
    return int(module.device_count())


def resolve(names: Iterable[str]) -> dict[str, list[int] | None]:
    """Return the backends of names such as "auto" and "cuda:1", and the indices; None: all."""
    wanted: dict[str, list[int] | None] = {}
    for name in names:
        backend, _, index = (automatic_backend() if name == "auto" else name).partition(":")
        before = wanted.setdefault(backend, [])
        wanted[backend] = None if before is None or not index else [*before, int(index)]
    return wanted


def indices(backend: str, wanted: list[int] | None) -> list[int]:
    """Return the devices to record: `wanted`, or all. Raises a HookError if that is impossible."""
    module = torch_module(backend)
    name = backend.upper()
    if is_lost_at_fork(backend):
        raise HookError(
            f"this process was forked from one that used the {name} device, so it cannot use the "
            f"device; start it with spawn, or {RECORD_THE_CPU}"
        )
    count = _count_without_initialising(backend)
    if count is None:
        count = int(module.device_count())
    if wanted is None and count > MAX_ACCELERATORS:
        raise HookError(
            f"torch finds {count} {name} devices, and pytracer records at most {MAX_ACCELERATORS}; "
            f'name the devices to record, as in device=["{backend}:0"]'
        )
    if count == 0:
        raise HookError(f"torch finds no {name} device; {RECORD_THE_CPU}")
    if (variable := NO_CACHING_VARIABLE[backend]) in os.environ:
        raise HookError(f"{variable} is set, so torch's allocator reports no events; unset it")
    if absent := [index for index in wanted or [] if index >= count]:
        raise HookError(
            f"{backend}:{absent[0]} does not exist: torch finds {count} {name} "
            f"device{'s' if count > 1 else ''}; choose from {backend}:0 to {backend}:{count - 1}"
        )
    return sorted(set(range(count) if wanted is None else wanted))


def attach_oom_observer(backend: str, observer: OomObserver) -> None:
    """Have torch call `observer` when an allocation fails for good, before it raises.

    The observer is called with the GIL and without the device's lock. The device must be
    initialised. torch cannot detach an observer.
    """
    if backend == "cpu":
        from pytracer import _core  # most of the package can be imported without the core

        _core.observe_oom(observer)
    elif backend == "cuda":
        import torch

        torch._C._cuda_attach_out_of_memory_observer(observer)
    else:
        sys.modules["torch_npu"]._C._npu_attach_out_of_memory_observer(observer)


def memory(backend: str, index: int) -> dict[str, int | None]:
    """Return how full a device is, as the driver reports it. It must be initialised and in use.

    `process_bytes` are those that this process holds on the device. None: unknown.
    """
    free = total = None
    with contextlib.suppress(Exception):
        free, total = torch_module(backend).mem_get_info(index)
    return {
        "total_bytes": total,
        "free_bytes": free,
        "process_bytes": _process_bytes(backend, index),
    }


def total_memory(backend: str, index: int) -> dict[str, int | None]:
    """Return how large a device in use is, as torch knows it, in the form of `memory`."""
    total = None
    with contextlib.suppress(Exception):
        total = int(torch_module(backend).get_device_properties(index).total_memory)
    return {"total_bytes": total}


def _process_bytes(backend: str, index: int) -> int | None:
    """Return the bytes that this process holds, also those that torch's allocator does not know.

    None if the driver does not report them: without its library or the permission, for a part of a
    device (MIG), or in a container that has process ids of its own.
    """
    with contextlib.suppress(Exception):
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            pids = next((line.split()[1:] for line in status if line.startswith("NSpid:")), [])
        if len(pids) < 2:  # else the driver knows this process by another one than `os.getpid()`
            pids_and_bytes = _nvml(index) if backend == "cuda" else _dcmi(index)
            mine = [used for pid, used in pids_and_bytes if pid == os.getpid()]
            return sum(mine) if mine and None not in mine else None
    return None


def _nvml(index: int) -> list[tuple[int, Any]]:
    import pynvml

    pynvml.nvmlInit()
    try:
        uuid = sys.modules["torch"].cuda.get_device_properties(index).uuid
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return [(process.pid, process.usedGpuMemory) for process in found]
    finally:
        pynvml.nvmlShutdown()


class _DcmiProcess(ctypes.Structure):
    """The C struct `dcmi_proc_mem_info` of Huawei's DCMI reference."""

    _fields_ = (("pid", ctypes.c_int), ("used", ctypes.c_ulong))


_DCMI_PROCESSES = 32  # the most that dcmi_get_device_resource_info fills in


def _dcmi(index: int) -> list[tuple[int, int]]:
    library = ctypes.CDLL("libdcmi.so")
    with contextlib.suppress(KeyError):
        index = int(os.environ["ASCEND_RT_VISIBLE_DEVICES"].split(",")[index])
    card, chip, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    processes = (_DcmiProcess * _DCMI_PROCESSES)()
    failed = (
        library.dcmi_init()
        or library.dcmi_get_card_id_device_id_from_logicid(
            ctypes.byref(card), ctypes.byref(chip), ctypes.c_uint(index)
        )
        or library.dcmi_get_device_resource_info(card, chip, processes, ctypes.byref(count))
    )
    return [] if failed else [(process.pid, process.used) for process in processes[: count.value]]
