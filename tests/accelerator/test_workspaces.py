"""Test which blocks have the category "workspace" against those that torch itself frees."""

import os
from pathlib import Path

import pytest
from processes import environment, run_python

from pytracer.backends.hook_compile import HookCompiler

PROGRAM = Path(__file__).with_name("workspace_programs.py")


@pytest.fixture(autouse=True)
def on_cuda(backend: str) -> None:
    if backend != "cuda":
        pytest.skip("cuBLAS is CUDA's")


def check(name: str, *arguments: object, folder: Path, **variables: str) -> None:
    """Run a program in which torch keeps workspaces, which 2.15 does not by default."""
    env = environment(**{"TORCH_CUBLAS_WORKSPACE_CACHE": "1", **variables})
    done = run_python(PROGRAM, name, *arguments, cwd=folder, env=env, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("cache", ["1", pytest.param("0", marks=pytest.mark.long)])
def test_workspaces_are_those_that_torch_frees(tmp_path: Path, cache: str) -> None:
    check("streams_threads_and_devices", folder=tmp_path, TORCH_CUBLAS_WORKSPACE_CACHE=cache)


def test_cublaslt_has_workspaces_of_its_own(tmp_path: Path) -> None:
    check("cublas_and_cublaslt", folder=tmp_path, TORCH_CUBLASLT_UNIFIED_WORKSPACE="0")


@pytest.mark.parametrize(
    "name", ["out_of_memory", "nothing_is_made", "map_in_use", "changing_threads"]
)
def test_reading(tmp_path: Path, name: str) -> None:
    check(name, folder=tmp_path)


def test_a_hook_that_cannot_read_them_records_all_else(tmp_path: Path) -> None:
    hook = tmp_path / "hook.so"
    compiler = HookCompiler()
    options = [f"-Wl,-rpath,{compiler.torch().root / 'lib'}", "-DPYTRACER_NO_WORKSPACES"]
    command = os.environ.get("CXX", "c++").split()
    compiler.compile(command, "cuda", hook, options)
    check("hook_without_workspaces", hook, folder=tmp_path)
