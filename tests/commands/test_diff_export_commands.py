"""Test `pytracer diff` and `pytracer export` through the command line."""

import gzip
import json
import os
import pickle
import re
import shutil
import signal
from pathlib import Path

import processes
import pytest
from commands import cells, invoke
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis.history import replay
from pytracer.reading.reader import load

GOLDEN = Path(__file__).parents[1] / "golden"
CUDA = GOLDEN / "snapshot-1.3-cuda.pickle"
MIB = 2**20


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def write_run(root: Path, ranks: dict[int, int]) -> Path:
    """Write a run in verl's layout: two steps of ranks that hold `blocks` blocks in the second."""
    for rank, blocks in ranks.items():
        for step in (1, 2):
            program = Program()
            program.metadata = file_metadata(rank=rank)
            for _ in range(blocks if step == 2 else 1):
                program.alloc(MIB, ("/a/train.py", "step", 7), phase="update")
            program.write(root / f"step{step}" / f"torch_memory_rank{rank}_pid{os.getpid()}.pickle")
    return root


# --- diff ----------------------------------------------------------------------------------------


def test_markdown_has_the_rows_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN two recordings with an option and a function whose names have meanings in Markdown
    paths = []
    for count in (1, 3):
        program = Program()
        program.metadata = file_metadata(metadata={"a|b": f"*{count}*"})
        for _ in range(count):
            program.alloc(MIB, ("/a/t.py", "<module>", 7), phase="up_date")
        paths.append(program.write(tmp_path / f"{count}.pickle"))
    monkeypatch.setenv("COLUMNS", "300")
    # WHEN the difference is printed as text and as Markdown
    text = invoke("diff", *paths).output
    result = invoke("diff", *paths, "--markdown")
    assert (result.exit_code, result.stderr) == (0, "")
    # THEN the Markdown has each row of the text, without its own marks
    lines = result.output.splitlines()
    found = [re.split(r" (?<!\\)\| ", line[2:-2]) for line in lines if line.startswith("| ")]
    plain = [[re.sub(r"\\(.)", r"\1", cell).strip() for cell in row] for row in found]
    wanted = cells(text)
    assert ["metadata.a|b", "*1*", "*3*"] in plain
    assert ["+2 MiB", "1 MiB", "3 MiB", "1 → 3", "a/t.py:7 <module>"] in wanted
    assert [row for row in plain if row in wanted] == wanted
    assert r"| a/t.py:7 \<module\> |" in result.output
    # AND each line, with the answer in bold
    answer, title = (each for each in text.splitlines()[:2])
    assert lines[0] == f"**{answer}**".replace("<module>", r"\<module\>")
    assert re.sub(r"\\(.)", r"\1", lines[2]) == title


def test_diff_of_directories_with_a_damaged_file(tmp_path: Path) -> None:
    before, after = write_run(tmp_path / "a", {0: 1, 1: 1}), write_run(tmp_path / "b", {0: 1, 1: 1})
    [damaged] = (after / "step1").glob("*rank1*")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    # WHEN they are compared, THEN the other pairs are, the file is named, and the command fails
    result = invoke("diff", before, after)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {damaged} is cut short")
    assert "Every file holds as much as before." in result.stdout
    assert f"Not compared: step 1, rank 1: {damaged} is cut short" in result.stdout
    # AND JSON has the error
    report = json.loads(invoke("diff", before, after, "--json").stdout)
    assert {file["after"] for file in report["files"]} == {
        *("step 1, rank 0", "step 2, rank 0", "step 2, rank 1")
    }
    [error] = report["errors"]
    assert error.startswith(f"step 1, rank 1: {damaged} is cut short")


def test_diff_of_ranks_that_swapped_their_blocks(tmp_path: Path) -> None:
    # GIVEN two runs in which two ranks swap the number of blocks that they hold
    before, after = write_run(tmp_path / "a", {0: 2, 1: 6}), write_run(tmp_path / "b", {0: 6, 1: 2})
    # WHEN they are compared, THEN the largest difference is shown, although the mean is the same
    rows = cells(invoke("diff", before, after).output)
    for name in ("a/train.py:7 step", "update"):
        [row] = [i for i, row in enumerate(rows) if row[-1] == name]
        assert rows[row][:4] == ["0 B", "2.5 MiB", "2.5 MiB", "+4 MiB"]


