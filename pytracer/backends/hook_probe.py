"""Try a hook in this process: `python -m pytracer.backends.hook_probe BACKEND PATH`.

The process prints `PASSED` and exits with 0 if the hook attached, torch could allocate and free
under it, and the allocations were reported. `pytracer.backends.probe_process` starts it, with
`PYTRACER=0`, so that nothing else records.
"""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytracer import _core


def probe_autograd(path: str) -> None:
    """Attach the library at `path`, and compare what it reads in a node with what torch says.

    Raises:
        SystemExit: The library cannot be attached (`REFUSED`), or it reads something else.
    """
    import torch

    from pytracer import _core
    from pytracer.backends.probe_process import PASSED
    from pytracer.backends.running_torch import engine_code

    _attach(_core.attach_autograd, os.fsencode(path), engine_code())
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
        raise SystemExit(f"the library {path} reads {read} in autograd's nodes instead of {wanted}")
    print(PASSED)


def probe_host(path: str) -> None:
    """Attach the hook for pinned memory at `path`, and pin and free memory under it.

    Raises:
        SystemExit: As for `main`.
    """
    import torch

    from pytracer import _core
    from pytracer.backends.probe_process import NOT_TRIED

    try:
        torch.cuda.init()
        before = torch.ones(1000, pin_memory=True)
    except Exception as error:
        raise SystemExit(NOT_TRIED) from error
    _attach(_core.attach_hook, os.fsencode(path))
    del before  # allocated without the hook
    session = _core.Session(
        [_core.HOST_DEVICE], max_entries=1000, stack_depth=1, max_stack_bytes=2**20, context=0
    )
    session.start()
    blocks = [torch.ones(size).pin_memory() for size in (1, 1000, 1_000_000)]
    addresses = {block.data_ptr() for block in blocks}
    there = blocks[1].to("cuda", non_blocking=True)
    kept = blocks.pop()
    del blocks, there
    session.stop()
    if not kept.is_pinned() or kept[:2].ne(1).any().item():
        raise SystemExit(f"torch computes wrong values under the hook {path}")
    _check_recording(session, addresses, path)


def main(backend: str, path: str) -> None:
    """Attach the hook at `path`, and allocate and free with and without a recording.

    Raises:
        SystemExit: The hook cannot be attached (`REFUSED`, after the reason), it attached and does
            not do its work, or the device cannot be used (`NOT_TRIED`).
    """
    import torch

    from pytracer import _core
    from pytracer.backends.probe_process import NOT_TRIED
    from pytracer.backends.running_torch import torch_module

    def work() -> set[int]:
        blocks = [torch.ones(size, device=backend) for size in (0, 1, 1000, 1_000_000)]
        blocks[1].resize_(5000)
        blocks.append(blocks[1].clone())
        if backend == "cpu" and any(block[:1].ne(1).any().item() for block in blocks):
            raise SystemExit(f"torch computes wrong values under the hook {path}")
        return {block.data_ptr() for block in blocks if block.numel()}

    try:
        if backend != "cpu":
            torch_module(backend).init()
        before = torch.ones(1000, device=backend)
    except Exception as error:  # the device is full, or another process has it exclusively
        if backend == "cpu":
            raise
        raise SystemExit(NOT_TRIED) from error
    _attach(_core.attach_hook, os.fsencode(path))
    del before  # this block was allocated without the hook and is freed under it
    work()
    device = _core.CPU_DEVICE if backend == "cpu" else 0
    session = _core.Session(
        [device], max_entries=1000, stack_depth=1, max_stack_bytes=2**20, context=0
    )
    session.start()
    addresses = work()
    session.stop()
    _check_recording(session, addresses, path)


def _attach(attach: Callable[..., object], *arguments: object) -> None:
    from pytracer.backends.probe_process import REFUSED
    from pytracer.errors import HookError

    try:
        attach(*arguments)
    except HookError as error:
        print(error, file=sys.stderr)
        raise SystemExit(REFUSED) from error


def _check_recording(session: "_core.Session", addresses: set[int], path: str) -> None:
    """Check that a recording that has ended has all addresses, and print that it has."""
    from pytracer.backends.probe_process import PASSED

    view = session.view()
    if not addresses <= set(session.events()["address"].tolist()):
        raise SystemExit(f"the hook {path} does not report allocations")
    if view.problem:
        raise SystemExit(f"the hook {path} does not report the allocator's state: {view.problem}")
    print(PASSED)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m pytracer.backends.hook_probe BACKEND PATH")
    if sys.argv[1] == "autograd":
        probe_autograd(sys.argv[2])
    elif sys.argv[1] == "host":
        probe_host(sys.argv[2])
    else:
        main(sys.argv[1], sys.argv[2])
