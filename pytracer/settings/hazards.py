"""What expandable segments are known to break, and whether this process uses it.

Each guard looks at what is imported, and asks no driver. Its warning is logged once.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pytracer.log import warn_once

_SWITCH_OFF = "switch them off with pytracer.expandable_segments(False)"


def warn_of_expandable_segments(backend: str) -> None:
    """Log what may break if expandable segments are switched on now. Never raises."""
    for guard in _GUARDS:
        with contextlib.suppress(Exception):
            reason = guard(backend)
            if reason is not None:
                warn_once(f"expandable segments are now on, and {reason}", guard.__name__)


def _pluggable_pool(backend: str) -> str | None:
    # torch 2.12.1 and 2.15.0 handle such pools (pytorch/pytorch#169491). Earlier versions bypass
    # the pool's allocator or refuse allocations (#147851, #148378). torch_npu 2.13.0 still does.
    if backend == "cuda" and _torch_version() >= (2, 12):
        return None
    memory = _memory(backend)
    pluggable = getattr(memory, f"{backend.upper()}PluggableAllocator")
    pools = list(_instances(memory.MemPool))
    if any(getattr(pool, "allocator", None) is not None for pool in pools) or (
        pools and any(True for _ in _instances(pluggable))  # newer pools hide their allocator
    ):
        return (
            "a MemPool has an allocator of its own: this version maps expandable "
            "segments for such a pool without asking that allocator, or refuses its allocations "
            f"(pytorch/pytorch#147851); {_SWITCH_OFF} while the pool is in use"
        )
    return None


def _sleep_mode(_: str) -> str | None:
    for module, name in (
        ("vllm.device_allocator.cumem", "CuMemAllocator"),
        ("vllm_ascend.device_allocator.camem", "CaMemAllocator"),
    ):
        allocator = getattr(sys.modules.get(module), name, None)
        if getattr(allocator, "instance", None) is not None:
            return (
                "vLLM's sleep mode is in use: it keeps expandable segments out of its pool only "
                "if the environment variable names them; otherwise sleeping may free nothing "
                f"(vllm-project/vllm#14189, #40812); {_SWITCH_OFF} around vLLM's allocations"
            )
    return None


def _memory_saver(_: str) -> str | None:
    if "torch_memory_saver" not in sys.modules:
        return None
    return (
        "torch_memory_saver is loaded: it does not see the memory of expandable segments, so that "
        f"pause() does not release it (fzyzcjy/torch_memory_saver#24); {_SWITCH_OFF} where its "
        "regions are allocated"
    )


def _shared_tensors(backend: str) -> str | None:
    # The key of a sent tensor is the driver's handle, that of a received one the handle and an
    # offset. The keys of CPU tensors are file names, which are paths, and pairs of numbers.
    reductions = sys.modules["torch.multiprocessing.reductions"]
    for key in list(reductions.shared_cache):
        handle = key[0] if isinstance(key, tuple) else key
        if isinstance(handle, bytes) and not handle.startswith(b"/"):
            break
    else:
        return None
    what = (
        "torch shares expandable segments by file descriptors (pidfd_getfd, which containers "
        "often forbid) or fabric handles, only between equal versions of torch; code that calls "
        "cudaIpcGetMemHandle itself fails (NVIDIA-NeMo/RL#3782, vllm-project/vllm#42609)"
        if backend == "cuda"
        else "it is unknown whether torch_npu can share expandable segments"
    )
    return (
        f"this process shares device tensors with others: {what}; {_SWITCH_OFF} where "
        "tensors to be sent are allocated"
    )


def _registered_graphs(backend: str) -> str | None:
    # Megatron-LM uses the same condition. Private pools of graphs support expandable segments since
    # torch 2.5 (pytorch/pytorch#128068).
    if backend != "cuda" or os.environ.get("NCCL_GRAPH_REGISTER") == "0":
        return None
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    cuda = sys.modules["torch"].cuda
    if (
        "nccl" not in str(distributed.get_backend())
        or not cuda.is_initialized()
        or cuda.get_device_capability() >= (10, 0)
        or not any(True for _ in _instances(cuda.CUDAGraph))
    ):
        return None
    return (
        "CUDA graphs are used with NCCL: NCCL registers each buffer of captured collectives as one "
        "allocation, which may crash or hang their replay (pytorch/pytorch#158029; "
        "Megatron-LM refuses this); set NCCL_GRAPH_REGISTER=0 before the program starts"
    )


_GUARDS: tuple[Callable[[str], str | None], ...] = (
    _pluggable_pool,
    _sleep_mode,
    _memory_saver,
    _shared_tensors,
    _registered_graphs,
)


def _torch_version() -> tuple[int, int]:
    major, minor = sys.modules["torch"].__version__.split(".")[:2]
    return int(major), int(minor)


def _memory(backend: str) -> Any:
    return getattr(sys.modules["torch"], backend).memory


def _instances(kind: type) -> Iterator[object]:
    # isinstance() would run the __class__ property of proxy objects.
    return (found for found in gc.get_objects() if issubclass(type(found), kind))
