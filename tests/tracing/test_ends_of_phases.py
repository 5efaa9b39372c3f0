"""What has the file of a phase that does not end in its step, its order or its thread?"""

import threading
import time
from pathlib import Path

import pytest
import torch
from phase_files import read, window
from processes import run
from step_files import BYTE, allocated

from pytracer import Tracer, annotate

pytestmark = pytest.mark.usefixtures("no_collector")


def test_a_phase_that_outlasts_its_step(tmp_path: Path) -> None:
    # GIVEN a phase that begins in a selected step and ends two steps later
    with Tracer(tmp_path, device="cpu", steps=[1], discrete=True) as tracer:
        with annotate("long"):
            for step in (1, 2, 3):
                torch.empty(step, dtype=BYTE)
                tracer.step()
        # and a phase that begins in another step
        with annotate("late"):
            torch.empty(9, dtype=BYTE)
    # THEN its file has all of its events, in the folder of the step it began in
    files = read(tmp_path)
    assert {*files} == {"step1", "step1/long"}
    assert allocated(files["step1"]) == [1]
    assert allocated(files["step1/long"]) == [1, 2, 3]
    assert window(files["step1/long"]) == (1, 4, True, "long", 1)
    assert [step for step, _ in files["step1/long"]["pytracer"]["devices"][0]["steps"]] == [1, 2, 3]


def test_a_phase_that_is_cut_short(tmp_path: Path) -> None:
    # GIVEN a program that ends within a phase
    program = """
import sys
import torch
import pytracer
tracer = pytracer.Tracer("out", device="cpu", steps=[1, 2], discrete=True).start()
phase = pytracer.annotate("phase")
phase.__enter__()
torch.empty(100, dtype=torch.uint8)
tracer.step()
torch.empty(200, dtype=torch.uint8)
"""
    done = run(program, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    # THEN its file has the events so far, and is marked as incomplete
    files = read(tmp_path / "out")
    assert {*files} == {"step1", "step1/phase", "step2"}
    assert allocated(files["step1/phase"]) == [100, 200]
    assert window(files["step1/phase"]) == (1, 2, False, "phase", 1)
    assert window(files["step2"]) == (2, 2, False, None, None)


def test_a_fork_within_a_phase(tmp_path: Path) -> None:
    program = """
import os
import torch
import pytracer
with pytracer.Tracer("out", device="cpu", steps=[1], discrete=True) as tracer:
    with pytracer.annotate("phase"):
        torch.empty(100, dtype=torch.uint8)
        child = os.fork()
    if child == 0:
        with pytracer.annotate("childs"):
            torch.empty(200, dtype=torch.uint8)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    tracer.step()
"""
    done = run(program, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    files = read(tmp_path / "out")
    assert {*files} == {"step1", "step1/phase"}


def test_threads_that_end_within_a_phase_record_no_longer(tmp_path: Path) -> None:
    # GIVEN threads that end without leaving their phase
    with Tracer(tmp_path, device="cpu", steps=[1], discrete=True) as tracer:
        threads = [threading.Thread(target=annotate("lost").__enter__) for _ in range(5)]
        for thread in threads:
            thread.start()
            thread.join()
        # Python's threads end a little later than join() returns.
        while any(Path(f"/proc/self/task/{thread.native_id}").exists() for thread in threads):
            time.sleep(0.01)
        tracer.step()
        # WHEN the tracer waits, THEN nothing is recorded for these threads
        before = tracer.stats()["devices"][0]["ring_bytes"]
        for _ in range(1000):
            torch.empty(100, dtype=BYTE)
        assert tracer.stats()["devices"][0]["ring_bytes"] == before
    assert {*read(tmp_path)} == {"step1"}
