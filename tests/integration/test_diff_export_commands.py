"""`pytracer diff` and `pytracer export`, as somebody types them."""

import gzip
import json
import os
import pickle
import shutil
import signal
import time
from pathlib import Path

import processes
import pytest
import torch
from commands import cells, invoke
from made_snapshots import Program, about

import pytracer
from pytracer.reading.history import replay
from pytracer.reading.reader import load

GOLDEN = Path(__file__).parents[1] / "golden"
CUDA = GOLDEN / "snapshot-1.3-cuda.pickle"
MIB = 2**20


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def recorded(path: Path, sizes: list[int], **metadata: object) -> Path:
    """A recording of the real CPU allocator."""
    with pytracer.Tracer(path, device="cpu", metadata=metadata):
        for size in sizes:
            grow(size)
        shrink()
    return path


def grow(size: int) -> None:
    kept.append(torch.empty(size, dtype=torch.uint8))


def shrink() -> None:
    kept.clear()


kept: list[torch.Tensor] = []


def run_of(root: Path, ranks: dict[int, int]) -> Path:
    """A run in verl's layout: two steps, of ranks that hold so many blocks in the second."""
    for rank, blocks in ranks.items():
        for step in (1, 2):
            program = Program()
            program.about = about(rank=rank)
            for _ in range(blocks if step == 2 else 1):
                program.alloc(MIB, ("/a/train.py", "step", 7), phase="update")
            program.write(root / f"step{step}" / f"torch_memory_rank{rank}_pid{os.getpid()}.pickle")
    return root


# --- diff ----------------------------------------------------------------------------------------


def test_diff_of_recordings(tmp_path: Path) -> None:
    # GIVEN two recordings, of which the second holds more at its peak
    before = recorded(tmp_path / "before.pickle", [3 * MIB], lr=0.1)
    after = recorded(tmp_path / "after.pickle", [3 * MIB, 2 * MIB], lr=0.2)
    # WHEN they are compared
    result = invoke("diff", before, after)
    # THEN that is told, in tables that fit
    assert (result.exit_code, result.stderr) == (0, "")
    assert max(map(len, result.output.splitlines()[1:])) <= 80
    rows = cells(result.output)
    assert ["+2 MiB", "3 MiB", "5 MiB", "allocated"] in rows
    assert ["+2 MiB", "3 MiB", "5 MiB", "1 → 2"] in [row[:4] for row in rows]
    assert ["metadata.lr", "0.1", "0.2"] in rows
    # AND the other way round
    assert ["-2 MiB", "5 MiB", "3 MiB", "allocated"] in cells(invoke("diff", after, before).output)
    # AND of a file with itself, nothing
    result = invoke("diff", before, before)
    assert "Every call site holds as much as before." in result.output
    assert "How they were made" not in result.output


def test_diff_as_json(tmp_path: Path) -> None:
    # WHEN the difference is asked for as JSON, THEN it has all of it
    npu = GOLDEN / "native/npu-2.14.0.pickle"
    result = invoke("diff", GOLDEN / "native/cuda-2.15.0.pickle", npu, "--top", 1, "--json")
    report = json.loads(result.stdout)
    assert [(each["before"], each["after"]) for each in report["devices"]] == [
        ("device 0", "device 0"),
        ("device 1", "device 1"),
    ]
    device = report["devices"][0]
    [site] = device["sites"]
    assert site["delta_bytes"] == device["amounts"]["active_bytes"]["delta"] == 1536
    assert site["after"] == [{"filename": "train.py", "name": "make", "line": 5}]
    # AND in words what one of them cannot tell
    assert device["notes"] == ["The new one tells of no phases: they are not compared"]
    assert device["phases"] == []
    # AND which keys these are
    assert next(iter(report)) == "schema_version"
    assert report["schema_version"] == 1
    # AND in a file too
    invoke("diff", CUDA, CUDA, "--json", tmp_path / "d.json")
    report = json.loads((tmp_path / "d.json").read_text())
    assert report["metadata"] == []
    assert len(report["devices"][0]["phases"]) > 1


