"""Tries a hook in a process of its own: `python -m pytracer.hook_probe BACKEND PATH`.

Exits with 0 if the hook attached, torch could allocate and free under it, and the allocations were
reported. A hook that does not fit this torch crashes here, where it harms nobody. Run by
`pytracer.hooks` with `PYTRACER=0`, so that nothing but this records.
"""

import sys


def main(backend: str, path: str) -> None:
    """Attaches the hook at `path` and works its allocator a little, off and on.

    Raises:
        HookError: The hook could not be loaded or attached.
        SystemExit: It attached and does not do its work.
    """
    import torch

    from pytracer import _core

    def work() -> set[int]:
        blocks = [torch.ones(size, device=backend) for size in (0, 1, 1000, 1_000_000)]
        blocks[1].resize_(5000)
        blocks.append(blocks[1].clone())
        if any(block[:1].ne(1).any().item() for block in blocks):
            raise SystemExit(f"torch computes wrong values under the hook {path}")
        return {block.data_ptr() for block in blocks if block.numel()}

    before = torch.ones(1000, device=backend)
    _core.attach_hook(path)
    del before  # allocated without the hook, freed under it
    work()
    device = _core.CPU_DEVICE if backend == "cpu" else 0
    owner = _core.Owner([device], max_entries=1000, stack_depth=1, max_stack_bytes=2**20, context=0)
    owner.start()
    addresses = work()
    owner.stop()
    if not addresses <= set(owner.view().events()["address"].tolist()):
        raise SystemExit(f"the hook {path} does not report what is allocated")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m pytracer.hook_probe BACKEND PATH")
    main(sys.argv[1], sys.argv[2])
