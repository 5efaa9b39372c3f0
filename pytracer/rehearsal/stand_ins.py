"""What stands in for the parts of torch and of libraries that no simulated device can do."""

import io
import os
import sys
from collections.abc import Callable
from functools import partial, wraps
from inspect import signature
from types import ModuleType
from typing import Any

from pytracer.activation.import_hook import after_import
from pytracer.rehearsal.plan import Plan, Report

_LARGE = 1 << 16  # elements of a host tensor whose random values would take time and memory
_RANDOM = ("normal_", "uniform_")
_INITIALISERS = (
    *("_no_grad_uniform_", "_no_grad_normal_", "_no_grad_trunc_normal_", "trunc_normal_"),
    *("kaiming_uniform_", "kaiming_normal_", "orthogonal_", "sparse_"),
)


def prepare(plan: Plan, report: Report) -> None:
    """Have each part replaced once its module is imported."""
    after_import(
        "torch.distributed.distributed_c10d", lambda c10d: _replace_groups(c10d, plan, report)
    )
    after_import("torch.nn.parallel.distributed", _replace_ddp)
    after_import("transformers.generation.utils", _end_at_greatest_length)
    if not plan.allow_writes:
        for name in ("safetensors.torch", "torch.distributed.checkpoint.state_dict_saver"):
            after_import(name, lambda module: _leave_out_saves(module, report))


def replace_in_torch(torch: ModuleType, plan: Plan, report: Report) -> None:
    """Replace what torch itself has, at the end of its import."""
    # cuDNN's attention has no plans here. Flash attention keeps the same tensors.
    torch.backends.cuda.enable_cudnn_sdp(False)
    _skip_random_values(torch)

    def noting(record_stream: Callable[..., Any], tensor: Any, stream: Any) -> None:
        report.unknown.append("when memory used by another stream is free again")
        torch.Tensor.record_stream = record_stream
        record_stream(tensor, stream)

    _replace(torch.Tensor, "record_stream", noting)
    if not plan.allow_writes:
        _leave_out_saves(torch, report)


def _replace(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Have the calls of a function, if there is one, go to another, which gets it first."""
    function = getattr(owner, name, None)
    if function is not None:

        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            return replacement(function, *arguments, **options)

        setattr(owner, name, call)


def is_on_default_stream(torch: ModuleType) -> bool:
    """Return whether the program uses the default stream, or no device yet."""
    device = getattr(torch, device_backend())
    return not device.is_initialized() or device.current_stream() == device.default_stream()


def ooms(torch: ModuleType) -> int:
    """Return how often memory ran out on the current device."""
    return int(getattr(torch, device_backend()).memory_stats().get("num_ooms", 0))


def device_backend() -> str:
    """Return "cuda" or "npu", whichever this process uses."""
    return "npu" if "torch_npu" in sys.modules else "cuda"


# --- values ---------------------------------------------------------------------------------------


def _skip_random_values(torch: ModuleType) -> None:
    """Leave large parameters on the host without random values: they are copied unread."""

    def skip(
        kinds: tuple[type, ...], method: Callable[..., Any], tensor: Any, *rest: Any, **options: Any
    ) -> Any:
        is_large = tensor.device.type == "cpu" and tensor.numel() > _LARGE
        if is_large and tensor.dtype.is_floating_point and type(tensor) in kinds:
            return tensor
        return method(tensor, *rest, **options)

    for name in _RANDOM:
        _replace(torch.Tensor, name, partial(skip, (torch.nn.Parameter,)))
    for name in _INITIALISERS:
        _replace(torch.nn.init, name, partial(skip, (torch.nn.Parameter, torch.Tensor)))


def _end_at_greatest_length(module: ModuleType) -> None:
    """Have `generate()` of transformers end at its greatest length: no token ends it earlier."""
    from transformers.generation.stopping_criteria import MaxLengthCriteria

    state = {"is_over": False}

    def at_length(
        call: Callable[..., Any], self: Any, input_ids: Any, *rest: Any, **options: Any
    ) -> Any:
        state["is_over"] = input_ids.shape[1] >= self.max_length
        return call(self, input_ids, *rest, **options)

    _replace(MaxLengthCriteria, "__call__", at_length)
    module.GenerationMixin._has_unfinished_sequences = lambda *_, **__: (
        not state.pop("is_over", False)
    )


# --- several ranks --------------------------------------------------------------------------------


def _replace_groups(c10d: Any, plan: Plan, report: Report) -> None:
    """Have all collectives done by torch's fake process group, whatever backend is asked for."""

    def init_process_group(init: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        asked = signature(init).bind(*arguments, **options).arguments
        world_size, rank = (
            asked[name] if asked.get(name, -1) >= 0 else int(os.environ.get(name.upper()) or least)
            for name, least in (("world_size", 1), ("rank", 0))
        )
        report.world_size = world_size
        if plan.is_together:
            backends = f"cpu:gloo,{device_backend()}:fake"
            init(backends, init_method="env://", rank=rank, world_size=world_size)
        else:
            c10d.Backend.backend_capability["fake"].append(device_backend())  # it lacks NPUs
            init("fake", rank=rank, world_size=world_size, store=FakeStore())

    def group(new: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        asked = signature(new).bind(*arguments, **options).arguments
        return new(**{name: asked[name] for name in asked if name not in ("backend", "device_id")})

    def on_host(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        return function(*arguments, **options | {"device": c10d.torch.device("cpu")})

    _replace(c10d, "init_process_group", init_process_group)
    _replace(c10d, "new_group", group)
    c10d.monitored_barrier = lambda *_, **__: None
    if plan.is_together:
        for name in ("send_object_list", "recv_object_list", "broadcast_object_list"):
            _replace(c10d, name, on_host)
        return

    def own(objects: list[Any] | None, thing: Any) -> None:
        if objects is not None:
            objects[:] = [thing] * len(objects)

    c10d.all_gather_object = lambda objects, thing, group=None: own(objects, thing)
    c10d.gather_object = lambda thing, objects=None, *_, **__: own(objects, thing)
    c10d.broadcast_object_list = lambda *_, **__: None
    c10d.scatter_object_list = lambda objects, things=None, *_, **__: own(
        objects, things[c10d.get_rank()] if things else None
    )


def _replace_ddp(module: Any) -> None:
    """Give each bucket back unchanged: the fake group's work has no value, which DDP needs."""
    ddp = module.DistributedDataParallel
    register = ddp.register_comm_hook
    module._verify_param_shape_across_processes = lambda *_: None  # it compares values

    def unchanged(_: Any, bucket: Any) -> Any:
        future = module.torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    unchanged.__annotations__.clear()  # DDP accepts none, or its own class

    def with_hook(init: Callable[..., Any], self: Any, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        register(self, None, unchanged)

    _replace(ddp, "__init__", with_hook)
    ddp.register_comm_hook = lambda *_: None  # the program's would wait for values


# --- files ----------------------------------------------------------------------------------------


def _leave_out_saves(module: ModuleType, report: Report) -> None:
    """Have checkpoints not written: they would be zeros, in place of those of real runs."""

    def save(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if any(isinstance(each, io.BytesIO) for each in (*arguments, *options.values())):
            return function(*arguments, **options)
        report.unsaved += 1
        return None

    for name in ("save", "save_file", "save_model"):
        _replace(module, name, save)
