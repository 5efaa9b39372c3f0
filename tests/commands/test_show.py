"""Test `pytracer show`: the screens, which file decides, and what is not printed."""

import os
import pickle
import re
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import commands
import pytest
from synthetic_snapshots import Program, file_metadata

import pytracer
from pytracer.analysis import explain
from pytracer.analysis.answer import Line
from pytracer.analysis.answer_of_files import RUN_NS
from pytracer.analysis.answer_words import answer_of
from pytracer.errors import PytracerError

GOLDEN = sorted((Path(__file__).parents[1] / "golden").rglob("*.pickle"))
MIB = 2**20
SECOND_NS = 10**9
TRAIN, MAIN = ("/job/train.py", "train_step", 41), ("/job/train.py", "main", 90)

invoke = partial(commands.invoke, "show")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a test, in which it runs: paths on the screens are short."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fragmented(**metadata: Any) -> Program:
    """Return a program that runs out of memory next to 300 segments that are half free."""
    program = Program()
    program.metadata = file_metadata(oom={"device": 0, "requested_bytes": 150 * MIB}, **metadata)
    program.metadata["devices"][0] |= {"total_bytes": 1024 * MIB, "free_bytes": 100 * MIB}
    for _ in range(300):
        program.alloc(MIB + 512, ("/job/model.py", "forward", 31), TRAIN, MAIN)
    program.out_of_memory(150 * MIB, 100 * MIB)
    program.events[-1]["frames"] = [
        {"filename": "/job/train.py", "name": name, "line": line}
        for name, line in (("loss_of", 12), ("main", 91))
    ]
    return program


def write_fragmented(path: Path, **metadata: Any) -> Path:
    content = fragmented(**metadata).content()
    for segment in content["segments"]:
        segment["segment_type"] = "large"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=4))
    return path


