"""What does `pytracer show --all` print of one file?"""

import json
import os
import pickle
import re
import threading
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
from commands import cells
from show_command import CUDA, MIB, invoke, write_content
from synthetic_snapshots import Program, file_metadata

import pytracer

pytestmark = pytest.mark.usefixtures("narrow_terminal")


def test_top_limits_the_rows() -> None:
    # WHEN one site is requested, THEN the others are one row, and JSON has all
    rows = cells(invoke(CUDA, "--top", 1).output)
    assert ["8.126 MiB", "8.125 MiB", "100%", "3", "train.py:5 forward"] in rows
    assert ["1.5 KiB", "320 B", "0%", "3", "(2 other call sites)"] in rows
    (file,) = json.loads(invoke(CUDA, "--top", 1, "--json").output)["files"]
    assert len(file["devices"][0]["held"][0]["groups"]) == 3


def test_a_missing_device() -> None:
    result = invoke(CUDA, "--device", 7)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {CUDA} has no device 7: it has 0, 1\n"


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
    assert "peak 1 KiB at the end; reserved 2 MiB" in shown
    assert "held 1.001 MiB at the end, of which 1 MiB are freed and wait for a stream" in shown
    assert "lines 1 MiB model.py:9 send 1 KiB model.py:3 forward" in shown


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
    assert "The file has only the events of phase 'rollout'." in lines
    assert "step 1, phase rollout, occurrence 1, complete" in lines
    assert ["allocated", "~ 40 MiB", "32 MiB"] in cells(output)
    assert "≥" not in output
    # AND the report says that the ring's losses are of all phases
    content = pickle.loads((tmp_path / "s.step1.rollout.pickle").read_bytes())
    content["pytracer"]["devices"][0]["overwritten"] = 1
    lines = re.sub(r"\s+", " ", invoke(write_content(tmp_path, content)).output)
    assert "The ring overwrote its first 1 event" in lines
    # AND its row in a table of several files names the phase
    rows = {row[0]: row[1:] for row in cells(invoke(tmp_path).output)}
    assert rows["s.step1.rollout.pickle, cpu"] == ["~ 40 MiB", "-", "-", "0", "yes"]
    assert rows["s.step1.pickle, cpu"] == ["40 MiB", "-", "-", "0", "no"]


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
        ["held outside the allocator", "7 MiB"],
        ["fits in one block", "no"],
        ["fits if joined", fits],
    ):
        assert row in rows
    # AND the call sites are those that hold memory at that time
    assert "Memory held when memory ran out" in output
    assert ["512 KiB", "100%", "1", "train.py:2 held"] in rows
    assert "train.py:1 peak" not in output
    # AND the explanation comes first
    first = " ".join(output.partition(str(tmp_path))[0].split())
    amount = "12 MiB" if fits == "yes" else "13 MiB, needs a new segment of 14 MiB"
    assert first.startswith("OUT OF MEMORY: ")
    assert f"cuda:0 asked {amount} (unknown) free 11 MiB on the device + 1.5 MiB inside" in first
    assert "lines 512 KiB train.py:2 held" in first
    # AND memory held outside the allocator is reported
    assert "7 MiB are held outside this process's allocator: by other processes, and by" in text


def test_a_report_that_would_fill_the_disk(tmp_path: Path) -> None:
    # GIVEN a small file whose stacks contain a long name many times
    program = Program()
    program.alloc(700, *[("/a/ops.py", "n" * 20_000, 3)] * 1000)
    path = program.write(tmp_path / "a.pickle")
    # WHEN a report with all stacks is requested, THEN the file is refused
    done = invoke(path, "--json")
    assert "is refused: written as text, its stacks would take" in done.stderr
    assert '"files": []' in done.stdout


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


def test_show_does_not_import_torch(tmp_path: Path) -> None:
    # GIVEN an interpreter in which torch cannot be imported
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was imported')")
    env = processes.environment()
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    # WHEN the report is printed, THEN it succeeds
    done = processes.run_python("-m", "pytracer", "show", "--all", CUDA, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Memory held at the peak" in done.stdout


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
