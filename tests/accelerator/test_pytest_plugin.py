"""Test the plugin for pytest on an accelerator, which its markers check by default."""

import importlib.metadata
from pathlib import Path

import processes
import pytest

TESTS = """
import pytest
import torch
IMPORT
kept = []

@pytest.mark.max_device_memory("256 MiB")
@pytest.mark.no_device_leak
def test_training():
    model = torch.nn.Linear(256, 256, device="BACKEND")
    for _ in range(3):
        model(torch.ones(64, 256, device="BACKEND")).sum().backward()

@pytest.mark.max_device_memory("1 MiB")
def test_large():
    torch.ones(1_000_000, device="BACKEND")

@pytest.mark.no_device_leak
def test_leak():
    kept.append(torch.ones(100_000, device="BACKEND"))
"""


@pytest.mark.slow
def test_markers_check_the_accelerator(backend: str, tmp_path: Path) -> None:
    imports = "import torch_npu" if backend == "npu" else ""
    text = TESTS.replace("BACKEND", backend).replace("IMPORT", imports)
    (tmp_path / "test_it.py").write_text(text)
    entries = {entry.name for entry in importlib.metadata.entry_points(group="pytest11")}
    plugin = [] if "torch-pytracer" in entries else ["-p", "pytracer.commands.pytest_plugin"]
    done = processes.run_python("-m", "pytest", "-q", *plugin, "test_it.py", cwd=tmp_path)
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "1 error" in done.stdout
    assert f"test_large allocated 3.815 MiB on {backend}:0, 2.815 MiB more than" in done.stdout
    assert f"test_leak left 391 KiB of its allocations on {backend}:0" in done.stdout
    assert "test_it.py:" in done.stdout
