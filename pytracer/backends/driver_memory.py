"""The memory that this process holds on a device, as the driver reports it.

It includes memory that torch's allocator does not know.
"""

import contextlib
import ctypes
import os
import sys
from typing import Any


def process_bytes(backend: str, index: int) -> int | None:
    """Return the bytes that this process holds on the device with torch's `index`.

    None if the driver does not report them: without its library or the permission, for a part of a
    device (MIG), or in a container that has process ids of its own.
    """
    try:
        if _pids_are_translated():
            return None
        pids_and_bytes = _nvml(index) if backend == "cuda" else _dcmi(index)
    except Exception:
        return None
    mine = [used for pid, used in pids_and_bytes if pid == os.getpid()]
    return sum(mine) if mine and None not in mine else None


def _pids_are_translated() -> bool:
    """Return whether the driver knows this process by another process id than `os.getpid()`."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        numbers = next((line.split()[1:] for line in status if line.startswith("NSpid:")), [])
    return len(numbers) > 1


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
