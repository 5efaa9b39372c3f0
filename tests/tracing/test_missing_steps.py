"""Is it logged, and when, that the selected steps do not come?"""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from step_files import job, names, only

from pytracer import Tracer, log
from pytracer.tracing import step_sources, verl
from pytracer.tracing.step_windows import CyclicSchedule

pytestmark = pytest.mark.usefixtures("empty_log", "no_collector")


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
        "no step was reported, so the file of step1 has everything that was recorded"
    )


def test_steps_that_never_come_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Tracer(tmp_path, device="cpu", steps=[9]) as tracer:
        job(tracer, 3)
    assert "none of them was reached before the recording ended in step 4" in caplog.text


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
