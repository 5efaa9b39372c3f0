"""Test `pytracer stats` on recordings, golden files, and invalid files."""

import errno
import json
import os
import pickle
import re
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import click
import commands
import processes
import pytest
import torch
from click.testing import CliRunner
from commands import cells
from rich.console import Console
from synthetic_program import run as run_program
from synthetic_snapshots import Program, file_metadata, inexact

import pytracer
from pytracer.analysis import device_data
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.history import replay
from pytracer.analysis.report import stats
from pytracer.commands import parallel
from pytracer.commands.json_output import write_json
from pytracer.commands.main import main
from pytracer.commands.table import add_row, new_table
from pytracer.errors import PytracerError
from pytracer.reading import Frame, load
from pytracer.reading.to_json import to_json
from pytracer.text import duration, number, printable, size, size_range, utc_time, wrapped_text

GOLDEN = Path(__file__).parents[1] / "golden"
CUDA = GOLDEN / "snapshot-1.3-cuda.pickle"
MIB = 2**20


invoke = partial(commands.invoke, "stats")


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_a_recording(tmp_path: Path) -> None:
    # GIVEN a recording of two steps, of which one tensor is live at the end
    path = tmp_path / "snapshot.pickle"
    with pytracer.Tracer(path, device="cpu") as tracer:
        with pytracer.annotate("rollout"):
            kept = torch.empty(3 * MIB, dtype=torch.uint8)
        tracer.step()
        with pytracer.annotate("update"):
            torch.empty(8 * MIB, dtype=torch.uint8)

    # WHEN the report is printed
    result = invoke(path)

    # THEN its numbers are right, and its lines fit into the terminal and have no colours
    assert (result.exit_code, result.stderr) == (0, "")
    assert all(len(line) <= 80 for line in result.output.splitlines() if str(path) not in line)
    assert "\x1b" not in result.output
    rows = cells(result.output)
    assert ["allocated", "11 MiB", "3 MiB"] in rows
    assert ["phase", "update", "update"] in rows
    assert ["1", "3 MiB", "3 MiB", "1", "3 MiB"] in rows
    assert ["2", "11 MiB", "3 MiB", "1", "8 MiB"] in rows
    assert ["rollout", "3 MiB", "3 MiB", "3 MiB", "1", "3 MiB"] in rows
    assert ["update", "8 MiB", "11 MiB", "0 B", "1", "8 MiB"] in rows
    held = [row[:2] for row in rows if "test_stats_command.py" in row[-1]]
    assert held == [["8 MiB", "1"], ["3 MiB", "1"]]
    assert "2 allocations, 1 free." in result.output
    assert f"pid {os.getpid()}" in result.output.replace("\n", "")
    del kept


def test_json_is_the_report(tmp_path: Path) -> None:
    # WHEN the report is written as JSON, to standard output and to a file
    shown, written = invoke(CUDA, "--json"), tmp_path / "stats.json"
    assert "peak allocated" in invoke(CUDA, "--json-output", written).output
    # THEN both have the report, with numbers as JSON numbers
    expected = {"schema_version": 2, "files": [to_json(stats(load(CUDA)))], "errors": []}
    assert json.loads(shown.output) == expected
    assert json.loads(written.read_text()) == expected
    # AND the file can be overwritten
    assert invoke(CUDA, "--json-output", written).exit_code == 0


def test_top_limits_the_rows() -> None:
    # WHEN one site is requested, THEN the others are one row, and JSON has all
    rows = cells(invoke(CUDA, "--top", 1).output)
    assert ["8.126 MiB", "8.125 MiB", "3", "train.py:5 forward"] in rows
    assert ["1.5 KiB", "320 B", "3", "(2 other call sites)"] in rows
    (file,) = json.loads(invoke(CUDA, "--top", 1, "--json").output)["files"]
    assert len(file["devices"][0]["sites"]) == 3


