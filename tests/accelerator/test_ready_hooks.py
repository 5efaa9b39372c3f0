"""Record where there is no compiler, with the prebuilt hooks of the installed wheel."""

import os
import pickle
import re
from pathlib import Path

import pytest
import tools
from amount import LONG
from processes import run_python

from pytracer.backends.hook_build import READY, HookBuilder

PROGRAM = """
import os, shutil
import torch
import pytracer
assert not any(map(shutil.which, ("c++", "g++", "clang++", "cmake")))
for device in os.environ["DEVICES"].split():
    with pytracer.Tracer(f"{device}.pickle", device=device, forward_stacks=True) as tracer:
        weight = torch.ones(1000, 1000, device=device, requires_grad=True)
        (weight * 2).sum().backward()
    assert tracer.stats()["untraced"] is None, tracer.stats()
    recorded = tracer.stats()["devices"][0]["recorded"]
    assert recorded >= 3, recorded
"""


@pytest.fixture
def bare(backend: str, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user with prebuilt hooks, an empty home and an empty PATH."""
    builder = HookBuilder()
    if not builder.ready.releases(backend):
        tools.missing("pytracer was not installed from a wheel with prebuilt hooks")
    for name in (backend, "cpu", "autograd"):
        found = builder.find(name)
        assert found is not None
        assert found.folder == READY
    for name in ("home", "cache", "tmp", "path"):
        (tmp_path / name).mkdir()
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTRACER")},
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path / "tmp"),
        "PATH": str(tmp_path / "path"),
    }


def run(arguments: list[str], folder: Path, env: dict[str, str]) -> str:
    """Run Python with the arguments; no hook must be compiled. Return what it printed."""
    done = run_python(*arguments, cwd=folder, env=env, new=True)
    assert done.returncode == 0, done.stderr
    assert not list(folder.rglob("*.so"))
    return done.stdout


def test_records_without_a_compiler_and_without_a_cache(
    backend: str, bare: dict[str, str], tmp_path: Path
) -> None:
    run(["-c", PROGRAM], tmp_path, {**bare, "DEVICES": f"{backend} cpu"})
    for device in (backend, "cpu"):
        assert (tmp_path / f"{device}.pickle").stat().st_size > 0


def test_the_demo_runs_without_a_compiler(
    backend: str, bare: dict[str, str], tmp_path: Path
) -> None:
    for device in (backend, "cpu") if LONG else (backend,):
        # WHEN the demo runs
        output = f"{device}.pickle"
        arguments = ["demo", "--device", device, "--steps", "3", "--output", output]
        printed = run(["-m", "pytracer", *arguments], tmp_path, bare)
        # THEN it has recorded that device, and printed its report
        content = pickle.loads((tmp_path / output).read_bytes())
        assert content["pytracer"]["backends"] == [device]
        assert re.search(r"^ peak .* MiB in step \d+", printed, re.MULTILINE), printed
