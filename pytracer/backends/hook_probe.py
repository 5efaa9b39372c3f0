"""Try a hook in this process: `python -m pytracer.backends.hook_probe BACKEND PATH`.

The process prints `PASSED` and exits with 0 if the hook attached, torch could allocate and free
under it, and the allocations were reported. It exits with `REFUSED`, after the reason, if the hook
cannot be attached, and with `NOT_TRIED` if the device cannot be used. `probe_process` starts it,
with `PYTRACER=0`, so that nothing else records.
"""

import os
import sys
from collections.abc import Callable

import torch

from pytracer import _core
from pytracer.backends.names import AUTOGRAD, HOST
from pytracer.backends.probe_process import NOT_TRIED, PASSED, REFUSED
from pytracer.backends.running_torch import torch_module
from pytracer.errors import HookError


def probe_autograd(path: str) -> None:
    """Attach the library at `path`, and compare what it reads in a node with what torch says."""
    _attach(_core.attach_autograd, os.fsencode(path))
    seen: list[object] = [_core.running_node()]
    inner = torch.ones(3, requires_grad=True).exp()
    outer = inner.log()
    inner.register_hook(lambda _: seen.append(_core.running_node()))
    outer.register_hook(lambda _: seen.append(_core.running_node()))
    outer.sum().backward()
    names = [None, *(f"{name}Backward0" for name in ("Log", "Exp"))]
    numbers = [None, *(node.grad_fn._sequence_nr() for node in (outer, inner))]
    wanted = list(zip(names, numbers, strict=True))
    read = [(None, None) if node is None else (node[0], node[2]) for node in seen]  # type: ignore[index]
    if read != wanted:
        raise SystemExit(f"the library {path} reads {read} in autograd's nodes, not {wanted}")
    print(PASSED)


def probe_allocator(backend: str, path: str) -> None:
    """Attach the hook at `path`, and allocate and free with and without a recording."""

    def work() -> set[int]:
        if backend == HOST:
            blocks = [torch.ones(size).pin_memory() for size in (1, 1000, 1_000_000)]
            blocks[1].to("cuda", non_blocking=True)
            is_right = blocks[2].is_pinned() and blocks[2][:2].eq(1).all().item()
        else:
            blocks = [torch.ones(size, device=backend) for size in (0, 1, 1000, 1_000_000)]
            blocks[1].resize_(5000)
            blocks.append(blocks[1].clone())
            is_right = backend != "cpu" or all(block[:1].eq(1).all().item() for block in blocks)
        if not is_right:
            raise SystemExit(f"torch computes wrong values under the hook {path}")
        return {block.data_ptr() for block in blocks if block.numel()}

    try:
        if backend != "cpu":
            torch_module("cuda" if backend == HOST else backend).init()
        place = "cpu" if backend == HOST else backend
        before = torch.ones(1000, device=place, pin_memory=backend == HOST)
    except Exception as error:  # the device is full, or another process has it exclusively
        if backend == "cpu":
            raise
        raise SystemExit(NOT_TRIED) from error
    _attach(_core.attach_hook, os.fsencode(path))
    del before  # this block was allocated without the hook and is freed under it
    work()
    session = _core.Session(
        [{"cpu": _core.CPU_DEVICE, HOST: _core.HOST_DEVICE}.get(backend, 0)],
        max_entries=1000,
        stack_depth=1,
        max_stack_bytes=2**20,
        context=0,
    )
    session.start()
    addresses = work()
    session.stop()
    view = session.view()
    if not addresses <= set(session.events()["address"].tolist()):
        raise SystemExit(f"the hook {path} does not report allocations")
    if view.problem:
        raise SystemExit(f"the hook {path} does not report the allocator's state: {view.problem}")
    print(PASSED)


def _attach(attach: Callable[..., object], *arguments: object) -> None:
    try:
        attach(*arguments)
    except HookError as error:
        print(error, file=sys.stderr)
        raise SystemExit(REFUSED) from error


if __name__ == "__main__":
    _, backend, path = sys.argv
    if backend == AUTOGRAD:
        probe_autograd(path)
    else:
        probe_allocator(backend, path)
