"""The command prints the answer and a line to paste, or why there is none."""

import json
import pickle
from pathlib import Path

import pytest
from allocator_workloads import content, phases, pinned_segments, write
from commands import cells, invoke

from pytracer.errors import PytracerError
from pytracer.recommendation import recommend
from pytracer.variables import command_of

GOLDEN = Path(__file__).parents[1] / "golden"


def test_the_command(tmp_path: Path) -> None:
    # GIVEN a recording that does not fit
    path = write(tmp_path / "recorded.pickle", pinned_segments)
    done = invoke("recommend", path, "--capacity", "1800MiB")
    # THEN the first lines are the answer and the line to paste
    assert done.exit_code == 0, done.stderr
    first, second = done.stdout.splitlines()[:2]
    assert first.startswith("Use expandable_segments:True: ")
    assert second == "  export PYTORCH_ALLOC_CONF=expandable_segments:True"
    # AND the table has the recommended and the own settings first
    rows = cells(done.stdout)
    assert rows[0][:2] == ["expandable_segments:True", "no"]
    assert rows[1][:2] == ["own settings", "yes"]
    # AND JSON has the same answer
    report = json.loads(invoke("recommend", path, "--capacity", "1800MiB", "--json").stdout)[
        "recommendations"
    ][0]
    assert report["answer"] == first
    assert len(report["tried"]) >= 30


@pytest.mark.parametrize(
    ("version", "own", "line"),
    [
        ("2.8.0", "", "export PYTORCH_CUDA_ALLOC_CONF=a:1"),
        ("2.9.1", "", "export PYTORCH_CUDA_ALLOC_CONF=a:1"),
        ("2.10.0", "b:1", "export PYTORCH_ALLOC_CONF=a:1"),
        ("2.12.1", "", "export PYTORCH_ALLOC_CONF=a:1"),
        ("2.15.0", "b:1", "export PYTORCH_CUDA_ALLOC_CONF=a:1"),
        (None, "", "export PYTORCH_CUDA_ALLOC_CONF=a:1"),
    ],
)
def test_the_line_names_the_variable_that_counts(version: str | None, own: str, line: str) -> None:
    assert command_of("a:1", "cuda", version, own) == line
    assert command_of("a:1", "npu", version, own) == "export PYTORCH_NPU_ALLOC_CONF=a:1"


@pytest.mark.parametrize("capacity", ["80GiBs", "-1", "0", "much", "1e9"])
def test_an_invalid_capacity(capacity: str) -> None:
    done = invoke("recommend", GOLDEN / "snapshot-1.5-cuda.pickle", f"--capacity={capacity}")
    assert done.exit_code == 2
    assert f"'{capacity}' is not a size: give one such as 80GiB" in done.stderr


def test_files_that_cannot_be_simulated(tmp_path: Path) -> None:
    # GIVEN a file that is cut short, one of the CPU, an empty directory, and no file
    whole = (GOLDEN / "snapshot-1.5-cuda.pickle").read_bytes()
    (tmp_path / "half.pickle").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty").mkdir()
    for path, reason in (
        (tmp_path / "half.pickle", "half.pickle"),
        (GOLDEN / "snapshot-1.5-cpu.pickle", "no accelerator events"),
        (tmp_path / "empty", "no snapshots"),
        (tmp_path / "none.pickle", "does not exist"),
    ):
        # THEN the error names the reason in one line
        done = invoke("recommend", path)
        assert done.exit_code == 1
        assert reason in done.stderr
        assert len(done.stderr.splitlines()) == 1
    done = invoke("recommend", GOLDEN / "snapshot-1.5-cpu.pickle", "--device", "0")
    assert "whose allocator has no cache" in done.stderr


def test_unknown_settings_of_the_recording(tmp_path: Path) -> None:
    # GIVEN a recording under settings that no allocator has
    made = content(phases, 8 << 30)
    made["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "max_splt_size_mb:64"
    path = tmp_path / "recorded.pickle"
    path.write_bytes(pickle.dumps(made))
    # THEN the error names them
    with pytest.raises(PytracerError, match=r"own settings cannot be simulated.*max_splt_size_mb"):
        recommend(path)
