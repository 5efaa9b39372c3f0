"""Test what `make wheels` makes, as far as it needs no network."""

import importlib
import json
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pytracer.backends.ready_hooks import ReadyHook
from pytracer.backends.running_torch import TorchBuild

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / ".ci/wheels"


@pytest.fixture
def compilation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module that compiles ready hooks; it needs fsspec, which torch installs."""
    monkeypatch.syspath_prepend(WHEELS)
    return importlib.import_module("compilation")


def test_every_release_that_tests_run_on_is_pinned() -> None:
    # GIVEN the releases of the Makefile
    makefile = (ROOT / "Makefile").read_text()
    (hooks,) = re.findall(r"^TESTED_HOOKS := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    (names,) = re.findall(r"^ACCELERATORS := (.*)$", makefile, re.MULTILINE)
    tested = {
        f"{'torch-npu' if backend == 'npu' else 'torch'}=={version}"
        for backend, version in (name.split("-") for name in names.split())
    }
    # THEN the wheel of `make test` has their hooks, and their files are pinned by hash
    pinned = json.loads((WHEELS / "pins.json").read_text())
    wanted = set(hooks.replace("\\", "").split())
    assert tested <= wanted
    assert wanted <= {f"{name}=={version}" for name in pinned for version in pinned[name]}
    for versions in pinned.values():
        for machines in versions.values():
            hashes = [digest for machine in machines.values() for digest in machine.values()]
            assert len(hashes) == 4
            assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in hashes)


def test_a_hook_compiled_twice_is_the_same_to_the_byte(
    compilation: ModuleType, tmp_path: Path
) -> None:
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    made: list[ReadyHook] = []
    contents = []
    for place in ("here", "somewhere/else"):
        # GIVEN the headers of one torch in a folder of their own
        headers, output = tmp_path / place / "headers", tmp_path / place / "hooks"
        (headers / "torch/lib").mkdir(parents=True)
        output.mkdir()
        installed = Path(torch.__file__).parent / "include"
        for folder in ("c10", "torch/headeronly"):
            if (installed / folder).is_dir():
                shutil.copytree(installed / folder, headers / "torch/include" / folder)
        compilation.make_stand_ins(headers / "torch/lib")
        # WHEN
        build = TorchBuild("9.9.0", headers / "torch", True)
        release = importlib.import_module("pins").Release("torch", "9.9.0")
        hook = compilation.compile_hook("cpu", release, build, headers, output)
        made.append(hook)
        contents.append((output / hook.library).read_bytes())
    # THEN neither the index's entry nor the library depends on the folder
    assert made[0] == made[1]
    assert contents[0] == contents[1]
    assert str(tmp_path).encode() not in contents[0]
    assert "c10/core/CPUAllocator.h" in made[0].headers
    assert "hooks/hook_abi.h" in made[0].headers
    assert not [name for name in made[0].headers if name.startswith(("/", ".."))]
