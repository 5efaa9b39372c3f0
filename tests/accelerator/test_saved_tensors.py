"""Test that an out-of-memory in the first step shows its activations, without an option."""

import pickle
from collections import Counter
from pathlib import Path

import processes
import pytest

from pytracer.analysis import explain
from pytracer.reading import load

PROGRAM = """
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pytracer

backend, where, output = sys.argv[1:]


def fill_all_but(size):
    device = getattr(torch, backend)
    device.empty_cache()  # what is cached, such as workspaces, would serve the backward pass
    return torch.empty(device.mem_get_info()[0] - size, dtype=torch.uint8, device=backend)


model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(256, 2048), nn.GELU(),
    nn.Linear(2048, 256), nn.LayerNorm(256)))).to(backend)
with pytracer.Tracer(output, device=backend):
    x = torch.ones(2048, 256, device=backend)
    if where == "forward":
        rest = fill_all_but(200 << 20)
    if where == "autocast":
        with torch.autocast(backend, torch.bfloat16):
            y = checkpoint(model, x, use_reentrant=False)
            torch.empty(1 << 40, dtype=torch.uint8, device=backend)
    if where == "compiled":
        model = torch.compile(model, backend="aot_eager")
    y = model(x)
    loss = y.square().mean()
    del y
    rest = fill_all_but(2 << 20)
    loss.backward()
"""


def failed(backend: str, where: str, folder: Path) -> Path:
    """Run the program, and return the file of its out-of-memory error."""
    done = processes.run(PROGRAM, backend, where, folder / "out", cwd=folder)
    assert "OutOfMemoryError" in done.stderr
    (path,) = (folder / "out").glob("oom_*/*")
    return path


def categories(path: Path) -> dict[str, int]:
    """Return the bytes of each category at the out-of-memory error."""
    (explanation,) = explain(load(path))
    return {each.category: each.size_bytes for each in explanation.categories}


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_most_memory_has_a_name(where: str, backend: str, tmp_path: Path) -> None:
    # GIVEN a training that runs out of memory in its first forward or backward pass
    path = failed(backend, where, tmp_path)
    content = pickle.loads(path.read_bytes())
    # THEN of the memory beside the tensor that fills the device, little is unknown
    sizes: Counter[str] = Counter()
    for segment in content["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and block["size"] < 1 << 30:
                sizes[block["category"]] += block["size"]
    assert sizes["activation"] > 32 << 20
    assert sizes["unknown"] < 0.15 * sizes["activation"]
    # AND the gradients on their way through the backward pass are temporary
    found = categories(path)
    if where == "backward":
        assert found["temporary"] >= 2048 * 256 * 4
    else:
        # Only the argument of the layer that runs, which no node has saved yet.
        assert found.get("temporary", 0) <= 17 << 20


def test_what_autocast_keeps_is_temporary(backend: str, tmp_path: Path) -> None:
    # GIVEN a checkpoint after which memory runs out: no node keeps the copies of parameters that
    # autocast makes, in its cache
    found = categories(failed(backend, "autocast", tmp_path))
    # THEN they are temporary: 16 of 1 MiB, and those of biases (an NPU's operators keep some more)
    assert 16 << 20 <= found["temporary"] < 24 << 20


def test_what_compiled_code_keeps_for_its_backward_pass(backend: str, tmp_path: Path) -> None:
    # GIVEN a compiled model that runs out of memory in its backward pass
    found = categories(failed(backend, "compiled", tmp_path))
    # THEN what it kept is activations: at least the input of each GELU, 16 MiB
    assert found["activation"] >= 8 * 16 << 20