def test_diff_of_directories(tmp_path: Path) -> None:
    # GIVEN two runs; the second grew in a rank, and lacks another
    before = run_of(tmp_path / "a", {0: 2, 1: 2, 2: 2})
    after = run_of(tmp_path / "b", {0: 2, 1: 6})
    # WHEN they are compared
    result = invoke("diff", before, after)
    # THEN each pair has a row, and what has no match is named
    assert (result.exit_code, result.stderr) == (0, "")
    rows = cells(result.output)
    assert rows[1:4] == [
        ["0 B", "1 MiB", "1 MiB", "step 1, rank 1"],
        ["0 B", "2 MiB", "2 MiB", "step 2, rank 0"],
        ["+4 MiB", "2 MiB", "6 MiB", "step 2, rank 1"],
    ]
    missing = [line for line in result.output.splitlines() if line.startswith("Only in")]
    assert [line.partition(": ")[2].removeprefix(str(before)) for line in missing] == [
        f"/step{step}/torch_memory_rank2_pid{os.getpid()}.pickle" for step in (1, 2)
    ]
    # AND sites and phases have means, and where it differs most
    for name in ("a/train.py:7 step", "update"):
        [row] = [i for i, row in enumerate(rows) if row[-1] == name]
        assert rows[row][:4] == ["+1 MiB", "1.5 MiB", "2.5 MiB", "+4 MiB"]
        assert rows[row + 1][3] == "step 2, rank 1"
    # AND if there are more pairs than are asked for, those that differ most
    rows = cells(invoke("diff", before, after, "--top", 1).output)
    assert [row[-1] for row in rows[:2]] == ["step 2, rank 1", "(3 others, which differ less)"]
    report = json.loads(invoke("diff", before, after, "--json").stdout)
    assert report["files"][0]["place"] == "step 1, rank 0"
    assert len(report["only_baseline"]) == 2


def test_diff_of_directories_with_a_damaged_file(tmp_path: Path) -> None:
    before, after = run_of(tmp_path / "a", {0: 1, 1: 1}), run_of(tmp_path / "b", {0: 1, 1: 1})
    [damaged] = (after / "step1").glob("*rank1*")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    # WHEN they are compared THEN the rest is, the file is named, and it is a failure
    result = invoke("diff", before, after)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {damaged} is cut short")
    assert [row[-1] for row in cells(result.stdout)[:3]] == [
        "step 1, rank 0",
        "step 2, rank 0",
        "step 2, rank 1",
    ]
    assert f"Not compared: step 1, rank 1: {damaged} is cut short" in result.stdout
    # AND in JSON
    [error] = json.loads(invoke("diff", before, after, "--json").stdout)["errors"]
    assert error.startswith(f"step 1, rank 1: {damaged} is cut short")


def test_diff_of_ranks_that_swapped(tmp_path: Path) -> None:
    # GIVEN two runs; what a rank holds less in the second, another holds more
    before, after = run_of(tmp_path / "a", {0: 2, 1: 6}), run_of(tmp_path / "b", {0: 6, 1: 2})
    # WHEN they are compared THEN what moved is told, though the mean is the same
    rows = cells(invoke("diff", before, after).output)
    for name in ("a/train.py:7 step", "update"):
        [row] = [i for i, row in enumerate(rows) if row[-1] == name]
        assert rows[row][:4] == ["0 B", "2.5 MiB", "2.5 MiB", "+4 MiB"]


def test_diff_of_files_with_two_devices(tmp_path: Path) -> None:
    # GIVEN two runs whose files have two devices, and another option
    for run, depth in (("a", 1), ("b", 2)):
        one, other = Program(0), Program(1)
        for program in (one, other):
            program.alloc(MIB)
        content = other.content()
        content["segments"] += one.content()["segments"]
        content["device_traces"][0] = one.events
        content["pytracer"] = about(stack_depth=depth)
        for rank in (0, 1):
            path = tmp_path / run / "step1" / f"torch_memory_rank{rank}_pid7.pickle"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pickle.dumps(content, protocol=4))
    # THEN what differs in all pairs of files is of no part of them
    rows = cells(invoke("diff", tmp_path / "a", tmp_path / "b").output)
    assert ["stack_depth", "1", "2"] in rows


