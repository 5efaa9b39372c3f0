"""What expandable segments are known to break, and whether this process uses it.

Each guard looks at what is loaded here, asks no driver, and says its reason once.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pytracer.notices import say_once


def warn_of_expandable_segments(backend: str) -> None:
    """Says what may break if they are switched on now. Never raises."""
    for guard in _GUARDS:
        with contextlib.suppress(Exception):
            reason = guard(backend)
            if reason is not None:
                say_once(f"expandable segments are switched on, and {reason}", guard.__name__)


def _pluggable_pool(backend: str) -> str | None:
    # torch 2.12.1 and 2.15.0 keep them apart (pytorch/pytorch#169491). Before that they are mapped
    # past the pool's allocator, or refused (#147851, #148378); by torch_npu 2.13.0 still.
    if backend == "cuda" and _torch_version() >= (2, 12):
        return None
    memory = _memory(backend)
    pluggable = getattr(memory, f"{backend.upper()}PluggableAllocator")
    pools = list(_instances(memory.MemPool))
    if any(getattr(pool, "allocator", None) is not None for pool in pools) or (
        pools and any(True for _ in _instances(pluggable))  # newer pools do not tell theirs
    ):
        return (
            "there is a MemPool with an allocator of its own: this version maps expandable "
            "segments for such a pool without asking that allocator, or refuses its allocations "
            "(pytorch/pytorch#147851); switch them off while the pool is in use"
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
                "if the environment names them, and sleeping may free nothing otherwise "
                "(vllm-project/vllm#14189, #40812); switch them off around vLLM's allocations"
            )
    return None


def _memory_saver(_: str) -> str | None:
    if "torch_memory_saver" not in sys.modules:
        return None
    return (
        "torch_memory_saver is loaded: it does not see the memory of expandable segments, so that "
        "pause() does not release it (fzyzcjy/torch_memory_saver#24); switch them off where its "
        "regions are allocated"
    )


def _shared_tensors(backend: str) -> str | None:
    # Keys: of sent tensors the driver's handle, of received ones that and an offset. Those of CPU
    # tensors are file names, which are paths, and pairs of numbers.
    reductions = sys.modules["torch.multiprocessing.reductions"]
    for key in list(reductions.shared_cache):
        handle = key[0] if isinstance(key, tuple) else key
        if isinstance(handle, bytes) and not handle.startswith(b"/"):
            break
    else:
        return None
    what = (
        "torch shares expandable segments by file descriptors (pidfd_getfd, which containers "
        "often forbid) or fabric handles, between equal versions of torch only, and what calls "
        "cudaIpcGetMemHandle itself fails (NVIDIA-NeMo/RL#3782, vllm-project/vllm#42609)"
        if backend == "cuda"
        else "whether torch_npu can share expandable segments is not known"
    )
    return (
        f"this process shares device tensors with others: {what}; switch them off where the "
        "tensors that are sent are allocated"
    )


def _registered_graphs(backend: str) -> str | None:
    # Megatron-LM's condition. Graphs' private pools themselves take expandable segments since
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
        "there are CUDA graphs and NCCL: it registers the buffers of captured collectives, taking "
        "each for one allocation, which may crash or hang their replay (pytorch/pytorch#158029; "
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
    # By type(): isinstance() would run __class__ of objects that pretend to be others.
    return (each for each in gc.get_objects() if issubclass(type(each), kind))