def test_diff_of_roles_with_equal_ranks(tmp_path: Path) -> None:
    # GIVEN two runs of an actor and a rollout, both of rank 0, with other process ids
    for run, pids in (("a", {"actor": 7, "rollout": 8}), ("b", {"actor": 9, "rollout": 6})):
        for role, pid in pids.items():
            program = Program()
            program.metadata = file_metadata(rank=0, role=role, pid=pid)
            for _ in range(2 if role == "actor" else 5):
                program.alloc(MIB, (f"/a/{role}.py", "f", 1))
            program.write(tmp_path / run / "step1" / f"torch_memory_rank0_pid{pid}.pickle")
    # THEN each role is compared with itself
    result = invoke("diff", tmp_path / "a", tmp_path / "b", "--fail-over", "0%")
    assert result.output == "Within the limit of 0%: neither the peaks nor the end usage grew.\n"
    # AND each has a row
    report = json.loads(invoke("diff", tmp_path / "a", tmp_path / "b", "--json").stdout)
    assert {file["after"]: file["after_bytes"] for file in report["files"]} == {
        "step 1, rank 0, actor": 2 * MIB,
        "step 1, rank 0, rollout": 5 * MIB,
    }
    # AND so has each of several files that one process wrote when memory ran out
    for run in "ab":
        for number in (1, 2):
            program = Program()
            program.alloc(number * MIB, ("/a/train.py", "f", 1))
            folder = tmp_path / "ooms" / run / f"oom_{number}"
            program.write(folder / "torch_memory_oom_rank0_pid7.pickle")
    ooms = tmp_path / "ooms"
    report = json.loads(invoke("diff", ooms / "a", ooms / "b", "--json").stdout)
    assert sorted(file["after_bytes"] for file in report["files"]) == [MIB, 2 * MIB]


def test_diff_of_files_with_two_devices(tmp_path: Path) -> None:
    # GIVEN two runs with another option, whose files have two devices each
    for run, depth in (("a", 1), ("b", 2)):
        first_device, second_device = Program(0), Program(1)
        for program in (first_device, second_device):
            program.alloc(MIB)
        content = second_device.content()
        content["segments"] += first_device.content()["segments"]
        content["device_traces"][0] = first_device.events
        content["pytracer"] = file_metadata(stack_depth=depth)
        for rank in (0, 1):
            path = tmp_path / run / "step1" / f"torch_memory_rank{rank}_pid7.pickle"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pickle.dumps(content, protocol=4))
    # THEN the difference of all pairs of files is shown
    rows = cells(invoke("diff", tmp_path / "a", tmp_path / "b").output)
    assert ["stack_depth", "1", "2"] in rows


def test_diff_reports_what_cannot_be_compared(tmp_path: Path) -> None:
    # GIVEN a file with stacks and phases, and one without, of one phase and an unknown backend
    complete, reduced = Program(), Program()
    complete.alloc(MIB, ("/t.py", "f", 1), phase="p")
    reduced.alloc(MIB)
    reduced.metadata = file_metadata("[/x]", window={"first": 1, "last": 1, "phase": "p"})
    paths = complete.write(tmp_path / "complete.pickle"), reduced.write(tmp_path / "reduced.pickle")
    # WHEN they are compared, THEN each limit is a sentence, and names are printed literally
    result = invoke("diff", *paths)
    assert (result.exit_code, result.stderr) == (0, "")
    text = " ".join(result.output.split())
    assert "device 0 → [/x]:0, at the peaks" in text
    for sentence in (
        "The new one covers one phase. Threads in other phases are left out, so its peak may be "
        "too low or too high.",
        "The new one has no stacks: call sites are not compared.",
        "The new one has no phases: phases are not compared.",
    ):
        assert sentence in text


def test_diff_of_incomparable_arguments(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "a", {0: 1}), write_run(tmp_path / "b", {1: 1})
    for arguments, message in (
        ((first, second), "has a counterpart with the same step, phase and rank"),
        ((first, CUDA), "give two files or two directories"),
        ((CUDA, tmp_path / "no"), "cannot read"),
        ((first, tmp_path / "no"), "no does not exist"),
        ((CUDA, CUDA, "--device", 9), "device 9"),
    ):
        result = invoke("diff", *arguments)
        assert result.exit_code in (1, 2)
        assert result.output.splitlines()[-1].startswith("Error: ")
        assert message in result.output


# --- export --------------------------------------------------------------------------------------


