"""Who reports the steps: the program, an optimizer, or nobody?"""

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import installed, run
from step_files import BYTE, allocated, job, load, names, only
from torch.optim.optimizer import register_optimizer_step_post_hook

from pytracer import ConfigError, HookError, PytracerError, Tracer, annotate, log
from pytracer.backends.hook_attach import HOOKS
from pytracer.torch_recorder.sessions import RecordArguments, TorchSession
from pytracer.tracing import phases, step_sources, verl
from pytracer.tracing.step_windows import CyclicSchedule

pytestmark = pytest.mark.usefixtures("empty_log", "no_collector")


def optimizer(kind: Callable[..., Any] = torch.optim.SGD) -> Any:
    weight = torch.ones(1, requires_grad=True)
    weight.grad = torch.ones(1)
    return kind([weight], lr=0.1)


def test_the_first_optimizer_that_steps_reports_the_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN two optimizers, as of an actor and a critic
    actor, critic = optimizer(torch.optim.AdamW), optimizer()
    with Tracer(tmp_path, device="cpu", steps=[2], step_from="optimizer") as tracer:
        # WHEN both step
        counted = []
        for _ in range(3):
            actor.step()
            torch.empty(1000 + tracer.current_step, dtype=BYTE)
            critic.step()
            counted.append(tracer.current_step)
        # THEN only the first is counted
        assert counted == [2, 3, 4]
        # AND step() is counted too
        tracer.step()
        assert tracer.current_step == 5
    # AND the log and the file name this optimizer
    assert 1002 in allocated(only(tmp_path / "step2"))
    assert only(tmp_path / "step2")["pytracer"]["step_from"] == "optimizer AdamW"
    first, second = caplog.messages
    assert first == "steps are those of the first AdamW; another SGD is not counted"
    # AND a message says that the program counts its steps twice
    assert second.startswith("steps are counted twice: the program calls tracer.step(), ")
    assert "each step of the optimizer AdamW" in second
    # AND after the recording no optimizer is counted
    actor.step()
    assert tracer.current_step == 5


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


def test_an_optimizer_by_the_name_of_its_class() -> None:
    actor, critic, second_critic = optimizer(torch.optim.AdamW), optimizer(), optimizer()
    with Tracer(device="cpu", step_from="optimizer:SGD") as tracer:
        actor.step()
        assert tracer.current_step == 1
        critic.step()
        second_critic.step()
        assert tracer.current_step == 2
        # WHEN the followed optimizer is freed, THEN the next one of the class is followed
        del critic
        gc.collect()
        second_critic.step()
        assert tracer.current_step == 3


def test_a_step_that_a_scaler_skips_is_not_counted() -> None:
    scaler = torch.amp.GradScaler("cpu")
    stepped = optimizer()
    (weight,) = stepped.param_groups[0]["params"]
    with Tracer(device="cpu", step_from="optimizer") as tracer:
        for gradient in (1.0, float("inf"), 1.0):
            scaler.scale(weight.sum())  # a scaler does this before its first step
            weight.grad = torch.full((1,), gradient)
            scaler.step(stepped)
            scaler.update()
        assert tracer.current_step == 3


def test_no_hook_is_left_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def count() -> int:
        handle = register_optimizer_step_post_hook(lambda *_: None)
        found = len(handle.hooks_dict_ref() or ())
        handle.remove()
        return found

    before = count()
    for _ in range(2):
        with Tracer(device="cpu", step_from="optimizer"):
            assert count() == before + 1
        assert count() == before
    # AND no hook is installed where pytracer is switched off
    monkeypatch.setenv("PYTRACER", "0")
    with Tracer(device="cpu", step_from="optimizer"):
        assert count() == before
    # AND no hook is left where a tracer cannot start
    monkeypatch.delenv("PYTRACER")
    tracer = Tracer(device="cpu", step_from="optimizer")
    monkeypatch.setattr(tracer._recording, "new_session", SessionWithoutRoom)
    with pytest.raises(ConfigError):
        tracer.start()
    assert count() == before


class SessionWithoutRoom:
    def begin_step(self, number: int) -> None: ...

    def start(self, history: bool) -> None:
        raise PytracerError


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


LOOP = """
import torch

def main():
    model = torch.nn.Linear(1000, 10)
    optimizer, other = torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters())
    for step in range(1, 5):
        kept = torch.empty(1000 + step, dtype=torch.uint8)
        model(torch.ones(1000)).sum().backward()
        optimizer.step()
        other.step()

main()
"""


def test_steps_are_those_of_the_first_optimizer_by_default(tmp_path: Path) -> None:
    # GIVEN a loop without a call of pytracer
    env = installed(tmp_path, PYTRACER="1", PYTRACER_OUTPUT="out", PYTRACER_DEVICE="cpu")
    # WHEN steps are selected, THEN nothing else is needed
    done = run(LOOP, cwd=tmp_path, env={**env, "PYTRACER_STEPS": "2,3"})
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["step2", "step3"]
    snapshot = only(tmp_path / "out" / "step3")
    assert 1003 in allocated(snapshot)
    assert 1002 not in allocated(snapshot)
    assert snapshot["pytracer"]["step_from"] == "optimizer AdamW"


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


