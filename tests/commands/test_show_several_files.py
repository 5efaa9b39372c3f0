"""What does `pytracer show --all` print of several files, or of none that can be read?"""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from commands import cells
from rich.console import Console
from show_command import CUDA, GOLDEN, invoke, write_content
from synthetic_program import run as run_program

from pytracer.commands import parallel
from pytracer.errors import PytracerError

pytestmark = pytest.mark.usefixtures("narrow_terminal")


def test_several_files_have_a_row_each(tmp_path: Path) -> None:
    # GIVEN a directory with two files, and a temporary one that is being written
    for name in ("step1/a.pickle", "step2/a.pickle", "step2/.pytracer-x.tmp.pickle"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(GOLDEN / "snapshot-1.3-cpu.pickle", tmp_path / name)
    # WHEN the report is printed, THEN each complete file has one row, even if it is named twice
    result = invoke(tmp_path, tmp_path / "step1")
    assert result.exit_code == 0
    numbers = [row[1:] for row in cells(result.output) if row[0].startswith("step")]
    assert ["832 B", "-", "-", "0", "no"] in numbers
    assert sum(row[:3] == ["832 B", "-", "-"] for row in numbers) == 2
    # AND the report of each file follows
    assert invoke(tmp_path, "--top", 3).output.count("Memory held at the peak") == 2


def test_unreadable_files_are_errors_and_the_others_are_shown(tmp_path: Path) -> None:
    # GIVEN an invalid file, a missing one, and a good one
    (tmp_path / "bad.pickle").write_bytes(b"no pickle")
    paths = [tmp_path / "bad.pickle", tmp_path / "nothing.pickle", CUDA]
    # WHEN the report is printed
    result = invoke(*paths)
    # THEN the good file is shown, each other file is an error line, and the exit code is 1
    assert result.exit_code == 1
    assert "8.127 MiB" in result.stdout
    assert len(result.stderr.splitlines()) == 2
    assert all(line.startswith("Error: ") for line in result.stderr.splitlines())
    assert all(name in result.stderr for name in ("bad.pickle", "nothing.pickle"))
    # AND JSON has the errors
    report = json.loads(invoke(*paths, "--json").stdout)
    assert [file["path"] for file in report["files"]] == [str(CUDA)]
    assert len(report["errors"]) == 2


@pytest.mark.parametrize(
    ("key", "is_lossy"),
    [
        *(("overwritten", True), ("live_dropped", True), ("labels_dropped", True)),
        *(("unknown_frees", False), ("untraced", True), ("waiting", False)),
    ],
)
def test_which_losses_the_overview_reports(tmp_path: Path, key: str, is_lossy: bool) -> None:
    # GIVEN a file with one kind of loss
    content = run_program([("alloc", 10, 0)]).content()
    content["pytracer"]["devices"][0][key] = 1
    content["pytracer"][key] = "a reason"
    path = write_content(tmp_path, content)
    shutil.copy(path, tmp_path / "again.pickle")
    # WHEN it is one of several files, THEN its row says whether the levels may be wrong
    rows = cells(invoke(tmp_path, "--device", 1).output)
    losses = [row[-1] for row in rows if ".pickle" in row[0]]
    assert losses == ["yes" if is_lossy else "no"] * 2


def test_progress_and_errors_of_many_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN work that takes longer than the delay before the progress bar
    monkeypatch.setattr(parallel, "PATIENCE_S", 0.01)
    monkeypatch.setattr(parallel, "Console", terminal)

    def slow_read(path: Path) -> str:
        time.sleep(0.05)
        if path.name == "b":
            raise PytracerError("b is bad")
        return path.name

    # WHEN it runs for several files
    results = parallel.in_parallel(slow_read, [Path(name) for name in "abc"], "Reading them")
    # THEN results are in order, the error among them, and a terminal shows the progress
    assert [str(result) for result in results] == ["a", "b is bad", "c"]
    assert "Reading them" in capsys.readouterr().err
    # AND errors are printed
    assert parallel.print_errors(results)
    assert capsys.readouterr().err == "Error: b is bad\n"
    assert not parallel.print_errors(["a"])


def terminal(**options: Any) -> Any:

    return Console(**options, force_terminal=True)


def test_an_error_other_than_pytracers_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        parallel.in_parallel(lambda path: 1 // 0, [Path("a")], "Reading")
