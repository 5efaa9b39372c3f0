"""`pytracer stats`, as somebody types it: on recordings, golden files, and what is none."""

import gzip
import json
import os
import pickle
import re
import shutil
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import commands
import processes
import pytest
import torch
from click.testing import CliRunner
from commands import cells
from made_program import run as run_program

import pytracer
from pytracer import cli_files
from pytracer.cli import main
from pytracer.errors import PytracerError
from pytracer.reading import load
from pytracer.reading import stats as reading_stats
from pytracer.reading.history import replay
from pytracer.reading.plain import plain
from pytracer.reading.stats import stats
from pytracer.reading.text import duration, folded, number, place, printable, size
from pytracer.reading.text import time as time_text

GOLDEN = Path(__file__).parents[1] / "golden"
CUDA = GOLDEN / "snapshot-1.3-cuda.pickle"
MIB = 2**20


invoke = partial(commands.invoke, "stats")


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_a_recording(tmp_path: Path) -> None:
    # GIVEN a recording of two steps, of which one tensor is left
    path = tmp_path / "snapshot.pickle"
    with pytracer.Tracer(path, device="cpu") as tracer:
        with pytracer.annotate("rollout"):
            kept = torch.empty(3 * MIB, dtype=torch.uint8)
        tracer.step()
        with pytracer.annotate("update"):
            torch.empty(8 * MIB, dtype=torch.uint8)

    # WHEN its numbers are asked for
    result = invoke(path)

    # THEN they are of what happened, in lines that fit and have no colours
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
    # WHEN JSON is asked for, on standard output and as a file
    shown, written = invoke(CUDA, "--json"), tmp_path / "stats.json"
    assert invoke(CUDA, "--json", written).output == ""
    # THEN it is the report, as plain numbers
    expected = {"schema_version": 1, "files": [plain(stats(load(CUDA)))], "errors": []}
    assert json.loads(shown.output) == expected
    assert json.loads(written.read_text()) == expected
    # AND may be written again
    assert invoke(CUDA, "--json", written).exit_code == 0


def test_top_limits_the_rows() -> None:
    # WHEN one site is asked for, THEN the others are one row, and in JSON are left out
    rows = cells(invoke(CUDA, "--top", 1).output)
    assert ["8.126 MiB", "8.125 MiB", "3", "train.py:5 forward"] in rows
    assert ["1.5 KiB", "320 B", "3", "(2 other places)"] in rows
    (file,) = json.loads(invoke(CUDA, "--top", 1, "--json").output)["files"]
    assert [site["size_bytes"] for site in file["devices"][0]["sites"]] == [8520704]


