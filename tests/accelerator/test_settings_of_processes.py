"""Which settings does a process have that is started or forked?"""

from pathlib import Path
from types import ModuleType

import pytest
from processes import run
from settings_state import PROGRAM, VARIABLES, without_settings

from pytracer.settings import change


@pytest.mark.parametrize(
    ("on", "restored"),
    [
        (True, "after"),
        (False, "before"),
        pytest.param(True, "before", marks=pytest.mark.long),
        pytest.param(False, "after", marks=pytest.mark.long),
    ],
)
def test_before_the_device_is_initialised(
    on: bool, restored: str, backend: str, tmp_path: Path
) -> None:
    # GIVEN a program that is started with the opposite, and with settings that a change resets
    others = "garbage_collection_threshold:0.8" if backend == "cuda" else "base_addr_aligned_kb:0"
    others = f"{others},roundup_power2_divisions:4"
    variable = f"PYTORCH_{backend.upper()}_ALLOC_CONF"
    begin = f"{others},expandable_segments:{not on}"
    env = without_settings(**{variable: begin})
    # WHEN it changes settings before the device is initialised, and restores them before or after
    change = f"expandable_segments:{on}"
    done = run(PROGRAM, backend, change, restored, cwd=tmp_path, env=env, new=True)
    # THEN the change is in force until the original settings are restored
    assert done.returncode == 0, done.stderr
    changed = f"{others},expandable_segments:{on}"
    if restored == "before":
        expected = [begin, f"{changed} False", f"{begin} False", f"{begin} {not on}"]
    else:
        expected = [begin, f"{changed} False", f"{changed} {on}", f"{begin} {not on}"]
    assert done.stdout.splitlines() == expected


@pytest.mark.parametrize(
    "variable",
    [VARIABLES[0], *(pytest.param(name, marks=pytest.mark.long) for name in VARIABLES[1:])],
)
def test_a_new_process_has_the_settings(
    variable: str, backend: str, device: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # GIVEN any of the variables, with a setting that a change resets
    setting = "roundup_power2_divisions:4"
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, setting)
    # WHEN a process is started for a change
    env = without_settings(**{variable: setting, **change.variables("expandable_segments:True")})
    done = run(PROGRAM, backend, "expandable_segments:False", cwd=tmp_path, env=env, new=True)
    # THEN it has both settings, except that of another backend's variable
    assert done.returncode == 0, done.stderr
    is_foreign = (variable, backend) == ("PYTORCH_NPU_ALLOC_CONF", "cuda")
    begin = f"{'' if is_foreign else setting + ','}expandable_segments:True"
    assert done.stdout.splitlines()[0] == begin
    assert done.stdout.splitlines()[-1] == f"{begin} True"
    # AND the check in a new process accepts the change, also where NVML does not answer
    assert change.check_in_new_process("expandable_segments:True") == backend
    monkeypatch.setenv("SIMULATED_NVML", "0")
    assert change.check_in_new_process("expandable_segments:True") == backend


ENVIRONMENT_PROGRAM = """
import torch, pytracer

def segment():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    block = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
    print((torch.cuda.memory_reserved() - before) >> 20)

segment()
torch._C._accelerator_setAllocatorSettings("max_split_size_mb:200")
segment()
with pytracer.allocator_settings("large_segment_size_mb:64"):
    segment()
segment()
"""


def test_settings_of_the_environment(backend: str, tmp_path: Path) -> None:
    # GIVEN a setting of the environment that CUDA does not show, and that another string left
    # unchanged; WHEN it is changed, THEN the environment's value is restored
    if backend == "npu":
        pytest.skip("torch_npu cannot change this setting")
    env = without_settings(PYTORCH_CUDA_ALLOC_CONF="large_segment_size_mb:40")
    done = run(ENVIRONMENT_PROGRAM, cwd=tmp_path, env=env, new=True)
    assert done.stdout.split() == ["40", "40", "64", "40"], done.stderr


FORK_PROGRAM = """
import os, sys, torch
backend = sys.argv[1]
if backend == "npu":
    import torch_npu
import pytracer
from pytracer.settings import change
getattr(torch, backend).init()
if os.fork() == 0:
    print(change.in_force(backend))
    try:
        pytracer.expandable_segments(True, device=backend)
    except pytracer.HookError as error:
        print(error)
else:
    os.wait()
"""


def test_a_forked_child(backend: str, tmp_path: Path) -> None:
    # GIVEN a child of a process that used the device, WHEN THEN pytracer does not query CUDA's
    # allocator, whose locks may be held; on an NPU the settings come from torch's own string
    done = run(FORK_PROGRAM, backend, cwd=tmp_path)
    known, refused = done.stdout.splitlines()
    assert known == ("None" if backend == "cuda" else "")
    assert "was forked from one that used" in refused


def test_another_allocator(backend: str, tmp_path: Path) -> None:
    # GIVEN a process with CUDA's own allocator, WHEN it changes settings, THEN an error is raised
    if backend == "npu":
        pytest.skip("torch_npu has no such allocator")
    env = without_settings(PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    done = run(PROGRAM, backend, "expandable_segments:True", cwd=tmp_path, env=env, new=True)
    assert "ConfigError: the CUDA allocator is cudaMallocAsync" in done.stderr
    # AND the setting can be tried in a new process
    assert change.check_in_new_process("backend:cudaMallocAsync") == "cuda"
