"""Is it reported which files were written, and which were asked for and never will be?"""

from datetime import datetime
from pathlib import Path

import pytest
import torch

import pytracer
from pytracer.backends.hook_build import HookBuilder
from pytracer.backends.hook_folders import HookFolders

pytestmark = pytest.mark.usefixtures("logged")


def test_files_of_steps_and_steps_that_never_came(
    capsys: pytest.CaptureFixture[str], logged: set[str]
) -> None:
    # WHEN two of three selected steps come
    with pytracer.Tracer("s", device="cpu", steps=[1, 2, 50]) as tracer:
        for _ in range(3):
            torch.empty(10)
            tracer.step()
    # THEN the first file has a line, and the last step has a warning
    lines = [line for line in capsys.readouterr().err.splitlines() if "wrote" in line]
    assert len(lines) == 1
    assert lines[0].startswith("pytracer: wrote ")
    assert "/s/step1/" in lines[0]
    assert logged == {"not all selected steps"}


def test_every_step_is_no_step_that_never_came(logged: set[str]) -> None:
    with pytracer.Tracer("s", device="cpu", steps=range(1, 2**31)) as tracer:
        torch.empty(10)
        tracer.step()
    assert not logged


def test_files_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    # WHEN two snapshots are demanded
    tracer = pytracer.Tracer("d", device="cpu", steps=[]).start()
    for _ in range(2):
        tracer._on_demand(datetime.now())
    tracer.stop()
    # THEN each has a line
    assert capsys.readouterr().err.count("pytracer: wrote ") == 2


@pytest.mark.parametrize(("rank", "messages"), [("0", 1), ("1", 0)])
def test_ranks_that_select_none(
    rank: str, messages: int, monkeypatch: pytest.MonkeyPatch, logged: set[str]
) -> None:
    # GIVEN a job of two ranks
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    # WHEN a rank that does not exist is to write files
    pytracer.Tracer("r", device="cpu", ranks=[99]).start().stop()
    # THEN the first rank says so
    assert len(logged) == messages
    for message in logged:
        assert (
            "no final snapshot will be written: ranks=[99] selects none of the ranks 0 to 1"
            in message
        )


def test_a_folder_of_hooks_that_does_not_exist(logged: set[str], tmp_path: Path) -> None:
    # GIVEN
    folders = HookFolders({"PYTRACER_HOOK_DIR": "/nonexist", "HOME": str(tmp_path)})
    builder = HookBuilder(folders)
    # WHEN a hook is looked for
    builder.find = lambda *_: object()  # type: ignore[method-assign,assignment,return-value]
    builder.find_or_build("cpu")
    # THEN
    assert logged == {"PYTRACER_HOOK_DIR='/nonexist' is not a folder and is ignored"}
