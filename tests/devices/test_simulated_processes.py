"""Which devices does a process have, and what does it ask of them?"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import simulated
import torch
from devices import backends
from processes import HANG_S
from simulated_memory import MB, backend, empty

if not simulated.active():
    pytest.skip("runs under tests/devices/simulate", allow_module_level=True)
# Warnings of torch and torch_npu do not matter here.
pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_forked_child_gets_an_error():
    empty(MB)
    child = os.fork()
    if child == 0:
        # Call the allocator itself, because torch's Python code would refuse earlier.
        status = 1
        try:
            torch.empty(300 * MB, dtype=torch.uint8, device=backend.name)
        except RuntimeError:
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert empty(MB).numel() == MB


# Settings of the environment.

IMPORT = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import simulated"
CHILD = (
    f"{IMPORT}\n"
    """
import importlib.util, json, os, sys
import torch
backend = "npu" if importlib.util.find_spec("torch_npu") else "cuda"
api = getattr(torch, backend)
values = torch.arange(1000, dtype=torch.float32).to(backend)
event = api.Event()
event.record()
queries = 1
while not event.query() and queries < 100_000:
    queries += 1
print(json.dumps({
    "devices": api.device_count(),
    "total": [api.mem_get_info(device)[1] for device in range(api.device_count())],
    "used": [simulated.used_bytes(device) for device in range(simulated.devices())],
    "expandable": [s["is_expandable"] for s in api.memory._snapshot()["segments"]],
    "queries": queries,
    "round_trip": values.cpu().sum().item(),
}))
"""
)


def run_child(**environment):
    result = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == 0, result.stderr
    return SimpleNamespace(**json.loads(result.stdout))


def test_the_environment_configures_the_devices():
    child = run_child(
        **{backend.settings: "expandable_segments:True", backend.visible: "2,1"},
        SIMULATED_DEVICES="3",
        SIMULATED_CAPACITY_MB="700",
        SIMULATED_BACKED="1",
        SIMULATED_PENDING_QUERIES="2",
    )
    assert child.devices == 2
    assert child.total == [700 * MB] * 2
    assert child.used[2] > 0
    assert child.used[:2] == [0, 0]
    assert child.expandable == [True]
    assert child.queries == 3 if backend is backends.Cuda else child.queries >= 3
    assert child.round_trip == sum(range(1000))


def test_busy_from_the_start():
    child = run_child(PYTORCH_ALLOC_CONF="expandable_segments:True", SIMULATED_BUSY="1")
    assert child.devices == 2
    assert child.expandable == [True]
    assert child.queries == 100_000
    assert child.round_trip == sum(range(1000))  # small, and nothing was launched since


STILL_IN_BACKWARD = """
import threading, time
import torch

class Endless(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        entered.set()
        while True:
            time.sleep(0.001)

entered = threading.Event()
loss = Endless.apply(torch.ones(1, device="cuda", requires_grad=True)).sum()
threading.Thread(target=loss.backward, daemon=True).start()
entered.wait()
"""


@pytest.mark.skipif(backend is not backends.Cuda, reason="the libraries are not preloaded")
def test_a_program_may_end_while_a_thread_wants_pythons_lock():
    result = subprocess.run(
        [sys.executable, "-c", STILL_IN_BACKWARD], capture_output=True, text=True, timeout=HANG_S
    )
    assert (result.returncode, result.stderr) == (0, "")


# The module itself.


def test_wrong_names_and_devices_are_refused():
    with pytest.raises(ValueError, match="no counter"):
        simulated.counter("mallocs")
    with pytest.raises(ValueError, match="there are 2"):
        simulated.used_bytes(2)


def test_outside_a_simulation():
    code = f"{IMPORT}; assert not simulated.active(); simulated.devices()"
    environment = {
        k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "LD_PRELOAD")
    }
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert "tests/devices/simulate" in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(backend is backends.Cuda, reason="those for CUDA are in the package")
def test_the_libraries_are_made_once(tmp_path):
    script = Path(__file__).parent / "simulate"
    command = [script, backend.name, sys.executable, "-c", f"{IMPORT}; simulated.devices()"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    both = [
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    stderr = "".join(process.communicate(timeout=HANG_S)[1] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert stderr.count("making") == 1
    assert len([path for path in (tmp_path / "pytracer").iterdir() if path.is_dir()]) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SIMULATED_DEVICES", "65"),
        ("SIMULATED_CAPACITY_BYTES", "80GB"),
        ("SIMULATED_MULTIPROCESSORS", "-1"),
        ("SIMULATED_NAME", "x" * 96),
    ],
)
def test_a_wrong_setting_ends_the_process(name, value):
    result = subprocess.run(
        [sys.executable, "-c", f"{IMPORT}; simulated.devices()"],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert f"simulated: {name}={value[:80]} must be" in result.stderr


def test_a_device_is_described_by_the_environment():
    described = {
        "SIMULATED_NAME": "NVIDIA H100 80GB HBM3" if backend is backends.Cuda else "Ascend910B2C",
        "SIMULATED_CAPACITY_BYTES": "85028896768",
        "SIMULATED_COMPUTE_CAPABILITY": "90",
        "SIMULATED_MULTIPROCESSORS": "132",
        "SIMULATED_L2_BYTES": str(50 << 20),
        "SIMULATED_SHARED_MULTIPROCESSOR_BYTES": "233472",
        "SIMULATED_SHARED_BLOCK_BYTES": "232448",
        "SIMULATED_MULTIPROCESSOR_THREADS": "2048",
    }
    result = subprocess.run(
        [sys.executable, "-c", DESCRIBE],
        env={**os.environ, **described},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found.pop("total") == 85028896768
    assert found.pop("name") == described["SIMULATED_NAME"]
    if backend is backends.Cuda:
        assert found == {
            "nvml": described["SIMULATED_NAME"],
            "capability": [9, 0],
            "multi_processor_count": 132,
            "L2_cache_size": 50 << 20,
            "shared_memory_per_multiprocessor": 233472,
            "shared_memory_per_block_optin": 232448,
            "max_threads_per_multi_processor": 2048,
        }


DESCRIBE = """
import ctypes, importlib.util, json
import torch
backend = "npu" if importlib.util.find_spec("torch_npu") else "cuda"
api = getattr(torch, backend)
found = {"total": api.mem_get_info()[1], "name": api.get_device_name()}
if backend == "cuda":
    of = torch.cuda.get_device_properties(0)
    names = ("multi_processor_count", "L2_cache_size", "shared_memory_per_multiprocessor",
             "shared_memory_per_block_optin", "max_threads_per_multi_processor")
    found |= {name: getattr(of, name) for name in names}
    found["capability"] = torch.cuda.get_device_capability()
    nvml, handle, name = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_char * 96)()
    assert nvml.nvmlInit_v2() == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    assert nvml.nvmlDeviceGetName(handle, name, 96) == 0
    found["nvml"] = name.value.decode()
print(json.dumps(found))
"""
