"""What expandable segments are known to break, and whether this process uses it.

Each guard looks at what is imported, and asks no driver. Its warning is logged once.
"""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from pytracer.log import warn_once

_SWITCH_OFF = "switch them off with pytracer.expandable_segments(False)"

_OWN_ALLOCATOR = (
    "this version maps expandable segments for such a pool without asking that allocator, or "
    "refuses its allocations (pytorch/pytorch#147851)"
)
_SLEEP = (
    "it keeps expandable segments out of its pool only if the environment variable names them; "
    "otherwise sleeping may free nothing (vllm-project/vllm#14189, #40812)"
)
_SAVER = (
    "it does not see the memory of expandable segments, so that pause() does not release it "
    "(fzyzcjy/torch_memory_saver#24)"
)
_SHARING = {
    "cuda": "torch shares expandable segments by file descriptors (pidfd_getfd, which containers "
    "often forbid) or fabric handles, only between equal versions of torch; code that calls "
    "cudaIpcGetMemHandle itself fails (NVIDIA-NeMo/RL#3782, vllm-project/vllm#42609)",
    "npu": "it is unknown whether torch_npu can share expandable segments",
}
_GRAPHS = (
    "NCCL registers each buffer of captured collectives as one allocation, which may crash or hang "
    "their replay (pytorch/pytorch#158029; Megatron-LM refuses this); set NCCL_GRAPH_REGISTER=0 "
    "before the program starts"
)


def known_hazards(
    backend: str, torch_version: str | None, files: Iterable[str], has_pools: bool
) -> list[str]:
    """Return what expandable segments may break in a recorded program, in sentences.

    A recording does not show all of it, so some sentences have a condition.

    Args:
        backend: "cuda" or "npu".
        torch_version: The version of torch; None if unknown.
        files: The paths of the source files in the recording's stacks.
        has_pools: Whether the recording has memory pools next to the default one.
    """
    text = "\n".join(files)
    found = []
    version = tuple(int(part) for part in re.findall(r"\d+", torch_version or "0.0")[:2])
    if has_pools and not (backend == "cuda" and version >= (2, 12)):
        found.append(f"If a MemPool has an allocator of its own: {_OWN_ALLOCATOR}.")
    if re.search(r"[/\\](vllm|vllm_ascend)[/\\]", text):
        found.append(f"vLLM is in use. Its sleep mode: {_SLEEP}.")
    if "torch_memory_saver" in text:
        found.append(f"torch_memory_saver is in use: {_SAVER}.")
    found.append(f"If processes send each other device tensors: {_SHARING[backend]}.")
    if backend == "cuda" and has_pools:
        found.append(f"If CUDA graphs capture collectives of NCCL: {_GRAPHS}.")
    return found


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
    pools = _instances(memory.MemPool)
    if any(getattr(pool, "allocator", None) is not None for pool in pools) or (
        pools and _instances(pluggable)  # newer pools hide their allocator
    ):
        return (
            f"a MemPool has an allocator of its own: {_OWN_ALLOCATOR}; {_SWITCH_OFF} while the "
            "pool is in use"
        )
    return None


def _sleep_mode(_: str) -> str | None:
    for module, name in (
        ("vllm.device_allocator.cumem", "CuMemAllocator"),
        ("vllm_ascend.device_allocator.camem", "CaMemAllocator"),
    ):
        allocator = getattr(sys.modules.get(module), name, None)
        if getattr(allocator, "instance", None) is not None:
            return f"vLLM's sleep mode is in use: {_SLEEP}; {_SWITCH_OFF} around vLLM's allocations"
    return None


def _memory_saver(_: str) -> str | None:
    if "torch_memory_saver" not in sys.modules:
        return None
    return f"torch_memory_saver is loaded: {_SAVER}; {_SWITCH_OFF} where its regions are allocated"


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
    return (
        f"this process shares device tensors with others: {_SHARING[backend]}; {_SWITCH_OFF} where "
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
        or not _instances(cuda.CUDAGraph)
    ):
        return None
    return f"CUDA graphs are used with NCCL: {_GRAPHS}"


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


def _instances(kind: type) -> list[Any]:
    from pytracer import _core  # hazards of a recording are listed where there is no recorder

    return _core.live_instances(kind)
