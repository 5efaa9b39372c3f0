"""Which optimizers' steps are counted, also without a change to the code?"""

import gc
from pathlib import Path

import pytest
import torch
from processes import installed, run
from step_files import BYTE, allocated, names, only, optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from pytracer import ConfigError, PytracerError, Tracer

pytestmark = pytest.mark.usefixtures("empty_log", "no_collector")


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
    assert first == "only the first AdamW's steps count, not those of another SGD"
    # AND a message says that the program counts its steps twice
    assert second.startswith("steps are counted twice: the program calls tracer.step(), ")
    assert "each step of the optimizer AdamW" in second
    # AND after the recording no optimizer is counted
    actor.step()
    assert tracer.current_step == 5


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("AAA", [2, 3, 4]),
        ("ABABAB", [2, 2, 3, 3, 4, 4]),  # an actor and a critic
        ("AABBBCCC", [2, 3, 3, 4, 5, 5, 6, 7]),  # trials whose optimizers are kept
        ("ABBABB", [2, 2, 3, 3, 4, 5]),  # B steps more often: it counts
        ("ABCDABCD", [2, 2, 2, 2, 3, 3, 3, 3]),  # one for each layer
    ],
)
def test_another_optimizer_that_steps_twice_in_between(steps: str, expected: list[int]) -> None:
    kinds = {name: optimizer() for name in steps}
    with Tracer(device="cpu", step_from="framework") as tracer:
        counted = []
        for name in steps:
            kinds[name].step()
            counted.append(tracer.current_step)
    assert counted == expected


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


@pytest.mark.slow
def test_steps_of_pytracer_run(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    command = """
import sys
from pytracer.commands.main import main
main(["run", "-o", "x.pickle", "--schedule", "wait=1,active=2", "--step-from", "optimizer:SGD",
      "--discrete", "fwd,bwd", "training.py"])
"""
    (tmp_path / "training.py").write_text(LOOP)
    env = installed(tmp_path_factory.mktemp("installed"))
    done = run(command, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "x.steps2-3.pickle" in names(tmp_path)
