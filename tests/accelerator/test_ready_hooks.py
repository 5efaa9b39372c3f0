"""Record where there is no compiler, with the ready hooks of the installed wheel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytracer.backends.hook_build import READY, HookBuilder
from pytracer.backends.ready_hooks import ReadyHooks

PROGRAM = """
import os, shutil
os.environ["PATH"] = os.environ["XDG_CACHE_HOME"]  # an empty folder
import torch
import pytracer
assert not any(map(shutil.which, ("c++", "g++", "clang++", "cmake")))
device = os.environ["DEVICE"]
with pytracer.Tracer("snapshot.pickle", device=device, forward_stacks=True) as tracer:
    weight = torch.ones(1000, 1000, device=device, requires_grad=True)
    (weight * 2).sum().backward()
assert tracer.stats()["untraced"] is None, tracer.stats()
recorded = tracer.stats()["devices"][0]["recorded"]
assert recorded >= 3, recorded
"""


def test_records_without_a_compiler_and_without_a_cache(backend: str, tmp_path: Path) -> None:
    builder = HookBuilder()
    if not ReadyHooks(builder.folders.package).releases(backend):
        pytest.skip("pytracer was not installed from a wheel with ready hooks")
    # GIVEN an installation whose hook is ready, an empty home and an empty PATH
    for name in (backend, "cpu", "autograd"):
        found = builder.find(name)
        assert found is not None
        assert found.folder == READY
    for name in ("home", "cache", "tmp"):
        (tmp_path / name).mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTRACER")},
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path / "tmp"),
    }
    for device in (backend, "cpu"):
        # WHEN
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=tmp_path,
            env={**environment, "DEVICE": device},
            capture_output=True,
            text=True,
            check=False,
        )
        # THEN it was recorded, and no hook was compiled
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "snapshot.pickle").stat().st_size > 0
        assert not list(tmp_path.rglob("*.so"))
        (tmp_path / "snapshot.pickle").unlink()