def test_export_of_collapsed_stacks(tmp_path: Path) -> None:
    # WHEN no output is named, THEN the stacks are written to standard output
    result = invoke("export", CUDA, "--to", "collapsed")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    active, allocated = (
        getattr(replay(load(CUDA)).usage, f"{name}_bytes") for name in ("active", "allocated")
    )
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == active[allocated.argmax()]
    assert lines[0].startswith("<listcomp> (train.py:12)")
    # AND a file whose name ends in .gz is compressed
    invoke("export", CUDA, "--to", "collapsed", "-o", tmp_path / "stacks.txt.gz")
    assert gzip.decompress((tmp_path / "stacks.txt.gz").read_bytes()).decode() == result.stdout
    # AND with `--at end` they are those of the end
    at_end = invoke("export", CUDA, "--to", "collapsed", "--at", "end").stdout
    assert sum(int(line.rpartition(" ")[2]) for line in at_end.splitlines()) == active[-1]
    assert active[-1] < active.max()
    # AND of several files, each is a frame, and an existing output file is overwritten
    output = tmp_path / "stacks.txt"
    output.write_text("old")
    other = shutil.copy(CUDA, tmp_path / "other.pickle")
    invoke("export", CUDA, other, "--to", "collapsed", "-o", output)
    starts = {line.split(";")[0].rpartition(".")[2] for line in output.read_text().splitlines()}
    assert starts == {"3-cuda", "other"}


def test_export_of_files_that_cannot_be_read(tmp_path: Path) -> None:
    bad, output = tmp_path / "bad.pickle", tmp_path / "stacks.txt"
    bad.write_bytes(b"nothing")
    # WHEN one of several files cannot be read, THEN the error names it, and the others are exported
    result = invoke("export", bad, CUDA, "--to", "collapsed", "-o", output)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {bad} is not a memory snapshot")
    assert "train.py" in output.read_text()
    # WHEN no file can be read, THEN no output is written, and an old one is left
    output.write_text("old")
    result = invoke("export", bad, "--to", "collapsed", "-o", output)
    assert (result.exit_code, output.read_text()) == (1, "old")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.pickle", "stacks.txt"]


def test_files_without_a_trace(tmp_path: Path) -> None:
    # GIVEN the oldest kind of file, which has segments alone
    old, new = GOLDEN / "native/cuda-1.13.1.pickle", GOLDEN / "native/cuda-2.0.1.pickle"
    # WHEN it is compared, THEN the ends are compared, and its number of allocations is unknown
    result = invoke("diff", old, new, "--device", 0)
    assert "Compared at the end, not at the peaks: no trace of device 0" in result.output
    assert ["", "-", "37", "allocations"] in cells(result.output)
    # WHEN it is exported, THEN a message says that it has no events
    assert invoke("export", old, "--to", "collapsed", "--at", "end").exit_code == 0
    result = invoke("export", old, "--to", "collapsed")
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert "has only the end state: the file has no events" in result.output


def test_names_with_invalid_unicode_and_terminal_control_codes(tmp_path: Path) -> None:
    # GIVEN a file with such a name, without events
    path = tmp_path / os.fsdecode(b"\x1b[2Jn\xff.pickle")
    shutil.copy(GOLDEN / "native/cuda-1.13.1.pickle", path)
    # WHEN it is exported, THEN messages have printable characters only
    result = invoke("export", path, "--to", "parquet", "-o", tmp_path / "out")
    assert result.exit_code == 0
    assert result.stderr.endswith("\N{REPLACEMENT CHARACTER}.pickle: it has no events\n")
    assert "\x1b" not in result.stderr


def test_control_c_leaves_no_file(tmp_path: Path) -> None:
    # GIVEN an export that has begun to write, and takes a long time
    code = f"""
import signal, time
from pytracer.commands.main import main
from pytracer.export import parquet

def wait(*_):
    print("writing", flush=True)
    time.sleep(600)

signal.signal(signal.SIGINT, signal.default_int_handler)
parquet._Tables.write = wait
main(["export", {str(CUDA)!r}, "--to", "parquet", "-o", {str(tmp_path / "out")!r}])
"""
    (tmp_path / "program").mkdir()
    with processes.start(code, cwd=tmp_path / "program") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert list(tmp_path.rglob(".pytracer-*.tmp"))
        # WHEN it is interrupted, THEN it ends immediately, and leaves no file
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1
    assert [path for path in (tmp_path / "out").rglob("*") if not path.is_dir()] == []
    assert not list(tmp_path.rglob(".pytracer-*.tmp"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "parquet"], "--to parquet needs --output"),
        (["--to", "parquet", "-o", str(CUDA.with_name("make.py"))], "must be a folder"),
        (["--to", "parquet", "-o", str(CUDA)], "is named like a snapshot"),
        (["--to", "parquet", "-o", "x", "--at", "end"], "--at end works only with"),
        (["--to", "collapsed", "--at", "oom"], "has no out-of-memory error"),
        (["--to", "excel", "-o", "x"], "excel"),
        ([], "--to"),
    ],
)
def test_export_with_invalid_options(arguments: list[str], message: str) -> None:
    before = CUDA.read_bytes()
    result = invoke("export", CUDA, *arguments)
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert CUDA.read_bytes() == before
