"""Which libraries does a process on simulated devices get?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytracer.errors import ConfigError
from pytracer.rehearsal import libraries


@pytest.fixture
def torch_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes the torch of this interpreter another one."""

    def become(cuda: str | None) -> None:
        package = tmp_path / "torch"
        (package / "lib").mkdir(parents=True, exist_ok=True)
        (package / "version.py").write_text(
            f"__version__ = '2.99.0'\ncuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n"
        )
        if cuda:
            (package / "lib/libc10_cuda.so").touch()
        monkeypatch.setattr(libraries, "_package", lambda name: tmp_path / name)

    return become


@pytest.mark.parametrize(
    ("cuda", "message"),
    [
        (None, r"torch 2\.99\.0 of .* is not built for CUDA.*pip install"),
        ("11.8", r"torch 2\.99\.0 is a build for cuda11, .* only for cuda12, cuda13"),
    ],
)
def test_a_torch_without_libraries_is_named(torch_of, cuda: str | None, message: str) -> None:
    torch_of(cuda)
    with pytest.raises(ConfigError, match=message):
        libraries.folder("cuda")


def test_a_missing_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="has no torch,"):
        libraries.folder("npu")


@pytest.mark.parametrize(("cuda", "version"), [("12.8", "12080"), ("13.2", "13020")])
def test_all_libraries_are_preloaded(
    torch_of, monkeypatch: pytest.MonkeyPatch, cuda: str, version: str
) -> None:
    torch_of(cuda)
    monkeypatch.setenv("LD_PRELOAD", "/other.so")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/other")
    major = cuda.partition(".")[0]

    changes = libraries.environment("cuda")

    folder = libraries.folder("cuda")
    assert folder.name == f"cuda{major}"
    assert changes["SIMULATED_CUDA_VERSION"] == version
    assert changes["LD_LIBRARY_PATH"] == f"{folder}:{folder.parent}:/other"
    model, *names, other = changes["LD_PRELOAD"].split(":")
    assert (model, other) == (str(folder.parent / libraries.MODEL), "/other.so")
    assert {Path(name).name for name in names} == set(os.listdir(folder))
    # Everything is there that torch is linked with, and loads without a word.
    loaded = subprocess.run(
        [sys.executable, "-c", LOADS, major, *names],
        env={
            **os.environ,
            **changes,
            "LD_PRELOAD": changes["LD_PRELOAD"].removesuffix(":/other.so"),
        },
        capture_output=True,
        text=True,
    )
    assert (loaded.returncode, loaded.stderr) == (0, "")


LOADS = """
import ctypes, sys
major, *names = sys.argv[1:]
for name in names:
    ctypes.CDLL(name.rpartition("/")[2])
runtime = ctypes.CDLL(f"libcudart.so.{major}")
version, handle = ctypes.c_int(), ctypes.c_void_p()
assert runtime.cudaRuntimeGetVersion(ctypes.byref(version)) == 0
assert version.value // 1000 == int(major), version
assert ctypes.CDLL("libcudnn.so.9").cudnnCreate(ctypes.byref(handle)) == 0 and handle.value
size = ctypes.c_int(7)
solver = ctypes.CDLL(f"libcusolver.so.{int(major) - 1}")
assert solver.cusolverDnSpotrf_bufferSize(None, 0, 4, None, 4, ctypes.byref(size)) == 0
assert size.value == 0
assert not hasattr(ctypes.CDLL("libcuda.so.1"), "cuNoSuchFunction")
"""


def test_a_path_with_spaces_is_left_to_the_search_path(
    torch_of, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch_of("13.0")
    own = libraries.folder("cuda").parent
    with_spaces = tmp_path / "my programs"
    (with_spaces / "rehearsal").mkdir(parents=True)
    (with_spaces / "rehearsal/_devices").symlink_to(own)
    monkeypatch.setattr(
        libraries, "HookFolders", lambda: type("Folders", (), {"package": [with_spaces]})
    )
    changes = libraries.environment("cuda")
    assert " " not in changes["LD_PRELOAD"]
    done = subprocess.run(
        [sys.executable, "-c", "import ctypes; ctypes.CDLL(None).cudaMalloc"],
        env={**os.environ, **changes},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