def test_several_files_have_a_row_each(tmp_path: Path) -> None:
    # GIVEN a directory with two files, and one that is being written
    for name in ("step1/a.pickle", "step2/a.pickle", "step2/.pytracer-x.tmp.pickle"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(GOLDEN / "snapshot-1.3-cpu.pickle", tmp_path / name)
    # WHEN its numbers are asked for, THEN each whole file has a row, named twice or not
    result = invoke(tmp_path, tmp_path / "step1")
    assert result.exit_code == 0
    numbers = [row[1:] for row in cells(result.output) if row[1]]
    assert numbers == [["832 B", "-", "-", "no"]] * 2
    assert "Who held it" not in result.output
    # AND with --top each is told in full beside
    assert invoke(tmp_path, "--top", 3).output.count("Who held it at the peak") == 2


def test_what_cannot_be_read_is_a_line_and_the_others_are_shown(tmp_path: Path) -> None:
    # GIVEN a file that is no snapshot, one that is not there, and a good one
    (tmp_path / "bad.pickle").write_bytes(b"no pickle")
    paths = [tmp_path / "bad.pickle", tmp_path / "nothing.pickle", CUDA]
    # WHEN their numbers are asked for
    result = invoke(*paths)
    # THEN the good one is shown, each other one is a line, and the exit code tells
    assert result.exit_code == 1
    assert "Who held it at the peak" not in result.output
    assert "8.127 MiB" in result.stdout
    assert len(result.stderr.splitlines()) == 2
    assert all(line.startswith("Error: ") for line in result.stderr.splitlines())
    assert all(name in result.stderr for name in ("bad.pickle", "nothing.pickle"))
    # AND JSON says so too
    told = json.loads(invoke(*paths, "--json").stdout)
    assert [file["path"] for file in told["files"]] == [str(CUDA)]
    assert len(told["errors"]) == 2


def test_a_device_that_is_not_there() -> None:
    result = invoke(CUDA, "--device", 7)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {CUDA}: there is no device 7 in it; it has 0, 1\n"


def test_one_device() -> None:
    assert "cuda:1: 1 event " in invoke(CUDA, "--device", 1).output


def test_json_does_not_overwrite_a_snapshot(tmp_path: Path) -> None:
    # GIVEN two snapshots
    paths = [shutil.copy(CUDA, tmp_path / name) for name in ("a.pickle", "b.pickle")]
    # WHEN --json stands before them, so that it would take the first for its own
    result = invoke("--json", *paths)
    # THEN it is refused, and the file is as it was
    assert result.exit_code == 2
    assert "put --json behind" in re.sub(r"\s+", " ", result.output)
    assert Path(paths[0]).read_bytes() == CUDA.read_bytes()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_json_does_not_overwrite_a_snapshot_of_any_name(tmp_path: Path, suffix: str) -> None:
    # GIVEN a snapshot that is not named as one
    victim = tmp_path / f"victim{suffix}"
    content = CUDA.read_bytes() if not suffix else gzip.compress(CUDA.read_bytes())
    victim.write_bytes(content)
    # WHEN JSON would be written there, THEN it is refused, and the file is as it was
    result = invoke("--json", victim, CUDA)
    assert result.exit_code == 2
    (line,) = (line for line in result.output.splitlines() if "victim" in line)
    assert "is there, and no JSON: give another name" in line
    assert victim.read_bytes() == content
    # AND what is empty or may be JSON is replaced
    for old in ("", "[1]", " {}", "\n{}"):
        victim.write_text(old)
        assert invoke("--json", victim, CUDA).exit_code == 0
        assert json.loads(victim.read_text())["files"]


def test_json_into_a_pipe(tmp_path: Path) -> None:
    # GIVEN what is no file, whose first byte nobody may wait for
    os.mkfifo(pipe := tmp_path / "pipe")
    assert cli_files._may_be_json(str(pipe))


def test_json_that_cannot_be_written(tmp_path: Path) -> None:
    result = invoke(CUDA, "--json", tmp_path / "no" / "x.json")
    assert result.exit_code == 1
    assert re.fullmatch(
        r"Error: cannot write .*x\.json: No such file or directory\n", result.stderr
    )
    assert "\x1b" not in invoke(CUDA, "--json", tmp_path / "\x1b]0;x\x07" / "x.json").stderr


def test_no_file_is_wrong_usage() -> None:
    assert invoke().exit_code == 2


def written(tmp_path: Path, content: dict[str, Any]) -> Path:
    path = tmp_path / "made.pickle"
    path.write_bytes(pickle.dumps(content, protocol=4))
    return path


def test_what_was_lost_is_said(tmp_path: Path) -> None:
    # GIVEN a file that lost something of everything
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
    # WHEN its numbers are asked for, THEN all of it is said
    output = invoke(written(tmp_path, content), "--device", 1).output
    output = re.sub(r"\s+", " ", output)
    for said in (
        "The ring lost its first 3 events",
        "10 B were requested before the first event.",
        "Frees of blocks that were not known: 11.",
        "Blocks that had no room in the table of live blocks: 12.",
        "Pools and labels that had no room: 13.",
        "Events without a stack, for want of room: 14.",
        "Stacks that stack_depth cut: 15.",
        "Phases that had no room: 16.",
        "When the first phases were entered and left is not told",
        "Not recorded: cuda: no hook",
        "No events were being recorded",
        "step 1, cut short by the end of the program",
    ):
        assert said in output


def test_whether_a_ring_lost_events_may_not_be_told(tmp_path: Path) -> None:
    # GIVEN a file of torch's own recorder, and one of ours
    said = "The file does not tell whether its ring lost events before these."
    content = run_program([("alloc", 10, 0)]).content()
    assert said not in invoke(written(tmp_path, content)).output
    del content["pytracer"]
    # WHEN its numbers are asked for, THEN it is said
    assert said in invoke(written(tmp_path, content), "--device", 1).output
    # AND not of one without events, in which there is nothing to lose
    content["device_traces"] = [[], []]
    assert said not in invoke(written(tmp_path, content)).output


def test_a_file_of_one_phase(tmp_path: Path) -> None:
    # GIVEN a recording of which a phase has its own file, while another thread is in another one
    kept = []

    def other() -> None:
        with pytracer.annotate("update"):
            kept.append(torch.empty(32 * MIB, dtype=torch.uint8))

    options: Any = {"device": "cpu", "steps": [1], "discrete": True}
    with pytracer.Tracer(tmp_path / "s.pickle", **options) as tracer:
        with pytracer.annotate("rollout"):
            torch.empty(8 * MIB, dtype=torch.uint8)
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        tracer.step()

    # WHEN its numbers are asked for
    output = invoke(tmp_path / "s.step1.rollout.pickle").output
    # THEN what the other one did is said to be missing, and levels to be no bounds: it was 32 MiB
    lines = re.sub(r"\s+", " ", output)
    assert "Only events of the phase 'rollout' are in it" in lines
    assert "step 1, phase rollout, occurrence 1, complete" in lines
    assert ["allocated", "~ 40 MiB", "32 MiB"] in cells(output)
    assert "≥" not in output
    # AND what its ring lost was of all phases
    content = pickle.loads((tmp_path / "s.step1.rollout.pickle").read_bytes())
    content["pytracer"]["devices"][0]["overwritten"] = 1
    lines = re.sub(r"\s+", " ", invoke(written(tmp_path, content)).output)
    assert "The ring lost its first 1 event of all phases" in lines
    # AND of several files its row has a name of its own
    rows = {row[0]: row[1:] for row in cells(invoke(tmp_path).output)}
    assert rows["s, step 1 rollout"] == ["~ 40 MiB", "-", "-", "yes"]
    assert rows["s, step 1"] == ["32 MiB", "-", "-", "no"]


@pytest.mark.parametrize(
    ("key", "is_lossy"),
    [
        *(("overwritten", True), ("live_dropped", True), ("labels_dropped", True)),
        *(("unknown_frees", False), ("untraced", True), ("waiting", False)),
    ],
)
def test_which_losses_the_overview_counts(tmp_path: Path, key: str, is_lossy: bool) -> None:
    # GIVEN a file that lost one thing
    content = run_program([("alloc", 10, 0)]).content()
    content["pytracer"]["devices"][0][key] = 1
    content["pytracer"][key] = True
    path = written(tmp_path, content)
    shutil.copy(path, tmp_path / "again.pickle")
    # WHEN it is one of several, THEN its row tells if levels may have been other ones
    rows = cells(invoke(tmp_path, "--device", 1).output)
    assert [row[-1] for row in rows if "pickle" in row[0]] == ["yes" if is_lossy else "no"] * 2


def test_files_whose_names_tell_the_same(tmp_path: Path) -> None:
    # GIVEN two files of one step and rank, and one of another rank
    for name in ("rank0_pid1", "rank0_pid2", "rank1_pid3"):
        path = tmp_path / "step1" / f"torch_memory_{name}.pickle"
        path.parent.mkdir(exist_ok=True)
        shutil.copy(CUDA, path)
    # WHEN they are shown, THEN the two have their names, in lines that end where a part does
    shown = [row[0] for row in cells(invoke(tmp_path, "--device", 0).output)]
    assert shown == [
        *("torch_memory_rank0_", "pid1.pickle", "torch_memory_rank0_", "pid2.pickle"),
        "rank 1",
    ]


def test_bounds_have_their_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN files of which nothing is exact before the last event
    def inexact(*arguments: Any) -> Any:
        history = replay(*arguments)
        return replace(history, exact_from=len(history.levels.reserved_bytes) - 1)

    monkeypatch.setattr(reading_stats, "replay", inexact)
    for name in ("a.pickle", "b.pickle"):
        shutil.copy(GOLDEN / "native/cuda-2.15.0.pickle", tmp_path / name)
    report = stats(load(tmp_path / "a.pickle"))
    content = pickle.loads(CUDA.read_bytes())
    events = len(content["device_traces"][0])
    content["pytracer"]["devices"][0]["steps"] = [[1, 0], [2, events // 2]]

    # WHEN one is shown, THEN bounds of the peak's column have marks, and what is known has none
    output = invoke(tmp_path / "a.pickle", "--device", 0).output
    rows = {row[0]: row[1:] for row in reversed(cells(output))}  # the first table's
    (peak,) = (device.peak_allocated for device in report.devices if device.device == 0)
    assert peak is not None
    assert rows["allocated"][0] == f"≥ {size(peak.allocated_bytes)}"
    assert rows["reserved"][0] == size(peak.reserved_bytes)
    assert rows["reserved - allocated"][0] == f"≤ {size(peak.fragmentation_bytes)}"
    assert rows["segments"][0] == str(peak.segments)
    assert rows["Σ free² / (Σ free)²"][0] == "-"
    # AND so in the overview
    shown = next(
        row for row in cells(invoke(tmp_path, "--device", 0).output) if row[0] == "a.pickle"
    )
    assert shown[1:] == [
        f"≥ {size(peak.allocated_bytes)}",
        *(row[0] for row in (rows["reserved"][1:], rows["reserved - allocated"])),
        "yes",
    ]
    # AND in the tables of steps and phases
    rows = {row[0]: row[1:] for row in cells(invoke(written(tmp_path, content)).output)}
    assert all(cell.startswith("≥ ") for cell in rows["1"][:2])
    assert [cell.startswith("≥ ") for cell in rows["2"][:2]] == [True, False]
    # AND what was asked for is too much even for the bound
    assert ["it fits in these", "no"] in cells(output)
    assert (
        f"Up to event {report.devices[0].events - 1:,} only requested and reserved bytes are exact"
        in re.sub(r"\s+", " ", output)
    )


def test_titles_are_no_markup(tmp_path: Path) -> None:
    # GIVEN a folder whose name would end a style
    folder = tmp_path / "x[" / "foo]"
    folder.mkdir(parents=True)
    for name in ("a.pickle", "b.pickle"):
        shutil.copy(CUDA, folder / name)
    # WHEN its numbers are asked for, THEN it is shown by its name
    result = invoke(folder)
    assert result.exit_code == 0
    assert "x[/foo]" in re.sub(r"\s+", "", result.output)


def test_file_names_cannot_control_the_terminal(tmp_path: Path) -> None:
    # GIVEN files with escape sequences in their names, which cannot be read
    for name in ("\x1b[31ma.pickle", "b\x1b]0;x\x07.pickle"):
        (tmp_path / name).write_bytes(b"no pickle")
    # WHEN they are read, THEN errors have none, of several files or of what is not there
    several, none = invoke(tmp_path), invoke(tmp_path / "\x1b]0;x\x07", "--device", 1)
    assert several.stderr.count("Error: ") == 2
    assert "\x1b" not in several.stderr + none.stderr
    empty = tmp_path / "\x1b]0;x\x07"
    empty.mkdir()
    result = CliRunner().invoke(main, ["diff", str(empty), str(empty)])
    assert "has no snapshots" in result.output
    assert "\x1b" not in result.output


def test_a_terminal_without_the_signs(tmp_path: Path) -> None:
    # GIVEN an encoding that has no µ and no Σ
    env = processes.environment(PYTHONIOENCODING="ascii")
    # WHEN numbers are asked for, THEN the rest is shown
    done = processes.run_python("-m", "pytracer", "stats", CUDA, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "? free? / (? free)?" in done.stdout


def test_a_system_that_does_not_tell_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN macOS
    monkeypatch.delattr(os, "sched_getaffinity")
    # WHEN files are read, THEN they are
    assert cli_files.in_parallel(str, [Path("a"), Path("b")], "Reading") == ["a", "b"]


def test_a_contradiction_is_said(tmp_path: Path) -> None:
    # GIVEN a trace without one of its events
    content = run_program([("alloc", 10, 0), ("alloc", 20, 1)]).content()
    content["segments"].pop(0)
    # WHEN its numbers are asked for, THEN the end is shown, and why no more
    output = invoke(written(tmp_path, content), "--device", 1).output
    assert "Only the end is known." in output
    assert ["allocated", "20 B"] in cells(output)
    assert "Who held it in the end" in output
    assert "peak" not in output.replace("Who held it", "").partition("steps")[0].lower()


def test_no_times_and_no_events(tmp_path: Path) -> None:
    # GIVEN a file without times
    content = run_program([("alloc", 10, 0)]).content()
    for event in content["device_traces"][1]:
        del event["time_us"]
    # WHEN it is shown, THEN it is said that there are none
    path = written(tmp_path, content)
    assert "cpu: 2 events; the file does not tell when" in invoke(path).output
    # AND of one without events
    content["device_traces"] = [[], []]
    assert "cpu: no events, the state in the end alone" in invoke(written(tmp_path, content)).output
    # AND of one with nothing at all
    empty = written(tmp_path, {"segments": [], "device_traces": []})
    assert "there is nothing in it" in invoke(empty).output


def test_an_out_of_memory_is_shown() -> None:
    output = invoke(GOLDEN / "native/cuda-2.15.0.pickle", "--device", 0).output
    rows = cells(output)
    assert "Out of memory" in output
    assert ["requested", "2 GiB"] in rows
    assert ["largest free block", "11 MiB"] in rows
    assert ["it fits in these", "no"] in rows


def test_why_it_was_written_is_said(tmp_path: Path) -> None:
    # GIVEN a file of an out-of-memory, and one that says it as pytracer never does
    content = run_program([("alloc", 10, 0)]).content()
    content["pytracer"] |= {"version": "1.0", "rank": 3, "written_ns": 1_700_000_000 * 10**9}
    content["pytracer"]["oom"] = {"requested_bytes": 2 << 30, "free_bytes": 1 << 30}
    output = re.sub(r"\s+", " ", invoke(written(tmp_path, content)).output)
    # WHEN they are shown, THEN the one says so, and the other is shown without
    assert "by pytracer 1.0, rank 3, 2023-11-14 22:13:20.000000 UTC" in output
    assert "when 2 GiB were not to be had, 1 GiB were free" in output
    content["pytracer"] |= {"written_ns": "now", "oom": {"requested_bytes": None}}
    assert "by pytracer 1.0, rank 3\n" in invoke(written(tmp_path, content)).output


def test_names_cannot_control_the_terminal(tmp_path: Path) -> None:
    # GIVEN a file whose names have an escape sequence and markup
    content = run_program([("alloc", 10, 0)]).content()
    for event in content["device_traces"][1]:
        event["user_metadata"] = "\x1b[31m[red]phase\n"
        event["frames"] = [{"filename": "\x1b]0;x\x07.py", "name": "[bold]", "line": 1}]
    # WHEN it is shown, THEN they are text
    output = invoke(written(tmp_path, content), "--device", 1).output
    assert "\x1b" not in output
    assert "[red]phase" in output
    assert "[bold]" in output


def test_progress_and_errors_of_many_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN work that takes longer than one waits
    monkeypatch.setattr(cli_files, "PATIENCE_S", 0.01)
    monkeypatch.setattr(cli_files, "Console", terminal)

    def slow(path: Path) -> str:
        time.sleep(0.05)
        if path.name == "b":
            raise PytracerError("b is bad")
        return path.name

    # WHEN it is done for several files
    results = cli_files.in_parallel(slow, [Path(name) for name in "abc"], "Reading them")
    # THEN results are in order, an error among them, and a terminal saw progress
    assert [str(result) for result in results] == ["a", "b is bad", "c"]
    assert "Reading them" in capsys.readouterr().err
    # AND errors are said
    assert cli_files.say_errors(results)
    assert capsys.readouterr().err == "Error: b is bad\n"
    assert not cli_files.say_errors(["a"])


def terminal(**options: Any) -> Any:
    from rich.console import Console

    return Console(**options, force_terminal=True)


def test_an_error_that_is_none_of_ours_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        cli_files.in_parallel(lambda path: 1 // 0, [Path("a")], "Reading")


def test_control_c_works_at_once(tmp_path: Path) -> None:
    # GIVEN a command that reads for long, without ever looking at signals
    program = (
        "import sys, time; from pathlib import Path; from pytracer.cli_files import in_parallel\n"
        "def work(path): print('working', flush=True); time.sleep(60)\n"
        "in_parallel(work, [Path('a')], 'Reading')"
    )
    begin = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    with processes.start(begin + program, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        # WHEN it is interrupted, THEN it ends at once, as a program does that a signal ended
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == -signal.SIGINT


def test_json_has_a_word_for_everything(tmp_path: Path) -> None:
    # GIVEN what JSON has no word for, as a stranger's file may hold it
    path = tmp_path / "x.json"
    strange = {"nan": float("nan"), "bytes": b"x", "set": {1}, (1, 2): None, "text": "\ud800"}
    # WHEN it is written, THEN it is strings, and the rest is what it was
    cli_files.write_json(strange | {"ok": [1, 2.5, True]}, str(path))
    assert json.loads(path.read_text()) == {
        "nan": "nan",
        "bytes": "b'x'",
        "set": "{1}",
        "(1, 2)": None,
        "text": "\ud800",
        "ok": [1, 2.5, True],
    }


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
    assert folded(path, 12).split("\n") == lines


def test_times_of_any_size() -> None:
    assert time_text(1_700_000_000_000_001) == "2023-11-14 22:13:20.000001 UTC"
    assert time_text(2**63 - 1).endswith(" UTC")


def test_places() -> None:
    from pytracer.reading import Frame

    assert place(Frame("/a/b/c.py", "f", 7)) == "b/c.py:7 f"
    assert place(Frame(r"C:\a\b\c.py", "f", 7)) == "b/c.py:7 f"
    assert place(None) == "(not known)"
    assert printable("a\x1b\n\ud800é") == "a���é"


def test_it_needs_no_torch(tmp_path: Path) -> None:
    # GIVEN an interpreter in which torch cannot be imported
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was imported')")
    env = processes.environment()
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    # WHEN numbers are asked for, THEN they come
    done = processes.run_python("-m", "pytracer", "stats", CUDA, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Who held it at the peak" in done.stdout
