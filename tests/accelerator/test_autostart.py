"""Test `PYTRACER=1` on an accelerator, with torch and torch_npu imported in various orders."""

import pickle
from pathlib import Path

import processes
import pytest
from processes import run

JOB = """
import inspect, sys
def work(size):
    return torch.empty(size, dtype=torch.uint8, device=sys.argv[1])
held = work(5000)
memory = getattr(torch, sys.argv[1]).memory
for name in ("_record_memory_history", "_snapshot"):
    function = getattr(memory, name)
    print(function.__module__.startswith("pytracer"))
    print("stack_depth" in inspect.signature(function).parameters)
"""
LATE = "import os\nos.environ.update(PYTRACER='1', PYTRACER_PATCH_TORCH='1')\nimport torch"
SET = {"PYTRACER": "1", "PYTRACER_PATCH_TORCH": "1"}
EXPLICIT = {**SET, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
ORDERS = {
    "torch": ("import torch", SET),
    "variables set late": (LATE, {}),
    "torch_npu first": ("import torch_npu\nimport torch", SET),
    "torch_npu first, by hand": ("import torch_npu\nimport torch", EXPLICIT),
    "torch_npu after, by hand": ("import torch\nimport torch_npu", EXPLICIT),
    "torch_npu late, by hand": ("import torch\nx = torch.empty(3000)\nimport torch_npu", EXPLICIT),
}

IN_LONG = "torch_npu after, by hand"  # the order that "torch_npu late, by hand" includes


@pytest.fixture
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return processes.installed(tmp_path_factory.mktemp("installed"))


@pytest.mark.parametrize(
    "order",
    [pytest.param(name, marks=pytest.mark.long if name == IN_LONG else ()) for name in ORDERS],
)
def test_the_device_is_found(backend: str, tmp_path: Path, env: dict[str, str], order: str) -> None:
    # GIVEN torch, and torch_npu, imported in some order, by torch's autoload or explicitly
    imports, variables = ORDERS[order]
    if backend != "npu" and "torch_npu" in imports:
        pytest.skip("NPUs only")
    env.update(variables)
    # WHEN a job allocates
    done = run(imports + JOB, backend, cwd=tmp_path, env=env, new=True)
    # THEN its device is recorded, and torch's recorder functions are replaced
    assert done.returncode == 0, done.stderr
    assert "pytracer" not in done.stderr
    assert done.stdout.split() == ["True", "True", "True", "False"]
    (path,) = tmp_path.rglob("*.pickle")
    snapshot = pickle.loads(path.read_bytes())
    assert snapshot["pytracer"]["backends"] == [backend]
    (event,) = [e for e in snapshot["device_traces"][0] if e["action"] == "alloc"]
    assert event["size"] == 5000
    assert event["frames"][0]["name"] == "work"


def test_a_process_that_does_not_use_the_device(
    backend: str, tmp_path: Path, env: dict[str, str]
) -> None:
    # WHEN a process counts the devices, and computes on the CPU
    program = "import sys, torch\ngetattr(torch, sys.argv[1]).device_count()\ntorch.ones(5) + 1"
    env["PYTRACER"] = "1"
    done = run(program, backend, cwd=tmp_path, env=env)
    # THEN it writes no file
    assert done.returncode == 0, done.stderr
    assert [*tmp_path.rglob("*.pickle")] == []


@pytest.mark.parametrize("switch", ["PYTRACER", "PYTRACER_PATCH_TORCH"])
def test_tracing_and_the_patch_are_separate_switches(
    backend: str, tmp_path: Path, env: dict[str, str], switch: str
) -> None:
    # GIVEN one of the switches
    env[switch] = "1"
    done = run("import torch" + JOB, backend, cwd=tmp_path, env=env)
    # THEN only its function is on
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True" if switch == "PYTRACER_PATCH_TORCH" else "False")
    assert len([*tmp_path.rglob("*.pickle")]) == (switch == "PYTRACER")


@pytest.mark.parametrize(
    "visible",
    [
        pytest.param("0", id="one before", marks=pytest.mark.long),
        pytest.param("", id="none before"),
    ],
)
def test_devices_that_become_visible_late(
    backend: str, tmp_path: Path, env: dict[str, str], visible: str
) -> None:
    # GIVEN a process that sees one device, or none, when it imports torch
    variable = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}[backend]
    env.update({"PYTRACER": "1", variable: visible})
    program = """
import os, sys, torch
backend, variable = sys.argv[1:]
# WHEN others become visible after that, as in Ray's workers, and the last one is used
os.environ[variable] = "0,1"
last = getattr(torch, backend).device_count() - 1
block = torch.empty(5000, dtype=torch.uint8, device=f"{backend}:{last}")
"""
    done = run(program, backend, variable, cwd=tmp_path, env=env, new=True)
    # THEN this device is recorded
    assert done.returncode == 0, done.stderr
    assert "pytracer" not in done.stderr
    (path,) = tmp_path.rglob("*.pickle")
    traces = pickle.loads(path.read_bytes())["device_traces"]
    assert [e["size"] for e in traces[-1] if e["action"] == "alloc"] == [5000]
