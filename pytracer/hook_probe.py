"""Tries a hook in a process of its own: `python -m pytracer.hook_probe BACKEND PATH`.

Exits with 0 if the hook attached, torch could allocate and free under it, and the allocations were
reported. A hook that does not fit this torch crashes here, where it harms nobody. Run by
`pytracer.hooks` with `PYTRACER=0`, so that nothing but this records.
"""

import sys


def main(backend: str, path: str) -> None:
    """Attaches the hook at `path` and works its allocator a little, off and on.

    Raises:
        SystemExit: The hook could not be loaded or attached (`hooks.REFUSED`, and the reason), or
            it attached and does not do its work, or there was no way to try (`hooks.NOT_TRIED`).
    """
    import torch

    from pytracer import _core, devices
    from pytracer.errors import HookError
    from pytracer.hooks import NOT_TRIED, REFUSED

    def work() -> set[int]:
        blocks = [torch.ones(size, device=backend) for size in (0, 1, 1000, 1_000_000)]
        blocks[1].resize_(5000)
        blocks.append(blocks[1].clone())
        if backend == "cpu" and any(block[:1].ne(1).any().item() for block in blocks):
            raise SystemExit(f"torch computes wrong values under the hook {path}")
        return {block.data_ptr() for block in blocks if block.numel()}

    try:
        if backend != "cpu":
            devices.torch_module(backend).init()
        before = torch.ones(1000, device=backend)
    except Exception as error:  # it is full, or another process has it for itself
        if backend == "cpu":
            raise
        raise SystemExit(NOT_TRIED) from error
    try:
        _core.attach_hook(path)
    except HookError as error:
        print(error, file=sys.stderr)
        raise SystemExit(REFUSED) from error
    del before  # allocated without the hook, freed under it
    work()
    device = _core.CPU_DEVICE if backend == "cpu" else 0
    owner = _core.Owner([device], max_entries=1000, stack_depth=1, max_stack_bytes=2**20, context=0)
    owner.start()
    addresses = work()
    owner.stop()
    view = owner.view()
    if not addresses <= set(owner.events()["address"].tolist()):
        raise SystemExit(f"the hook {path} does not report what is allocated")
    if view.problem:
        raise SystemExit(f"the hook {path} does not tell the allocator's state: {view.problem}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m pytracer.hook_probe BACKEND PATH")
    main(sys.argv[1], sys.argv[2])