def training(
    *, leaks: bool, survives: bool = False, has_holders: bool = False, **metadata: Any
) -> Program:
    """Return a program of twelve steps that keeps 1 MiB of each in a list, or not.

    If it survives one, memory runs out in step 2. `has_holders`: the file names the list.
    """
    program, steps = Program(), []
    for step in range(1, 13):
        steps.append([step, len(program.events)])
        if survives and step == 2:
            program.out_of_memory(400 * MIB, 150 * MIB)
        kept = program.alloc(MIB, TRAIN, MAIN)
        if has_holders:
            program.hold(kept, f"self.losses[{step}] of Trainer.main()")
        if not leaks:
            program.free(kept)
        program.free(program.alloc(MIB // 2, ("/job/model.py", "forward", 7), TRAIN))
    program.metadata = file_metadata(current_step=13, **metadata)
    reserved = sum(segment["total_size"] for segment in program.content()["segments"])
    device = {"total_bytes": 1024 * MIB, "free_bytes": 150 * MIB, "reserved_bytes": reserved}
    program.metadata["devices"][0] |= device | {"steps": steps}
    return program


def write_oom(path: Path, held: int = MIB, **metadata: Any) -> Path:
    """Write the file of a program that asks for 40 MiB, of which 10 are free."""
    program = Program()
    oom = {"device": 0, "requested_bytes": 40 * MIB}
    program.metadata = file_metadata(**{"oom": oom, **metadata})
    program.alloc(held, ("model.py", "forward", 3), ("train.py", "step", 8))
    program.out_of_memory(40 * MIB, 10 * MIB)
    return program.write(path)


def screen(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


# The screens


def test_a_limit_below_what_was_reserved_is_not_shown() -> None:
    # GIVEN a device of which other processes took memory after the peak
    program = training(leaks=False)
    program.metadata["devices"][0] |= {"free_bytes": MIB // 4, "reserved_bytes": MIB // 4}
    output = invoke(program.write(Path("a.pickle"))).output
    # THEN what was left at the end is not called the limit at the peak
    assert "\n peak    1 MiB in step 1; reserved 2 MiB\n" in output


def test_a_leak_after_an_out_of_memory_that_was_survived() -> None:
    output = invoke(training(leaks=True, survives=True).write(Path("a.pickle"))).output
    assert output.startswith("OUT OF MEMORY: the request is too large")
    assert (
        """
         The program continued with further steps
 leak    1 MiB a step since step 1
 from    job/train.py:41 train_step, called from job/train.py:90 main
         memory runs out at about step 152
"""
        in output
    )
    # AND the leak is what to look at first
    assert "\n do      pytracer show a.pickle --leaks\n" in output
    # AND without a leak nothing is said about one
    output = invoke(training(leaks=False, survives=True).write(Path("a.pickle"))).output
    assert "The program continued with further steps" in output
    assert "leak" not in output


def test_eight_ranks() -> None:
    # GIVEN eight ranks, of which rank 3 ran out of memory first, and rank 5 a second later
    for rank in range(8):
        path = Path(f"run/rank{rank}.pickle")
        process = {"rank": rank, "pid": 100 + rank, "written_ns": 10**18 + rank * SECOND_NS}
        if rank in (3, 5):
            write_fragmented(path, **process)
        else:
            training(leaks=False, **process).write(path)
    output = invoke("run").output
    assert output == screen("""
        OUT OF MEMORY: fragmented                                    cuda:0, rank 3 of 8
         file    run/rank3.pickle
         asked   150 MiB  job/train.py:12 loss_of ← :91 main
         free    100 MiB on the device + 299.9 MiB inside 300 segments, the largest
                 piece 0.9995 MiB
         why     The free memory would be enough if it were in one piece
         held    300.1 MiB at that moment
         lines   300.1 MiB  job/model.py:31 forward ← job/train.py:41 train_step
                            ← :90 main
         others  rank 5: OUT OF MEMORY: fragmented; asked 150 MiB at
                 job/train.py:12 loss_of ← :91 main
                 ranks 0-2, 4, 6-7: NO PROBLEM FOUND
         do      export PYTORCH_ALLOC_CONF=expandable_segments:True
                 Untested. Lets the allocator join free memory. Whether that is enough
                 was not simulated.
                 pytracer recommend run/rank3.pickle
                 Simulates the recorded requests under many settings, and names the
                 best.
         more    pytracer show run/rank3.pickle --all
                 pytracer view run/rank3.pickle
        """)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_files_fit_on_a_screen(path: Path) -> None:
    result = invoke(path)
    lines = result.output.splitlines()
    assert (result.exit_code, result.stderr) == (0, "")
    assert 0 < len(lines) <= 20
    assert [line for line in lines if len(line) > 80 and str(path) not in line] == []
    # AND no line ends between a number and its unit, or in front of one
    assert not re.search(r"\d\n\s*([KMGT]iB|B)\b", result.output)
    # AND the function has the same answer
    assert str(pytracer.show(path)) == result.output.rstrip("\n")


def test_a_directory_of_many_files_fits_on_a_screen() -> None:
    for path in GOLDEN:
        os.link(path, path.name) if not Path(path.name).exists() else None
    lines = invoke(".").output.splitlines()
    assert len(lines) <= 20
    assert lines[0].startswith("OUT OF MEMORY: ")


def test_the_last_rows_go_where_there_are_too_many_lines() -> None:
    (found,) = explain(fragmented().snapshot())
    answer = answer_of(found)
    many = [line for line in answer.lines for _ in range(9 if line.role in ("why", "do") else 1)]
    lines = str(replace(answer, lines=many)).splitlines()
    assert len(lines) <= 20
    assert any(line.startswith(" more ") for line in lines)
    # AND of too many rows about other files, the last row says that there are more
    others = [Line("others", f"rank {rank}: LEAK") for rank in range(7)]
    rows = str(replace(answer, lines=[*many, *others])).splitlines()
    assert len(rows) <= 20
    assert rows[-1].endswith(" and others, which --all shows")


def test_the_source_is_shown_if_it_was_not_changed(folder: Path) -> None:
    # GIVEN a source that is older than the snapshot
    source = folder / "model.py"
    source.write_text("import torch\n\n\n    keep = torch.empty(n)  # all\n")
    program = Program()
    program.metadata = file_metadata(written_ns=source.stat().st_mtime_ns + 1)
    for line in (4, 5):
        program.alloc(MIB // line, (str(source), "forward", line))
    path = program.write(folder / "a.pickle")
    # THEN the line is shown, and a line that the source does not have is left out
    assert re.search(r"model.py:4 forward.*\n? +4: keep = torch.empty\(n\)  # all\n", output(path))
    assert "5: " not in output(path)
    # AND of a source that was changed later, no line is shown
    program.metadata["written_ns"] = source.stat().st_mtime_ns - 1
    assert "torch.empty" not in output(program.write(path))
    # AND the source in the snapshot is shown without the file
    program.metadata["source_lines"] = {str(source): [[4, "kept = x"], [5, 7], "no"], 3: [], "y": 1}
    assert "  4: kept = x\n" in output(program.write(path))
    # AND neither is that of another kind of file
    os.mkfifo(folder / "pipe.py")
    program.alloc(MIB, (str(folder / "pipe.py"), "forward", 1))
    assert "pipe.py:1 forward" in output(program.write(path))


def output(path: Path) -> str:
    return str(invoke(path).output)


# Which file decides


def test_the_file_that_matters_in_a_directory(folder: Path) -> None:
    # GIVEN a run of three ranks, of which rank 1 ran out of memory first, after it had survived
    # an earlier out-of-memory, and a file of an earlier run
    now = RUN_NS * 10

    def oom(rank: int, pid: int, minutes: int) -> Path:
        name = f"oom_{minutes + 100}/torch_memory_oom_rank{rank}_pid{pid}.pickle"
        written = now + minutes * 60 * SECOND_NS
        return write_oom(folder / name, rank=rank, pid=pid, written_ns=written)

    oom(0, 1, -60)
    oom(1, 3, 0)
    first = oom(1, 3, 3)
    oom(2, 4, 4)
    # THEN the first of the last files of the newest run decides
    assert pytracer.show(folder).texts("file") == [str(first)]


def test_the_first_out_of_memory_decides_without_ranks(folder: Path) -> None:
    # GIVEN three processes without ranks on two hosts, two of them with the same pid
    for name, host, pid, at in (("c", "n1", 7, 3), ("a", "n2", 7, 1), ("b", "n1", 8, 2)):
        write_oom(folder / f"{name}.pickle", host=host, pid=pid, written_ns=at * SECOND_NS)
    # THEN the first of them decides, not the last
    assert pytracer.show(folder).texts("file") == [str(folder / "a.pickle")]


def test_roles_with_equal_ranks_are_two_processes(folder: Path) -> None:
    for role, at in (("actor", 1), ("rollout", 2)):
        write_oom(folder / f"{role}.pickle", role=role, rank=0, written_ns=at * SECOND_NS)
    answer = pytracer.show(folder)
    assert answer.texts("file") == [str(folder / "actor.pickle")]
    assert answer.where == "cuda:0, actor rank 0"
    assert answer.texts("others")[0].startswith("rollout rank 0: OUT OF MEMORY")


def test_an_out_of_memory_of_a_process_counts_once(folder: Path) -> None:
    # GIVEN ranks 1 and 5, of which each wrote a file when memory ran out, and one at the end
    for rank in (1, 5):
        for name, oom in (("oom", {"device": 0}), ("exit", None)):
            written = (rank + 10 * (oom is None)) * SECOND_NS
            path = folder / f"{name}_rank{rank}.pickle"
            write_oom(path, oom=oom, rank=rank, pid=rank, written_ns=written)
    answer = pytracer.show(folder)
    # THEN the answer is about rank 1, of an unknown number, and one other ran out of memory
    assert answer.where == "cuda:0, rank 1"
    (other,) = answer.texts("others")
    assert other.startswith("rank 5: OUT OF MEMORY")


def test_a_leak_decides_if_no_memory_ran_out(folder: Path) -> None:
    # GIVEN a leak on rank 1, and a rank that holds more
    for rank in range(3):
        program = training(leaks=rank == 1, rank=rank, pid=rank)
        if rank == 2:
            program.alloc(2 * MIB, ("/job/model.py", "load", 1))
            for _ in range(14):
                program.alloc(MIB, ("/job/model.py", "load", 1))
        program.write(folder / f"{rank}.pickle")
    answer = pytracer.show(folder)
    assert (answer.kind, answer.where) == ("leak", "cuda:0, rank 1 of 3")
    assert answer.verdict.startswith("LEAK: 1 MiB a step since step 1")


def test_a_leak_that_only_several_files_show(folder: Path) -> None:
    # GIVEN twelve files of one step each
    program = Program()
    for step in range(1, 13):
        program.events.clear()
        program.alloc(MIB, TRAIN, MAIN)
        program.free(program.alloc(MIB // 2, ("/job/model.py", "forward", 7), TRAIN, MAIN))
        program.metadata = file_metadata(current_step=step, written_ns=step)
        program.metadata["devices"][0]["steps"] = [[step, 0]]
        program.write(folder / f"step{step}.pickle")
    answer = pytracer.show(folder)
    assert answer.verdict.startswith("LEAK: 1 MiB a step since step 1 or before")
    path = folder / "step12.pickle"
    assert answer.texts("file") == [f"{path} and the final states of 12 files"]
    assert "job/train.py:41 train_step" in answer.texts("from")[0]
    # AND one of the files does not show it
    assert pytracer.show(folder / "step3.pickle").kind == "none"


def test_without_a_problem_the_fullest_decides(folder: Path) -> None:
    for name, held in (("a", MIB), ("b", MIB + 512), ("c", MIB // 2)):
        program = Program()
        program.metadata = file_metadata(rank="abc".index(name))
        program.alloc(held, ("model.py", "forward", 3))
        program.write(folder / f"{name}.pickle")
    assert pytracer.show(folder).texts("file") == [str(folder / "b.pickle")]


# What else is said, or not


def test_a_file_without_events_does_not_tell_whether_memory_ran_out(folder: Path) -> None:
    program = Program()
    program.metadata = file_metadata()
    program.alloc(MIB, ("model.py", "forward", 3), events=False)
    answer = pytracer.show(program.write(folder / "a.pickle"))
    assert answer.verdict == "CAN'T TELL whether there was a problem"
    assert answer.texts("why") == ["The file has no events"]
    assert answer.texts("peak") == ["1 MiB at the end; reserved 2 MiB"]


def test_what_the_recording_lacks_is_told(folder: Path) -> None:
    # GIVEN a file whose ring overwrote events, so that an earlier problem may be missing
    program = training(leaks=False)
    assert pytracer.show(program.write(folder / "a.pickle")).texts("lost") == []
    program.metadata["devices"][0]["overwritten"] = 3
    program.metadata["untraced"] = "npu: no hook"
    answer = pytracer.show(program.write(folder / "a.pickle"))
    assert answer.texts("lost")[0].startswith("the ring overwrote its first 3 events")
    assert answer.texts("lost")[1:] == ["not recorded: npu: no hook"]


@pytest.mark.parametrize(
    ("steps", "current", "is_suggested"),
    [([], None, True), ([(1, 0)], 1, True), ([(3, 0)], 4, False)],
)
def test_steps_are_suggested_where_nobody_marked_them(
    steps: list[tuple[int, int]], current: int | None, is_suggested: bool, folder: Path
) -> None:
    program = Program()
    program.metadata = file_metadata(current_step=current)
    program.metadata["devices"][0]["steps"] = steps
    program.alloc(MIB, ("model.py", "forward", 3))
    assert ("PYTRACER_STEP_FROM" in output(program.write(folder / "a.pickle"))) == is_suggested
    # AND a file of torch's own recorder has another recorder to switch on
    program.metadata = None
    assert "export PYTRACER=1\n" in output(program.write(folder / "torch.pickle"))


def test_unreadable_files_are_errors_in_python(folder: Path) -> None:
    (folder / "b.pickle").write_bytes(b"no snapshot")
    with pytest.raises(PytracerError, match=r"b\.pickle"):
        pytracer.show(folder)


def test_file_names_cannot_control_the_terminal(folder: Path) -> None:
    path = write_oom(folder / "\x1b[2Ja.pickle", metadata={"\x1b": 1})
    assert "\x1b" not in output(path)


def test_one_question_at_a_time() -> None:
    result = invoke(GOLDEN[0], "--leaks", "--by", "line")
    assert result.exit_code == 2
    assert "give one of --by, --at or --depth and --leaks" in result.stderr