@pytest.mark.parametrize(
    ("step_from", "is_verl", "remedy"),
    [
        (None, False, "call tracer.step() at the end of each step, or give step_from"),
        ("framework", True, "set PYTRACER_STEP_FROM=optimizer, or call tracer.step(). Under verl"),
        ("framework", False, "optimizer: none has stepped. Call tracer.step()"),
        ("optimizer:Adam", True, "optimizer Adam: none has stepped"),
    ],
)
def test_steps_that_are_never_reported_are_logged(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    step_from: str | None,
    is_verl: bool,
    remedy: str,
) -> None:
    if is_verl:
        monkeypatch.setitem(sys.modules, verl.PROFILE, sys)
    # GIVEN selected steps, WHEN no step is reported, THEN that is logged at the end
    with Tracer(tmp_path, device="cpu", steps=[2], step_from=step_from):
        torch.empty(10)
    (message,) = caplog.messages
    assert message.startswith(
        f"no step was reported, so no snapshot of the selected steps was written: {remedy}"
    )
    assert names(tmp_path) == []


def test_a_file_without_a_reported_step_is_not_denied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a program without a training, as of inference, whose first step is selected
    with Tracer(tmp_path, device="cpu", steps=[1], step_from="framework"):
        torch.empty(10)
    # THEN the log says what its file has
    assert only(tmp_path / "step1")["pytracer"]["window"]["complete"] is False
    (message,) = caplog.messages
    assert message.startswith(
        "no step was reported, so the file of step1 has all that was recorded"
    )


def timers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pytracer steps"]


def end_of_timers() -> None:
    while found := timers():
        found[0].join(60)
        assert not found[0].is_alive()


def test_steps_that_do_not_come_are_reported_early(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a program that does not report its steps
    monkeypatch.setattr(step_sources, "NO_STEP_SECONDS", 0.02)
    options: list[dict[str, Any]] = [
        {"steps": [2]},
        {"schedule": CyclicSchedule(1)},
        {"steps": [2], "step_from": "framework"},
        {"steps": [2], "step_from": "optimizer:Adam"},
    ]
    for given in options:
        log._logged.clear()
        caplog.clear()
        with Tracer(tmp_path, device="cpu", **given):
            # WHEN it uses the device, THEN that is logged while it runs, and the timer ends
            kept = torch.empty(10)
            end_of_timers()
            (message,) = caplog.messages
        assert message.startswith("no step has been reported for 0.02 s, so no snapshot")
        del kept


def test_who_is_not_warned_of_steps_that_do_not_come(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN tracers that select no steps, or write none, or are under verl, which reports few steps
    monkeypatch.setattr(step_sources, "NO_STEP_SECONDS", 0.02)
    monkeypatch.setitem(sys.modules, verl.PROFILE, sys)
    options: list[dict[str, Any]] = [
        {"output": tmp_path},
        {"output": tmp_path, "steps": []},
        {"steps": [1]},
        {"output": tmp_path, "steps": [1], "step_from": "framework"},
    ]
    for given in options:
        with Tracer(device="cpu", **given) as tracer:
            kept = torch.empty(10)
            end_of_timers()
            # THEN nothing is logged
            assert caplog.messages == []
            assert tracer.stats()["devices"][0]["live_blocks"] == 1
            del kept
        caplog.clear()
    # GIVEN a program whose steps come in time, or that ends
    monkeypatch.setattr(step_sources, "NO_STEP_SECONDS", 1e6)
    with Tracer(tmp_path, device="cpu", steps=[1, 9]) as tracer:
        assert len(timers()) == 1
        # THEN the timer ends with the first step, or with the recording
        tracer.step()
        end_of_timers()
    with Tracer(tmp_path, device="cpu", steps=[1]):
        assert len(timers()) == 1
    end_of_timers()
    assert "no step has been reported" not in caplog.text


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


# --- no change to the code ------------------------------------------------------------------------

TRAINING = """
import torch
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(1, 5):
    torch.empty(1000 + step, dtype=torch.uint8)
    weight.grad = torch.ones(1)
    optimizer.step()
"""


@pytest.mark.slow
def test_steps_of_the_environment(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    # GIVEN a program without calls for steps
    env = installed(
        tmp_path_factory.mktemp("installed"),
        PYTRACER="1",
        PYTRACER_STEPS="1,3",
        PYTRACER_STEP_FROM="optimizer",
    )
    # WHEN it is traced, THEN the steps of its optimizer are counted
    done = run(TRAINING, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "outputs" / "profile"
    assert names(folder) == ["step1/P.pickle", "step3/P.pickle"]
    for step in (1, 3):
        assert 1000 + step in allocated(only(folder / f"step{step}"))
        assert not {1001, 1002, 1003, 1004} - {1000 + step} & {
            *allocated(only(folder / f"step{step}"))
        }


@pytest.mark.slow
def test_steps_of_pytracer_run(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    command = """
import sys
from pytracer.commands.main import main
main(["run", "-o", "x.pickle", "--schedule", "wait=1,active=2", "--step-from", "optimizer:SGD",
      "--discrete", "fwd,bwd", "training.py"])
"""
    (tmp_path / "training.py").write_text(TRAINING)
    env = installed(tmp_path_factory.mktemp("installed"))
    done = run(command, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path) == ["x.steps2-3.pickle"]


def test_steps_that_never_come_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Tracer(tmp_path, device="cpu", steps=[9]) as tracer:
        job(tracer, 3)
    assert "none of them came, and the recording ended in step 4" in caplog.text