def test_several_files_have_a_row_each(tmp_path: Path) -> None:
    # GIVEN a directory with two files, and a temporary one that is being written
    for name in ("step1/a.pickle", "step2/a.pickle", "step2/.pytracer-x.tmp.pickle"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(GOLDEN / "snapshot-1.3-cpu.pickle", tmp_path / name)
    # WHEN the report is printed, THEN each complete file has one row, even if it is named twice
    result = invoke(tmp_path, tmp_path / "step1")
    assert result.exit_code == 0
    numbers = [row[1:] for row in cells(result.output) if row[1]]
    assert numbers == [["832 B", "-", "-", "no"]] * 2
    assert "Memory held at" not in result.output
    # AND with --top the report of each file follows
    assert invoke(tmp_path, "--top", 3).output.count("Memory held at the peak") == 2


def test_unreadable_files_are_errors_and_the_others_are_shown(tmp_path: Path) -> None:
    # GIVEN an invalid file, a missing one, and a good one
    (tmp_path / "bad.pickle").write_bytes(b"no pickle")
    paths = [tmp_path / "bad.pickle", tmp_path / "nothing.pickle", CUDA]
    # WHEN the report is printed
    result = invoke(*paths)
    # THEN the good file is shown, each other file is an error line, and the exit code is 1
    assert result.exit_code == 1
    assert "Memory held at the peak" not in result.output
    assert "8.127 MiB" in result.stdout
    assert len(result.stderr.splitlines()) == 2
    assert all(line.startswith("Error: ") for line in result.stderr.splitlines())
    assert all(name in result.stderr for name in ("bad.pickle", "nothing.pickle"))
    # AND JSON has the errors
    report = json.loads(invoke(*paths, "--json").stdout)
    assert [file["path"] for file in report["files"]] == [str(CUDA)]
    assert len(report["errors"]) == 2


def test_a_missing_device() -> None:
    result = invoke(CUDA, "--device", 7)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {CUDA} has no device 7: it has 0, 1\n"


def test_one_device() -> None:
    assert "cuda:1: 1 event " in invoke(CUDA, "--device", 1).output


def test_json_does_not_overwrite_a_snapshot(tmp_path: Path) -> None:
    # GIVEN two snapshots
    paths = [shutil.copy(CUDA, tmp_path / name) for name in ("a.pickle", "b.pickle")]
    # WHEN the first is passed as the output file, THEN it is refused and remains unchanged
    result = invoke("--json-output", *paths)
    assert result.exit_code == 2
    assert "named like a snapshot" in re.sub(r"\s+", " ", result.output)
    assert Path(paths[0]).read_bytes() == CUDA.read_bytes()


def test_json_that_cannot_be_written(tmp_path: Path) -> None:
    result = invoke(CUDA, "--json-output", tmp_path / "no" / "x.json")
    assert result.exit_code == 1
    assert re.fullmatch(
        r"Error: cannot write .*x\.json: No such file or directory\n", result.stderr
    )
    assert "\x1b" not in invoke(CUDA, "--json-output", tmp_path / "\x1b]0;x\x07" / "x.json").stderr


def test_no_file_is_wrong_usage() -> None:
    assert invoke().exit_code == 2


def test_several_files_begin_with_the_answer(tmp_path: Path) -> None:
    # GIVEN a file with the higher peak, and one with an out-of-memory
    for name, held in (("a", 5), ("b", 3)):
        program = Program()
        program.metadata = file_metadata()
        for _ in range(held):
            program.alloc(2**20, ("model.py", "forward", 3))
        if name == "b":
            program.out_of_memory(2**30, 2**20)
        program.write(tmp_path / f"{name}.pickle")
    # THEN the first lines name both, and the table counts the out-of-memories
    output = invoke(tmp_path).output
    assert output.splitlines()[:2] == [
        "The highest usage: 5 MiB allocated (6 MiB reserved) at the peak of cuda:0, in "
        f"{tmp_path}/a.pickle.",
        f"1 of 2 files ran out of memory. To see why: pytracer explain {tmp_path}/b.pickle",
    ]
    rows = {row[0].partition(",")[0]: row[-2:] for row in cells(output)}
    assert rows["a.pickle"] == ["0", "no"]
    assert rows["b.pickle"] == ["1", "no"]


def test_the_largest_part_is_of_all_that_is_held(tmp_path: Path) -> None:
    # GIVEN a state in which the largest block waits for a stream
    program = Program()
    program.alloc(1000, ("model.py", "forward", 3), events=False)
    program.alloc(2**20, ("model.py", "send", 9), events=False)
    content = program.content()
    (segment,) = content["segments"]
    (block,) = (each for each in segment["blocks"] if each["requested_size"] == 2**20)
    block["state"] = "active_pending_free"
    # THEN the answer tells what the part is of
    shown = " ".join(invoke(write_content(tmp_path, content)).output.split())
    assert "1 KiB allocated (2 MiB reserved) at the end; the largest part of these and of" in shown
    assert "of 1 MiB that wait for a stream, 1 MiB, by model.py:9 send." in shown


def write_content(tmp_path: Path, content: dict[str, Any]) -> Path:
    path = tmp_path / "made.pickle"
    path.write_bytes(pickle.dumps(content, protocol=4))
    return path


def test_losses_are_reported(tmp_path: Path) -> None:
    # GIVEN a file with a loss of every kind
    content = run_program([("alloc", 10, 0), ("alloc", 5, 0), ("free", 0, 0)]).content(lost=3)
    lost = {"unknown_frees": 11, "live_dropped": 12, "labels_dropped": 13}
    content["pytracer"]["devices"][0] |= lost
    content["pytracer"] |= {
        "stacks": {"dropped": 14, "truncated": 15},
        "phases": {"names_dropped": 16, "complete": False},
        "untraced": "cuda: no hook",
        "waiting": True,
        "window": {"first": 1, "last": 1, "complete": False},
    }
    # WHEN the report is printed, THEN it has a sentence on each loss
    output = invoke(write_content(tmp_path, content), "--device", 1).output
    output = re.sub(r"\s+", " ", output)
    for sentence in (
        "The ring overwrote its first 3 events",
        "10 B were requested before the first event.",
        "Frees of unknown blocks: 11.",
        "Blocks that did not fit into the table of live blocks: 12.",
        "Pools and labels that did not fit into their table: 13.",
        "Events without a stack, because the stack table was full: 14.",
        "Stacks that stack_depth shortened: 15.",
        "Phases that did not fit into their table: 16.",
        "The times of the first phases are unknown",
        "Not recorded: cuda: no hook",
        "No events were recorded",
        "step 1, cut short by the end of the program",
    ):
        assert sentence in output


def test_it_may_be_unknown_whether_a_ring_lost_events(tmp_path: Path) -> None:
    # GIVEN a file of torch's own recorder, and one of pytracer
    sentence = "Whether the ring overwrote earlier events is unknown"
    content = run_program([("alloc", 10, 0)]).content()
    assert sentence not in invoke(write_content(tmp_path, content)).output
    del content["pytracer"]
    # WHEN the report is printed, THEN only the file of torch's recorder has the sentence
    assert sentence in invoke(write_content(tmp_path, content), "--device", 1).output
    # AND a file without events has lost none
    content["device_traces"] = [[], []]
    assert sentence not in invoke(write_content(tmp_path, content)).output


def test_a_file_of_one_phase(tmp_path: Path) -> None:
    # GIVEN a recording with a file for one phase, while another thread is in another phase
    kept = []

    def allocate() -> None:
        with pytracer.annotate("update"):
            kept.append(torch.empty(32 * MIB, dtype=torch.uint8))

    options: Any = {"device": "cpu", "steps": [1], "discrete": True}
    with pytracer.Tracer(tmp_path / "s.pickle", **options) as tracer:
        with pytracer.annotate("rollout"):
            # Freed after the other thread's allocation, which therefore has another address.
            rollout = torch.empty(8 * MIB, dtype=torch.uint8)
            thread = threading.Thread(target=allocate)
            thread.start()
            thread.join()
            del rollout
        tracer.step()

    # WHEN the report is printed
    output = invoke(tmp_path / "s.step1.rollout.pickle").output
    # THEN it says that other events are missing, and marks levels as approximate
    lines = re.sub(r"\s+", " ", output)
    assert "The file has the events of phase 'rollout' only." in lines
    assert "step 1, phase rollout, occurrence 1, complete" in lines
    assert ["allocated", "~ 40 MiB", "32 MiB"] in cells(output)
    assert "≥" not in output
    # AND the report says that the ring's losses are of all phases
    content = pickle.loads((tmp_path / "s.step1.rollout.pickle").read_bytes())
    content["pytracer"]["devices"][0]["overwritten"] = 1
    lines = re.sub(r"\s+", " ", invoke(write_content(tmp_path, content)).output)
    assert "The ring overwrote its first 1 event of all phases" in lines
    # AND its row in a table of several files names the phase
    rows = {row[0].partition(", pid")[0]: row[1:] for row in cells(invoke(tmp_path).output)}
    assert rows["s, step 1 rollout"] == ["~ 40 MiB", "-", "-", "yes"]
    assert rows["s, step 1"] == ["40 MiB", "-", "-", "no"]


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
    content["pytracer"][key] = True
    path = write_content(tmp_path, content)
    shutil.copy(path, tmp_path / "again.pickle")
    # WHEN it is one of several files, THEN its row says whether the levels may be wrong
    rows = cells(invoke(tmp_path, "--device", 1).output)
    assert [row[-1] for row in rows if "pickle" in row[0]] == ["yes" if is_lossy else "no"] * 2


def test_similar_files_are_distinguished(tmp_path: Path) -> None:
    # GIVEN files of two processes of one step and rank, of another rank, and with another name
    def write(name: str, **metadata: Any) -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        content = pickle.loads(CUDA.read_bytes())
        content["pytracer"] |= {"written_ns": 1_700_000_000 * 10**9, **metadata}
        path.write_bytes(pickle.dumps(content, protocol=4))

    for rank, pid in ((0, 1), (0, 2), (1, 3)):
        write(f"step1/torch_memory_rank{rank}_pid{pid}.pickle", pid=pid, rank=rank)
    write("a.pickle", pid=4, rank=5, written_ns=1_700_000_061 * 10**9)
    # WHEN they are shown, THEN step, rank, pid and time distinguish them, in lines that fit
    # AND the newest file is last
    output = invoke(tmp_path, "--device", 0).output
    assert max(map(len, output.splitlines()[1:])) <= 80
    assert "2023-11-14 (UTC)" in " ".join(output.split())
    shown = " ".join(row[0] for row in cells(output))
    assert shown == (
        "step 1, rank 0, pid 1, 22:13:20 step 1, rank 0, pid 2, 22:13:20 "
        "step 1, rank 1, pid 3, 22:13:20 a.pickle, rank 5, pid 4, 22:14:21"
    )
    # AND times of several days include the date
    write("b.pickle", pid=4, rank=5, written_ns=1_800_000_000 * 10**9)
    shown = " ".join(row[0] for row in cells(invoke(tmp_path, "--device", 0).output))
    assert "b.pickle, rank 5, pid 4, 2027-01-15 08:00:00" in shown


def test_files_with_the_same_metadata(tmp_path: Path) -> None:
    # GIVEN copies of a file: two named after one step and rank, and one after another rank
    for name in ("rank0_pid1", "rank0_pid2", "rank1_pid3"):
        path = tmp_path / "step1" / f"torch_memory_{name}.pickle"
        path.parent.mkdir(exist_ok=True)
        shutil.copy(CUDA, path)
    # WHEN they are shown, THEN the two have their file names
    shown = " ".join(row[0] for row in cells(invoke(tmp_path, "--device", 0).output))
    assert "torch_memory_rank0_pid1.pickle, pid " in shown
    assert "torch_memory_rank0_pid2.pickle, pid " in shown
    assert "rank 1, pid " in shown


def test_bounds_are_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN files in which no level is exact before the last event
    def replayed(*arguments: Any) -> Any:
        history = replay(*arguments)
        return inexact(history, len(history.usage.reserved_bytes) - 1)

    monkeypatch.setattr(device_data, "replay", replayed)
    for name in ("a.pickle", "b.pickle"):
        shutil.copy(GOLDEN / "native/cuda-2.15.0.pickle", tmp_path / name)
    report = stats(load(tmp_path / "a.pickle"))
    content = pickle.loads(CUDA.read_bytes())
    events = len(content["device_traces"][0])
    content["pytracer"]["devices"][0]["steps"] = [[1, 0], [2, events // 2]]

    # WHEN one is shown, THEN uncertain levels of the peak are ranges, and known levels are exact
    output = invoke(tmp_path / "a.pickle", "--device", 0).output
    rows = {row[0]: row[1:] for row in reversed(cells(output))}  # the first table's
    (peak,) = (device.peak_allocated for device in report.devices if device.device == 0)
    assert peak is not None
    reserved = size(peak.reserved_bytes)
    assert rows["allocated"][0] == f"73.04-{reserved}"
    assert rows["reserved"][0] == reserved
    assert rows["reserved - allocated"][0] == f"0 B-{size(peak.fragmentation_bytes)}"
    assert rows["segments"][0] == str(peak.segments)
    assert rows["Σ free² / (Σ free)²"][0] == "-"
    # AND the overview has the same ranges, with the bounds of the peak, and unknown losses
    shown = next(
        row for row in cells(invoke(tmp_path, "--device", 0).output) if row[0] == "a.pickle"
    )
    assert shown[1:] == [
        f"73.04-{size(report.devices[0].peak_most_bytes or 0)}",
        *(row[0] for row in (rows["reserved"][1:], rows["reserved - allocated"])),
        "1",
        "unknown",
    ]
    # AND the tables of steps and phases have ranges
    rows = {row[0]: row[1:] for row in cells(invoke(write_content(tmp_path, content)).output)}
    assert all("-" in cell for cell in rows["1"][:2])
    assert ["-" in cell for cell in rows["2"][:2]] == [True, False]
    # AND the failed request is larger than even the upper bound
    assert ["fits if joined", "no"] in cells(output)
    text = re.sub(r"\s+", " ", output)
    assert f"Up to event {report.devices[0].events - 1:,}, the exact sizes of some blocks" in text
    assert "The peak is between 73.04 MiB and " in text


def test_a_step_whose_older_blocks_have_known_bounds(tmp_path: Path) -> None:
    # GIVEN complete files of steps, in which an older block of 3 MiB is freed
    for name, size_bytes in (("a", 2 * MIB), ("b", 20 * MIB)):
        (tmp_path / f"{name}.pickle").write_bytes(pickle.dumps(older_block(size_bytes), protocol=4))
    # WHEN they are shown, THEN no loss is reported, and the peak has bounds
    output = invoke(tmp_path / "a.pickle").output
    assert ["allocated", "3-4 MiB", "3-4 MiB", "2 MiB"] in cells(output)
    assert "The peak is between 3 MiB and 4 MiB." in output
    # AND an exact peak is reported as exact
    output = invoke(tmp_path / "b.pickle").output
    assert ["allocated", "20 MiB", "3-4 MiB", "20 MiB"] in cells(output)
    assert "The peak is exact." in output
    rows = [row[1:] for row in cells(invoke(tmp_path).output)]
    assert rows[-2:] == [["3-4 MiB", "40 MiB", "36-37 MiB", "no"]] + [
        ["20 MiB", "40 MiB", "20 MiB", "no"]
    ]


def older_block(size_bytes: int) -> dict[str, Any]:
    """Return a file with a 40 MiB segment: an older block is freed and a new one allocated."""
    frames = [{"filename": "train.py", "name": "step", "line": 3}]
    first, second = 1 << 30, (1 << 30) + 20 * MIB
    events = [
        {"action": action, "addr": address, "size": count, "stream": 0, "frames": frames}
        for action, address, count in (
            ("free_requested", first, 3 * MIB),
            ("free_completed", first, 3 * MIB),
            ("alloc", second, size_bytes),
        )
    ]
    blocks = [
        {"address": first, "size": 20 * MIB, "state": "inactive"},
        {
            **{"address": second, "size": size_bytes, "requested_size": size_bytes},
            "state": "active_allocated",
        },
    ]
    if rest := 20 * MIB - size_bytes:
        blocks.append({"address": second + size_bytes, "size": rest, "state": "inactive"})
    segment = {"device": 0, "address": first, "total_size": 40 * MIB, "blocks": blocks}
    device = {"index": 0, "is_cpu": False, "overwritten": 0, "steps": [[7, 0]]}
    metadata = {"backends": ["cuda"], "devices": [device], "window": {"first": 7, "last": 7}}
    return {"segments": [segment], "device_traces": [events], "pytracer": metadata}


def test_titles_are_not_interpreted_as_markup(tmp_path: Path) -> None:
    # GIVEN a folder whose name looks like the end of a markup style
    folder = tmp_path / "x[" / "foo]"
    folder.mkdir(parents=True)
    for name in ("a.pickle", "b.pickle"):
        shutil.copy(CUDA, folder / name)
    # WHEN the report is printed, THEN the title has the name
    result = invoke(folder)
    assert result.exit_code == 0
    assert "x[/foo]" in re.sub(r"\s+", "", result.output)


def test_file_names_cannot_control_the_terminal(tmp_path: Path) -> None:
    # GIVEN files with escape sequences in their names, which cannot be read
    for name in ("\x1b[31ma.pickle", "b\x1b]0;x\x07.pickle"):
        (tmp_path / name).write_bytes(b"no pickle")
    # WHEN they are read, THEN no error has an escape sequence, neither of several nor missing files
    several, none = invoke(tmp_path), invoke(tmp_path / "\x1b]0;x\x07", "--device", 1)
    assert several.stderr.count("Error: ") == 2
    assert "\x1b" not in several.stderr + none.stderr
    empty = tmp_path / "\x1b]0;x\x07"
    empty.mkdir()
    result = CliRunner().invoke(main, ["diff", str(empty), str(empty)])
    assert "contains no snapshots" in result.output
    assert "\x1b" not in result.output


def test_a_terminal_without_the_symbols(tmp_path: Path) -> None:
    # GIVEN an encoding without µ and Σ
    env = processes.environment(PYTHONIOENCODING="ascii")
    # WHEN the report is printed, THEN question marks replace these symbols
    done = processes.run_python("-m", "pytracer", "stats", CUDA, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "? free? / (? free)?" in done.stdout


def test_a_system_without_sched_getaffinity(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN macOS
    monkeypatch.delattr(os, "sched_getaffinity")
    # WHEN files are read, THEN all results are returned
    assert parallel.in_parallel(str, [Path("a"), Path("b")], "Reading") == ["a", "b"]


def test_a_contradiction_is_reported(tmp_path: Path) -> None:
    # GIVEN a trace that contradicts the segments
    content = run_program([("alloc", 10, 0), ("alloc", 20, 1)]).content()
    content["segments"].pop(0)
    # WHEN the report is printed, THEN it has the state at the end, and why the levels are unknown
    output = invoke(write_content(tmp_path, content), "--device", 1).output
    assert "Only the state at the end is known:" in output
    assert ["allocated", "20 B"] in cells(output)
    assert "Memory held at the end" in output
    assert "peak" not in output.partition("steps")[0].lower()


def test_no_times_and_no_events(tmp_path: Path) -> None:
    # GIVEN a file without times
    content = run_program([("alloc", 10, 0)]).content()
    for event in content["device_traces"][1]:
        del event["time_us"]
    # WHEN it is shown, THEN the report says that times are unknown
    path = write_content(tmp_path, content)
    assert "cpu: 2 events of 1 allocation or free, at unknown times" in invoke(path).output
    # AND a file without events is described as such
    content["device_traces"] = [[], []]
    assert (
        "cpu: no events, only the state at the end"
        in invoke(write_content(tmp_path, content)).output
    )
    # AND so is an empty file
    empty = write_content(tmp_path, {"segments": [], "device_traces": []})
    assert "The file has no events and no segments." in invoke(empty).output


def test_an_out_of_memory_is_shown() -> None:
    output = invoke(GOLDEN / "native/cuda-2.15.0.pickle", "--device", 0).output
    rows = cells(output)
    assert "Out of memory" in output
    assert ["requested", "2 GiB"] in rows
    assert ["largest free block", "11 MiB"] in rows
    assert ["fits in one block", "no"] in rows
    assert ["fits if joined", "no"] in rows
    # AND unknown amounts are reported as unknown
    assert ["held elsewhere", "unknown"] in rows
    # AND the sites are those of the peak, because the out-of-memory did not cause the snapshot
    assert "Memory held at the peak" in output


@pytest.mark.parametrize(("requested", "fits"), [(12 * MIB, "yes"), (13 * MIB, "no")])
def test_the_figures_of_an_out_of_memory(tmp_path: Path, requested: int, fits: str) -> None:
    # GIVEN the file of an out-of-memory, with an earlier peak
    program = Program()
    program.metadata = file_metadata(oom={"device": 0, "requested_bytes": requested})
    program.metadata["devices"][0] |= {"total_bytes": 20 * MIB, "free_bytes": 11 * MIB}
    program.metadata["devices"][0] |= {"process_bytes": None, "reserved_bytes": 2 * MIB}
    peak = program.alloc(MIB, ("train.py", "peak", 1))
    program.alloc(MIB // 2, ("train.py", "held", 2))
    program.free(peak)
    program.out_of_memory(requested, 11 * MIB)
    # WHEN it is shown
    output = invoke(program.write(tmp_path / "a.pickle")).output
    rows, text = cells(output), re.sub(r"\s+", " ", output)
    # THEN it reports the free memory, and whether it was enough in one block and in total
    for row in (
        ["free on the device", "11 MiB"],
        ["free in segments", "1.5 MiB"],
        ["largest free block", "1 MiB"],
        ["held elsewhere", "7 MiB"],
        ["fits in one block", "no"],
        ["fits if joined", fits],
    ):
        assert row in rows
    # AND the call sites are those that hold memory at that time
    assert "Memory held at the out-of-memory" in output
    assert [row[-1] for row in rows if "KiB" in row[0]] == ["train.py:2 held"]
    assert "train.py:1 peak" not in output
    # AND the explanation comes first
    first = " ".join(output.partition(str(tmp_path))[0].split())
    amount = "12 MiB" if fits == "yes" else "13 MiB"
    assert first.startswith(f"CUDA out of memory: {amount} were requested at (unknown).")
    assert "Verdict: " in first
    assert "Held by: 512 KiB (100%) train.py:2 held." in first
    assert "Try: " in first
    # AND memory held outside the allocator is reported
    assert "7 MiB are held outside this process's allocator: by other processes, and by" in text


def test_a_report_that_would_fill_the_disk(tmp_path: Path) -> None:
    # GIVEN a small file whose stacks contain a long name many times
    program = Program()
    program.alloc(700, *[("/a/ops.py", "n" * 20_000, 3)] * 1000)
    path = program.write(tmp_path / "a.pickle")
    # WHEN a report with all stacks is requested, THEN the file is refused
    done = invoke(path, "--json")
    assert "is refused: its stacks would take" in done.stderr
    assert '"files": []' in done.stdout


def test_memory_of_a_device_outside_the_allocator(tmp_path: Path) -> None:
    # GIVEN files with the process's share of the device's memory
    program = Program()
    program.alloc(MIB)
    for total, others in ((10, "3 MiB"), (6, "an unknown amount")):
        program.metadata = file_metadata()
        amounts = {"total_bytes": total, "free_bytes": 2, "process_bytes": 5, "reserved_bytes": 4}
        amounts = {name: count * MIB for name, count in amounts.items()}
        program.metadata["devices"][0] |= amounts
        # WHEN they are shown, THEN this process and the other processes are reported separately
        text = re.sub(r"\s+", " ", invoke(program.write(tmp_path / "a.pickle")).output)
        assert (
            f"This process holds 1 MiB outside the allocator; other processes hold {others}."
        ) in text
        assert f"2 MiB of {total} MiB are free." in text


def test_the_reason_of_a_snapshot_is_reported(tmp_path: Path) -> None:
    # GIVEN a file of an out-of-memory, and one with malformed values
    content = run_program([("alloc", 10, 0)]).content()
    content["pytracer"] |= {"version": "1.0", "rank": 3, "written_ns": 1_700_000_000 * 10**9}
    content["pytracer"]["oom"] = {"requested_bytes": 2 << 30, "free_bytes": 1 << 30}
    output = re.sub(r"\s+", " ", invoke(write_content(tmp_path, content)).output)
    # WHEN they are shown, THEN the reason is reported, and malformed values are left out
    assert "by pytracer 1.0, rank 3, 2023-11-14 22:13:20.000000 UTC" in output
    assert "out of memory: 2 GiB requested, 1 GiB free" in output
    content["pytracer"] |= {"written_ns": "now", "oom": {"requested_bytes": None}}
    assert "by pytracer 1.0, rank 3\n" in invoke(write_content(tmp_path, content)).output


def test_names_cannot_control_the_terminal(tmp_path: Path) -> None:
    # GIVEN a file whose names have an escape sequence and markup
    content = run_program([("alloc", 10, 0)]).content()
    for event in content["device_traces"][1]:
        event["user_metadata"] = "\x1b[31m[red]phase\n"
        event["frames"] = [{"filename": "\x1b]0;x\x07.py", "name": "[bold]", "line": 1}]
    # WHEN it is shown, THEN the names are printed literally
    output = invoke(write_content(tmp_path, content), "--device", 1).output
    assert "\x1b" not in output
    assert "[red]phase" in output
    assert "[bold]" in output


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
    from rich.console import Console

    return Console(**options, force_terminal=True)


def test_an_error_other_than_pytracers_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        parallel.in_parallel(lambda path: 1 // 0, [Path("a")], "Reading")


def test_control_c_works_immediately(tmp_path: Path) -> None:
    # GIVEN a command that reads for a long time without checking for signals
    program = (
        "import sys, time; from pathlib import Path\n"
        "from pytracer.commands.parallel import in_parallel\n"
        "def work(path): print('working', flush=True); time.sleep(60)\n"
        "in_parallel(work, [Path('a')], 'Reading')"
    )
    begin = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    with processes.start(begin + program, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        # WHEN it is interrupted, THEN it ends immediately, killed by the signal
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == -signal.SIGINT


def test_values_without_a_json_type_are_strings(tmp_path: Path) -> None:
    # GIVEN values that JSON does not support, which a file of unknown origin may have
    path = tmp_path / "x.json"
    strange = {"nan": float("nan"), "bytes": b"x", "set": {1}, (1, 2): None, "text": "\ud800"}
    # WHEN they are written, THEN they are strings, and other values are unchanged
    write_json(strange | {"ok": [1, 2.5, True]}, path=str(path))
    assert json.loads(path.read_text()) == {
        "nan": "nan",
        "bytes": "b'x'",
        "set": "{1}",
        "(1, 2)": None,
        "text": "\ud800",
        "ok": [1, 2.5, True],
    }


def test_a_json_file_that_cannot_be_completed_is_left_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a report, and a disk that is full
    path = tmp_path / "x.json"
    path.write_text("old")

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    # WHEN
    with pytest.raises(click.ClickException, match=r"cannot write .*x\.json: No space left"):
        write_json({"new": 1}, path=str(path))
    # THEN
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_goes_to_standard_output_once(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"a": 1}, to_stdout=True, path="-")
    assert json.loads(capsys.readouterr().out) == {"a": 1}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (-2048, "-2 KiB"),
        (3 << 40, "3 TiB"),
        (12634000, "12.05 MiB"),
        (1 << 80, "1.049e+06 EiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("duration_us", "text"),
    [(0, "0 µs"), (999, "999 µs"), (1500, "1.5 ms"), (2_000_000, "2 s"), (36 * 10**9, "10 h")],
)
def test_durations(duration_us: int, text: str) -> None:
    assert duration(duration_us) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 frees"), (1, "1 free"), (2000, "2,000 frees")])
def test_numbers(count: int, text: str) -> None:
    assert number(count, "free") == text
    assert number(2, "retry", "retries") == "2 retries"


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("a.pickle", ["a.pickle"]),
        ("first/second_third.pickle", ["first/", "second_", "third.pickle"]),
        ("a/b/c/averyverylongname", ["a/b/c/", "averyverylongname"]),
        ("", [""]),
    ],
)
def test_folded_paths(path: str, lines: list[str]) -> None:
    assert wrapped_text(path, 12).split("\n") == lines


def test_times_of_any_size() -> None:
    assert utc_time(1_700_000_000_000_001) == "2023-11-14 22:13:20.000001 UTC"
    assert utc_time(2**63 - 1).endswith(" UTC")


@pytest.mark.parametrize(
    ("lower", "upper", "text"),
    [
        (26 * MIB, 26 * MIB, "26 MiB"),
        (26 * MIB, 26 * MIB + 1, "26 MiB"),
        (25 * MIB, 26 * MIB, "25-26 MiB"),
        (1023, 1024, "1023 B-1 KiB"),
    ],
)
def test_ranges_of_sizes(lower: int, upper: int, text: str) -> None:
    assert size_range(lower, upper) == text


def test_ranges_break_between_their_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a table with a range, in a terminal that is too narrow for it
    table = new_table("peak", "phase", text=-1)
    add_row(table, "134.8-135.8 MiB", "rollout")
    # WHEN it is shown, THEN no bound is split
    Console(width=26).print(table)
    rows = [row[0] for row in cells(capsys.readouterr().out)]
    assert rows == ["134.8-", "135.8 MiB"]


def test_call_site_texts() -> None:
    assert call_site_text(Frame("/a/b/c.py", "f", 7)) == "b/c.py:7 f"
    assert call_site_text(Frame(r"C:\a\b\c.py", "f", 7)) == "b/c.py:7 f"
    assert call_site_text(Frame("c.py", "f", 7)) == "c.py:7 f"
    assert call_site_text(Frame("??", "at::empty()", 0)) == "at::empty()"
    assert call_site_text(None) == "(unknown)"
    assert printable("a\x1b\n\ud800é") == "a���é"


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (40, "models/llama.py:1234 forward_of_a_layer"),
        (38, "llama.py:1234 forward_of_a_layer"),
        (30, "llama.py:1234 forward_of_a_la…"),
        (25, "llama.py:1234\nforward_of_a_layer"),
        (13, "llama.py:1234\nforward_of_a…"),
        (10, "…a.py:1234\nforward_o…"),
    ],
)
def test_shortened_call_site_texts(width: int, text: str) -> None:
    assert call_site_text(Frame("/a/models/llama.py", "forward_of_a_layer", 1234), width) == text
    assert max(map(len, text.split("\n"))) <= width


def test_file_and_line_stay_together(tmp_path: Path) -> None:
    # GIVEN call sites with long names that do not fit into their columns, one of an out-of-memory
    program = Program()
    file, name = "transformers/models/modeling_of_a_long_name.py", "forward_of_a_decoder_layer"
    for line in (12_345, 67_890):
        program.alloc(1000, (f"/site-packages/{file}", name, line))
    for _ in range(3):
        program.out_of_memory(1 << 40, 0)
        program.events[-1]["frames"] = program.events[-2]["frames"] or [
            {"filename": file, "name": name, "line": 12_345}
        ]
    path = program.write(tmp_path / "a.pickle")
    # WHEN they are shown at 80 columns, THEN file name and line number are not separated
    for arguments in (("stats", path), ("diff", path, path)):
        output = commands.invoke(*arguments).output
        assert all(len(line) <= 80 for line in output.splitlines() if str(path) not in line)
    output = invoke(path).output
    assert max(len(line) for line in output.splitlines() if str(path) not in line) <= 80
    for line in (12_345, 67_890):
        assert len(re.findall(rf"\w+\.py:{line}\b", output)) >= 1
    lines, _, tables = output.partition("events in")
    assert (lines.count(".py:"), tables.count(".py:")) == (1 + 2, 2 + 3)
    assert len(re.findall(r"\w+\.py:\d{5} forward_of_a", tables)) == 2


def test_a_program_without_steps_shows_none(tmp_path: Path) -> None:
    # GIVEN files of a program without steps, which is all in the first step, and one of step 7
    program = Program()
    program.alloc(1000)
    program.out_of_memory(1 << 40, 0)
    for first, shown in ((0, False), (1, False), (7, True)):
        program.metadata = file_metadata()
        program.metadata["devices"][0]["steps"] = [[first, 0]]
        # WHEN it is shown, THEN the first step is not shown
        rows = cells(invoke(program.write(tmp_path / "a.pickle")).output)
        assert ("step" in [row[0] for row in rows]) == shown


def test_stats_does_not_import_torch(tmp_path: Path) -> None:
    # GIVEN an interpreter in which torch cannot be imported
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was imported')")
    env = processes.environment()
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    # WHEN the report is printed, THEN it succeeds
    done = processes.run_python("-m", "pytracer", "stats", CUDA, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Memory held at the peak" in done.stdout
