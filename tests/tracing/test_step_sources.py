"""Whose steps count: the program's, an optimizer's, a framework's, or nobody's?"""

import sys
import threading
from pathlib import Path

import pytest
import torch
from processes import run
from step_files import allocated, job, load, names, only, optimizer

from pytracer import HookError, Tracer, annotate, log
from pytracer.backends.hook_attach import HOOKS
from pytracer.torch_recorder.sessions import RecordArguments, TorchSession
from pytracer.tracing import phases, verl

pytestmark = pytest.mark.usefixtures("empty_log", "no_collector")


@pytest.mark.parametrize("own_first", [True, False])
def test_steps_that_are_counted_twice_are_reported_once(
    caplog: pytest.LogCaptureFixture, own_first: bool
) -> None:
    # GIVEN a program that calls step() and whose optimizer steps too
    stepped = optimizer()
    with Tracer(device="cpu", step_from="optimizer") as tracer:
        for _ in range(3):
            if own_first:
                tracer.step()
            stepped.step()
            if not own_first:
                tracer.step()
        assert tracer.current_step == 7
    # THEN that is logged once
    assert caplog.text.count("steps are counted twice") == 1
    # AND no message is logged if the optimizer does not step, or after the recording
    log._logged.clear()
    caplog.clear()
    for _ in range(2):
        with Tracer(device="cpu", step_from="optimizer:Adam") as tracer:
            job(tracer, 2)
        with Tracer(device="cpu", step_from="optimizer") as tracer:
            stepped.step()
        tracer.step()
    assert "twice" not in caplog.text


def test_the_steps_of_the_program_replace_those_of_optimizers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # GIVEN a loop with several optimizer steps in each step of the program, without an option
    stepped = optimizer()
    with Tracer(device="cpu") as tracer:
        numbers = []
        for step in range(1, 4):
            for part in range(3):
                torch.empty(1000 * step + part, dtype=torch.uint8)
                stepped.step()
                numbers.append(tracer.current_step)
            tracer.step()
            numbers.append(tracer.current_step)
        events = tracer.events()
    # THEN the steps of the optimizer count until the program reports one, and are then forgotten
    assert numbers == [2, 3, 4, 2, *[2] * 3, 3, *[3] * 3, 4]
    sizes = [1000 * step + part for step in range(1, 4) for part in range(3)]
    step_of = dict(zip(*(events[name].tolist() for name in ("size_bytes", "step")), strict=True))
    found = {size: step_of[size] for size in sizes}
    assert found == {size: size // 1000 for size in sizes}
    assert caplog.messages == []


def test_the_steps_of_verl_replace_those_of_optimizers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a tracer that begins before verl is imported
    stepped = optimizer()
    with Tracer(tmp_path, device="cpu", steps=[1], step_from="framework") as tracer:
        torch.empty(100)
        # WHEN it is, and its optimizers step
        monkeypatch.setitem(sys.modules, verl.PROFILE, sys)
        stepped.step()
        # THEN these are no steps
        assert tracer.current_step == 1
        # AND the first step is the one that verl reports
        verl._report(1)
        torch.empty(1000)
        verl._report(0)
        assert tracer.current_step == 0
        torch.empty(2000)
    snapshot = only(tmp_path / "step1")
    assert snapshot["pytracer"]["step_from"] == "framework"
    assert [size for size in allocated(snapshot) if size in (400, 4000, 8000)] == [4000]
    assert caplog.messages == []


def test_steps_of_many_threads(tmp_path: Path) -> None:
    # GIVEN threads that end steps at the same time
    with Tracer(tmp_path, device="cpu", steps=range(1, 201), step_from="optimizer") as tracer:
        threads = [
            threading.Thread(target=lambda: [tracer.step() for _ in range(50)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # THEN each is counted and has its file
        assert tracer.current_step == 201
    assert len(names(tmp_path)) == len({*names(tmp_path)}) == 200
    assert tracer.stats()["failures"] == 0


@pytest.mark.slow
def test_a_forked_child_does_not_step(tmp_path: Path) -> None:
    # GIVEN a tracer, and a forked child in which the optimizer steps too
    program = """
import os
import torch
import pytracer
optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
with pytracer.Tracer("x.pickle", device="cpu", steps=[1, 2], step_from="optimizer") as tracer:
    optimizer.step()
    torch.empty(1001)
    if os.fork() == 0:
        tracer.step()
        optimizer.step()
        assert tracer.current_step == 2
        os._exit(0)
    assert os.wait()[1] == 0
    optimizer.step()
    assert tracer.current_step == 3
"""
    done = run(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path) == ["x.step1.pickle", "x.step2.pickle"]
    assert 4004 in allocated(load(tmp_path / "x.step2.pickle"))


def test_steps_are_counted_where_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTRACER", "0")
    with Tracer(tmp_path, device="cpu", steps=[1, 2]) as tracer:
        job(tracer, 5)
        assert tracer.current_step == 6
    assert (names(tmp_path), tracer.stats()["recording"]) == ([], False)


def without_hooks(_backend: str) -> None:
    raise HookError("no compiler")


@pytest.mark.parametrize("step_from", [None, "framework", "optimizer"])
def test_a_tracer_that_finds_nothing_to_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_from: str | None
) -> None:
    # GIVEN a machine on which no hook can be built
    monkeypatch.setattr(HOOKS, "attach", without_hooks)
    stepped = optimizer()
    before = set(verl.listeners)  # tracers of other tests that have not ended
    tracer = Tracer(tmp_path, device="cpu", steps=[1, 2], discrete=True, step_from=step_from)
    # WHEN it is started twice
    with tracer, tracer:
        begun = tracer.current_step
        # THEN each step is counted once, and nothing is written
        with annotate("phase"):
            torch.empty(10)
        stepped.step()
        verl._report(7)
        tracer.step()
        expected = {None: [1, 2], "framework": [1, 8], "optimizer": [1, 3]}[step_from]
        assert [begun, tracer.current_step] == expected
    assert (names(tmp_path), tracer.stats()["failures"]) == ([], 0)
    assert (phases.listeners, verl.listeners) == (set(), before)


def test_a_stand_in_session_has_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN steps in the environment
    monkeypatch.setenv("PYTRACER_STEPS", "5")
    monkeypatch.setenv("PYTRACER_STEP_FROM", "optimizer")
    # WHEN a program records with torch's functions
    session = TorchSession("cpu", "user")
    assert session.begin(RecordArguments("all", "all", "python", 1000), {}) is None
    kept = torch.empty(10)
    optimizer().step()
    # THEN the session has all events
    assert kept.nbytes in session.events()["size_bytes"]
    assert session.current_step == 1
    session.stop()
