"""Test `pytracer explain` on files and directories."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import commands
import pytest
from commands import cells
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis import explain
from pytracer.commands.explained_files import RUN_NS
from pytracer.reading import load
from pytracer.reading.to_json import to_json

MIB = 2**20
MINUTE_NS = 60 * 10**9

invoke = partial(commands.invoke, "explain")


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def write(path: Path, *, oom: bool = True, held: int = MIB, **metadata: Any) -> Path:
    """Write the file of a program that runs out of memory, or not."""
    program = Program()
    program.metadata = file_metadata(**metadata)
    program.alloc(held, ("model.py", "forward", 3), ("train.py", "step", 8))
    if oom:
        program.metadata["oom"] = {"device": 0, "requested_bytes": 40 * MIB}
        program.out_of_memory(40 * MIB, 10 * MIB)
    return program.write(path)


def test_an_out_of_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pickle")
    result = invoke(path)
    text = " ".join(result.output.split())
    assert result.exit_code == 0
    assert "CUDA out of memory: 40 MiB were requested at (unknown). 10 MiB were free" in text
    assert "Verdict: too large: 40 MiB are more than all free memory, 11 MiB" in text
    assert "Memory held at the out-of-memory, 1 MiB in all" in text
    assert ["1 MiB", "100%", "1", "model.py:3 forward"] in cells(result.output)
    assert ["", "", "", "← train.py:8 step"] in cells(result.output)
    # AND a command is a line of its own, however long
    assert f"\n  pytracer stats {path} --top 20\n" in result.output


def test_a_file_without_an_out_of_memory(tmp_path: Path) -> None:
    text = " ".join(invoke(write(tmp_path / "a.pickle", oom=False)).output.split())
    assert "cuda:0: no out-of-memory. At the peak, 1 MiB were allocated, and 2 MiB reserved" in text
    assert "Verdict" not in text


def leaking(path: Path, rank: int = 0) -> Path:
    """Write the file of a program that keeps a block in each of its steps."""
    program = Program()
    program.metadata = file_metadata(current_step=41, rank=rank)
    steps = []
    for step in range(1, 41):
        steps.append((step, len(program.events)))
        program.free(program.alloc(2000, ("train.py", "work", 1)))
        program.alloc(100_000, ("train.py", "remember", 7))
    program.metadata["devices"][0]["steps"] = steps
    return program.write(path)


def test_a_leak_is_named_with_its_command(tmp_path: Path) -> None:
    # GIVEN a file whose memory is kept from step to step
    path = leaking(tmp_path / "a.pickle")
    (found,) = explain(load(path))
    assert found.leak == "leak"
    assert found.leak_answer.startswith("Leak: 98 KiB a step since step 1, from train.py:7 remem")
    # THEN `explain` has the answer of `leaks`, and its command first
    output = invoke(path).output
    assert found.leak_answer in " ".join(output.split())
    assert output.partition("What to try:")[2].startswith(f"\n  pytracer leaks {path}\n")
    assert output.count("pytracer leaks") == 1
    # AND so does `stats`, of the file and of its directory
    line = f"{found.leak_answer} See pytracer leaks {path}"
    for argument in (path, tmp_path):
        leaking(tmp_path / "b.pickle", rank=1)
        shown = commands.invoke("stats", argument).output
        assert "".join(line.split()) in "".join(shown.split())  # a long path is wrapped
    # AND the other files of a directory have it in their line
    assert f"no out-of-memory, {found.leak_answer[:20]}" in invoke(tmp_path).output


def test_without_a_leak_nothing_is_said_of_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pickle", oom=False)
    assert "Leak:" not in invoke(path).output
    assert "Leak:" not in commands.invoke("stats", path).output


def test_a_file_without_events_does_not_tell_whether_memory_ran_out(tmp_path: Path) -> None:
    program = Program()
    program.metadata = file_metadata()
    program.alloc(MIB, ("model.py", "forward", 3), events=False)
    text = " ".join(invoke(program.write(tmp_path / "a.pickle")).output.split())
    assert (
        "cuda:0: the file has no events, so whether memory ran out is unknown. At the end" in text
    )
    assert "no out-of-memory" not in text


@pytest.mark.parametrize(
    ("steps", "current", "is_suggested"),
    [([], None, True), ([(1, 0)], 1, True), ([(3, 0)], 4, False)],
)
def test_steps_are_suggested_where_nobody_marked_them(
    steps: list[tuple[int, int]], current: int | None, is_suggested: bool, tmp_path: Path
) -> None:
    program = Program()
    program.metadata = file_metadata(current_step=current)
    program.metadata["devices"][0]["steps"] = steps
    program.alloc(MIB, ("model.py", "forward", 3))
    output = invoke(program.write(tmp_path / "a.pickle")).output
    assert ("PYTRACER_STEP_FROM" in output) == is_suggested


def test_json_is_the_explanation(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pickle")
    document = json.loads(invoke(path, "--json").output)
    assert document["errors"] == []
    (file,) = document["files"]
    assert file == {
        **{"path": str(path), "rank": None, "pid": 7, "written_ns": 1},
        "devices": to_json(explain(load(path))),
    }


def test_the_file_that_matters_in_a_directory(tmp_path: Path) -> None:
    # GIVEN a run of three ranks, of which rank 1 ran out of memory first, after it had survived
    # an earlier out-of-memory, and a file of an earlier run
    now = RUN_NS * 10

    def oom(rank: int, pid: int, minutes: int) -> Path:
        name = f"oom_{minutes + 100}/torch_memory_oom_rank{rank}_pid{pid}.pickle"
        written = now + minutes * MINUTE_NS
        return write(tmp_path / name, rank=rank, pid=pid, written_ns=written)

    oom(0, 1, -60)
    oom(1, 3, 0)
    first = oom(1, 3, 3)
    oom(2, 4, 4)
    at_end = tmp_path / "exit/torch_memory_rank0_pid2.pickle"
    write(at_end, oom=False, rank=0, pid=2, written_ns=now + 5 * MINUTE_NS)
    # WHEN the directory is explained
    output = invoke(tmp_path).output
    # THEN the first of the last files of the newest run comes first, in full
    assert output.startswith(f"{first}\n\nCUDA out of memory")
    assert output.count("Verdict") == 1
    # AND each other file has one line, the newest last
    others = output.partition("Other files:\n")[2].splitlines()
    assert len(others) == 4
    assert [" rank 0," in line for line in others] == [True, False, False, True]
    assert "out of memory: 40 MiB at (unknown), too large" in others[1]
    assert others[-1].startswith(str(at_end))
    assert others[-1].endswith("no out-of-memory")


def test_without_an_out_of_memory_the_largest_peak_matters(tmp_path: Path) -> None:
    write(tmp_path / "a.pickle", oom=False, held=MIB, rank=0)
    path = write(tmp_path / "b.pickle", oom=False, held=MIB + 512, rank=1)
    write(tmp_path / "c.pickle", oom=False, held=MIB // 2, rank=2)
    assert invoke(tmp_path).output.startswith(f"{path}\n")


def test_unreadable_files_are_errors_and_the_others_are_explained(tmp_path: Path) -> None:
    write(tmp_path / "a.pickle")
    (tmp_path / "b.pickle").write_bytes(b"no snapshot")
    result = invoke(tmp_path, tmp_path / "missing")
    assert result.exit_code == 1
    assert "Verdict: too large" in result.output
    assert "b.pickle" in result.stderr
    assert "missing does not exist" in result.stderr


def test_file_names_cannot_control_the_terminal(tmp_path: Path) -> None:
    path = write(tmp_path / "\x1b[2Ja.pickle", metadata={"\x1b": 1})
    assert "\x1b" not in invoke(path).output
