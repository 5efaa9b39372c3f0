"""Do the steps and roles of verl reach the files?"""

import os
import pickle
import sys
from pathlib import Path

import pytest
from processes import environment, installed, run
from step_files import allocated, names, only

from pytracer import Tracer
from pytracer.log import harmless
from pytracer.tracing import verl

pytestmark = pytest.mark.usefixtures("empty_log", "no_collector")


PROFILE = '''
"""What counts for us of verl 0.9.1's module of this name."""
import functools

class DistProfiler:
    def __init__(self, fails=False):
        self.fails = fails

    def start(self, **kwargs):
        if self.fails:
            raise KeyError("start")
        return "started"

    def stop(self, run_command=True):
        if self.fails:
            raise KeyError("stop")
        return f"stopped {run_command}"

    @classmethod
    def annotate(cls, message=None, color=None, domain=None, category=None, **kwargs_outer):
        def decorator(func):
            @functools.wraps(func)
            def wrapper(self_instance, *args, **kwargs_inner):
                return func(self_instance, *args, **kwargs_inner)

            return wrapper

        return decorator
'''


WORKER = """
import torch
from verl.utils.profiler.profile import DistProfiler

class Quiet(DistProfiler):
    def start(self, **kwargs):
        return super().start(**kwargs)

class Worker:
    @DistProfiler.annotate(color="red", role="actor_update", scheduled=True)
    def update(self, size):
        return torch.empty(size, dtype=torch.uint8).nbytes

    @DistProfiler.annotate("message")
    def other(self):
        return torch.empty(7, dtype=torch.uint8).nbytes

actor, ref, failing = DistProfiler(), Quiet(), DistProfiler(fails=True)
worker = Worker()
for step in (1, 2, 5):
    profilers = [actor, ref] if step != 5 else [actor, failing]
    for profiler in profilers:
        try:
            assert profiler.start(role="train", profile_step=step) == "started"
        except KeyError as error:
            assert profiler is failing and error.args == ("start",)
        assert worker.update(1000 + step) == 1000 + step
    for profiler in profilers:
        assert worker.update(2000 + step) == 2000 + step
        try:
            assert profiler.stop(run_command=False) == "stopped False"
        except KeyError as error:
            assert profiler is failing and error.args == ("stop",)
    assert worker.update(3000 + step) == 3000 + step
    assert worker.other() == 7
"""


@pytest.fixture
def verl_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "packages" / "verl" / "utils" / "profiler"
    folder.mkdir(parents=True)
    (folder / "profile.py").write_text(PROFILE)
    return tmp_path / "packages"


def test_verl_without_a_profiled_step(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, verl_folder: Path
) -> None:
    # GIVEN a process that imports torch, and only then verl, which profiles nothing
    env = installed(tmp_path_factory.mktemp("installed"), PYTRACER="1", PYTRACER_DEVICE="cpu")
    env["PYTHONPATH"] += os.pathsep + str(verl_folder)
    program = """
import torch
early = torch.empty(1000)
from verl.utils.profiler.profile import DistProfiler
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight])
weight.sum().backward()
optimizer.step()
"""
    # WHEN it trains
    done = run(program, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    # THEN neither its optimizer's steps nor the one before the import are steps
    (path,) = tmp_path.glob("outputs/profile/exit/*.pickle")
    about = pickle.loads(path.read_bytes())["pytracer"]
    assert (about["step_from"], about["current_step"]) == ("framework", 0)
    assert [step for device in about["devices"] for step in device["steps"] if step[0]] == []


def test_verls_steps_and_roles(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, verl_folder: Path
) -> None:
    # GIVEN a worker of verl in a traced process, with several profilers without a tool
    env = installed(
        tmp_path_factory.mktemp("installed"),
        PYTRACER="1",
        PYTRACER_OUTPUT="out",
        PYTRACER_STEPS="1,5",
        PYTRACER_DISCRETE="1",
    )
    env["PYTHONPATH"] += os.pathsep + str(verl_folder)
    # WHEN it has run
    done = run(WORKER, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    # THEN a step lasts from its first profiler's start to its last profiler's end
    out = tmp_path / "out"
    roles = [f"/actor_update{number}" for number in ("", "_2", "_3", "_4")]
    assert names(out) == sorted(
        f"step{step}{role}/P.pickle" for step in (1, 5) for role in ("", *roles)
    )
    for step in (1, 5):
        snapshot = only(out / f"step{step}")
        assert allocated(snapshot) == [1000 + step] * 2 + [2000 + step] * 2
        assert snapshot["pytracer"]["step_from"] == "framework"
        assert snapshot["pytracer"]["current_step"] == step
        assert {e["user_metadata"] for e in snapshot["device_traces"][0]} == {"actor_update"}


def test_verls_steps_reported_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN profilers that get no number, or an unusual one, or no call at the end
    class Profiler:
        pass

    first, second = Profiler(), Profiler()
    monkeypatch.setattr(verl, "_step", 0)
    monkeypatch.setitem(sys.modules, verl.PROFILE, sys)
    before = set(verl.listeners)  # tracers of other tests that have not ended
    with Tracer(device="cpu", step_from="framework") as tracer:
        counted = [tracer.current_step]

        def begin(profiler: Profiler, number: object) -> None:
            with harmless(*verl._MISSED):
                verl._begin(profiler, number)
            counted.append(tracer.current_step)

        def end(profiler: Profiler) -> None:
            verl._end(profiler)
            counted.append(tracer.current_step)

        begin(first, None)  # the next number
        end(first)
        begin(first, None)
        begin(second, None)  # in the same step
        end(first)
        end(second)
        end(second)
        assert counted == [0, 1, 0, 2, 2, 2, 0, 0]
        begin(first, 7)
        begin(second, 8)  # the seventh step was not ended
        end(second)
        end(first)
        begin(first, "x")
        end(first)
        begin(first, 9)
        tracer.step()  # the next number
        counted.append(tracer.current_step)
        end(first)
        assert counted[8:] == [7, 8, 0, 0, 0, 0, 9, 10, 0]
    assert verl.listeners == before


def test_verl_before_the_tracer(tmp_path: Path, verl_folder: Path) -> None:
    # GIVEN a program that imports verl, and starts its tracer later
    program = """
from verl.utils.profiler.profile import DistProfiler
import pytracer
import torch
start = DistProfiler.start
for _ in range(2):
    with pytracer.Tracer("out", device="cpu", steps=[3], step_from="framework") as tracer:
        wrapped = DistProfiler.start
        assert wrapped is not start and wrapped.__wrapped__ is start
        profiler = DistProfiler()
        profiler.start(global_step=3)
        assert tracer.current_step == 3
        torch.empty(1001)
        profiler.stop()
"""
    env = environment()
    env["PYTHONPATH"] += os.pathsep + str(verl_folder)
    done = run(program, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert names(tmp_path / "out") == ["step3/P.pickle", "step3/P_2.pickle"]


def test_another_verl(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    # GIVEN a verl whose profiler lacks the method that pytracer patches
    class DistProfiler:
        def start(self) -> None: ...

    class Module:
        pass

    Module.DistProfiler = DistProfiler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, verl.PROFILE, Module)  # type: ignore[arg-type]
    # WHEN pytracer is to follow it, THEN that is logged, and nothing is changed
    verl.follow()
    (message,) = caplog.messages
    assert message.startswith(
        "verl's steps are not recorded: its DistProfiler is unknown: AttributeError("
    )
    assert not hasattr(DistProfiler.start, "_pytracer")
