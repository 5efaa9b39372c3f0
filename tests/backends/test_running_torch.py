"""Test the import of torch."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pytracer.backends.running_torch import torch_build
from pytracer.errors import HookError


def test_torch_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    monkeypatch.setitem(sys.modules, "torch", None)
    # WHEN / THEN
    with pytest.raises(HookError, match="torch is not installed"):
        torch_build()


@pytest.mark.parametrize(
    "failure", ["raise OSError('libgomp.so.1: not found')", "import a_missing_module"]
)
def test_torch_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    # GIVEN
    (tmp_path / "torch.py").write_text(failure)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    # WHEN / THEN
    with pytest.raises(HookError, match=r"importing torch failed .*(libgomp|a_missing_module)"):
        torch_build()


@pytest.mark.parametrize("version", ["1.13.1", "2.5.1+cu121"])
def test_torch_that_is_too_old(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a torch that pip has not compared with anything, because torch is no dependency
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setattr(sys.modules["torch"], "__version__", version, raising=False)
    # WHEN / THEN
    with pytest.raises(HookError, match=rf"torch {re.escape(version)} is older than 2\.6"):
        torch_build()