def test_diff_says_what_cannot_be_told(tmp_path: Path) -> None:
    # GIVEN a file with neither stacks nor phases, of one phase alone, of an odd kind
    full, poor = Program(), Program()
    full.alloc(MIB, ("/t.py", "f", 1), phase="p")
    poor.alloc(MIB)
    poor.about = about("[/x]", window={"first": 1, "last": 1, "phase": "p"})
    paths = full.write(tmp_path / "full.pickle"), poor.write(tmp_path / "poor.pickle")
    # WHEN it is compared THEN each is a sentence, and names are as they are
    result = invoke("diff", *paths)
    assert (result.exit_code, result.stderr) == (0, "")
    text = " ".join(result.output.split())
    assert "device 0 → [/x]:0, at the peaks" in text
    for sentence in (
        "The new one is of one phase: what other threads did outside of it is not in the file, "
        "so that its peak may have been another.",
        "The new one has no stacks of what it held: call sites are not compared.",
        "The new one tells of no phases: they are not compared.",
    ):
        assert sentence in text


def test_diff_of_what_cannot_be_compared(tmp_path: Path) -> None:
    first, second = run_of(tmp_path / "a", {0: 1}), run_of(tmp_path / "b", {1: 1})
    for arguments, message in (
        ((first, second), "has one of the same step, phase and rank"),
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


def test_export_to_tables(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    # GIVEN a run
    run = run_of(tmp_path / "run", {0: 2, 3: 2})
    # WHEN it is exported
    result = invoke("export", run, "--to", "parquet", "--output", tmp_path / "out")
    # THEN each table is a dataset of a file a snapshot
    assert (result.exit_code, result.output) == (0, "")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["blocks", "events"]
    who = f"torch_memory_rank{{}}_pid{os.getpid()}"
    assert {path.stem for path in (tmp_path / "out" / "blocks").iterdir()} == {
        f"step{step}.{who.format(rank)}" for step in (1, 2) for rank in (0, 3)
    }
    blocks = parquet.read_table(tmp_path / "out" / "blocks").to_pylist()
    assert sorted(
        (row["rank"], row["step"], row["phase"], row["size_bytes"]) for row in blocks
    ) == [
        *[(0, 1, "update", MIB), (0, 2, "update", MIB), (0, 2, "update", MIB)],
        *[(3, 1, "update", MIB), (3, 2, "update", MIB), (3, 2, "update", MIB)],
    ]
    # AND in Arrow's format likewise
    result = invoke("export", run, "--to", "arrow", "--output", tmp_path / "out2")
    assert result.exit_code == 0
    assert len(list((tmp_path / "out2" / "events").glob("*.arrow"))) == 4


def test_export_of_collapsed_stacks(tmp_path: Path) -> None:
    # WHEN no output is named THEN stacks come on standard output
    result = invoke("export", CUDA, "--to", "collapsed")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    active, allocated = (
        getattr(replay(load(CUDA)).levels, f"{name}_bytes") for name in ("active", "allocated")
    )
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == active[allocated.argmax()]
    assert lines[0].startswith("<listcomp> (train.py:12)")
    # AND they are those of the end, if these are asked for
    at_end = invoke("export", CUDA, "--to", "collapsed", "--at", "end").stdout
    assert sum(int(line.rpartition(" ")[2]) for line in at_end.splitlines()) == active[-1]
    assert active[-1] < active.max()
    # AND of several files, each is a frame; an output that is there is overwritten
    output = tmp_path / "stacks.txt"
    output.write_text("old")
    other = shutil.copy(CUDA, tmp_path / "other.pickle")
    invoke("export", CUDA, other, "--to", "collapsed", "-o", output)
    starts = {line.split(";")[0].rpartition(".")[2] for line in output.read_text().splitlines()}
    assert starts == {"3-cuda", "other"}


def test_export_to_perfetto(tmp_path: Path) -> None:
    # WHEN a recording is exported
    path = recorded(tmp_path / "a.pickle", [3 * MIB])
    result = invoke("export", path, "--to", "perfetto", "-o", tmp_path / "t.json.gz")
    # THEN it is a compressed trace
    assert (result.exit_code, result.output) == (0, "")
    events = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]
    counter = [e["args"]["bytes"] for e in events if e["name"] == "cpu allocated"]
    assert max(counter) == 3 * MIB
    assert counter[-1] == 0


def test_export_of_files_that_cannot_be_read(tmp_path: Path) -> None:
    bad, output = tmp_path / "bad.pickle", tmp_path / "out.json"
    bad.write_bytes(b"nothing")
    # WHEN one of several cannot be read THEN it is named, and the others are there
    result = invoke("export", bad, CUDA, "--to", "perfetto", "-o", output)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {bad} is damaged")
    assert json.loads(output.read_text())["traceEvents"]
    # WHEN none can THEN there is no output, and an old one is left
    output.write_text("old")
    result = invoke("export", bad, "--to", "perfetto", "-o", output)
    assert (result.exit_code, output.read_text()) == (1, "old")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.pickle", "out.json"]


def test_files_without_a_trace(tmp_path: Path) -> None:
    # GIVEN the oldest kind of file, which has segments alone
    old, new = GOLDEN / "native/cuda-1.13.1.pickle", GOLDEN / "native/cuda-2.0.1.pickle"
    # WHEN it is compared THEN at the end, and counts of events are not known
    result = invoke("diff", old, new, "--device", 0)
    assert "Compared at the end, not at the peaks: device 0 has no trace in it" in result.output
    assert ["", "-", "37", "allocations"] in cells(result.output)
    # WHEN it is exported THEN it is said that it has no events
    result = invoke("export", old, "--to", "perfetto", "-o", tmp_path / "t.json")
    assert (result.exit_code, result.stderr) == (0, f"{old}: it has no events\n")
    assert invoke("export", old, "--to", "collapsed", "--at", "end").exit_code == 0
    result = invoke("export", old, "--to", "collapsed")
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert 'it has no events, and so no peak; what is active at the end ("--at end")' in (
        result.output
    )


def test_names_that_are_no_unicode_and_control_the_terminal(tmp_path: Path) -> None:
    # GIVEN a file without events, of such a name
    pytest.importorskip("pyarrow")
    path = tmp_path / os.fsdecode(b"\x1b[2Jn\xff.pickle")
    shutil.copy(GOLDEN / "native/cuda-1.13.1.pickle", path)
    # WHEN it is exported THEN it is, and what is said of it is plain
    for file_format in ("parquet", "arrow", "perfetto"):
        result = invoke("export", path, "--to", file_format, "-o", tmp_path / f"out.{file_format}")
        assert result.exit_code == 0
        assert result.stderr.endswith("\N{REPLACEMENT CHARACTER}.pickle: it has no events\n")
        assert "\x1b" not in result.stderr


@pytest.mark.parametrize("to", ["parquet", "perfetto"])
def test_control_c_leaves_nothing_behind(tmp_path: Path, to: str) -> None:
    # GIVEN an export that is writing, and takes long
    code = (
        "import time; from pytracer import cli, cli_export; from pytracer.reading import "
        "export_arrow, export_perfetto\n"
        "def wait(*_): time.sleep(60); return []\n"
        "export_perfetto.Writer.add = export_arrow._Tables.write = wait\n"
        f"cli.main(['export', {str(CUDA)!r}, '--to', {to!r}, '-o', {str(tmp_path / 'out')!r}])"
    )
    begin = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    (tmp_path / "program").mkdir()
    with processes.start(begin + code, cwd=tmp_path / "program") as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.rglob(".pytracer-*.tmp")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(tmp_path.rglob(".pytracer-*.tmp"))
        time.sleep(0.2)  # until the main thread waits for the others
        # WHEN it is interrupted THEN it ends at once, and nothing is there
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == -signal.SIGINT
    assert [path for path in (tmp_path / "out").rglob("*") if not path.is_dir()] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "perfetto"], "--to perfetto needs --output"),
        (["--to", "parquet"], "--to parquet needs --output"),
        (["--to", "parquet", "-o", str(CUDA.with_name("make.py"))], "into a folder"),
        (["--to", "perfetto", "-o", str(CUDA)], "is named as a snapshot"),
        (["--to", "perfetto", "-o", "x.json", "--at", "end"], "--at end is of --to collapsed"),
        (["--to", "collapsed", "--at", "oom"], "memory did not run out"),
        (["--to", "excel", "-o", "x"], "excel"),
        ([], "--to"),
    ],
)
def test_export_that_makes_no_sense(arguments: list[str], message: str) -> None:
    before = CUDA.read_bytes()
    result = invoke("export", CUDA, *arguments)
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert CUDA.read_bytes() == before
