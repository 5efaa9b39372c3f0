"""Tests of steps and windows: files of the selected steps, whoever reports the steps."""

import gc
import os
import pickle
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import viewers
from amount import amount
from processes import environment, installed, run
from torch.optim.optimizer import register_optimizer_step_post_hook

from pytracer import ConfigError, HookError, PytracerError, Tracer, annotate, log
from pytracer.backends.hook_attach import HOOKS
from pytracer.torch_recorder.sessions import RecordArguments, TorchSession
from pytracer.tracing import phases, step_sources, verl
from pytracer.tracing.step_windows import CyclicSchedule

Snapshot = dict[str, Any]

BYTE = torch.uint8

pytestmark = pytest.mark.usefixtures("no_collector")


@pytest.fixture(autouse=True)
def empty_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_logged", set())


def load(path: Path) -> Snapshot:
    snapshot: Snapshot = pickle.loads(path.read_bytes())
    viewers.check_snapshot(snapshot)
    return snapshot


def names(folder: Path) -> list[str]:
    """Return the names of all files, without the host, and with P for the process id."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*.pickle"))
    return sorted(re.sub(r"torch_memory_.*_pid\d+", "P", name) for name in found)


def only(folder: Path) -> Snapshot:
    (path,) = folder.glob("*.pickle")
    return load(path)


def allocated(snapshot: Snapshot) -> list[int]:
    return [event["size"] for event in snapshot["device_traces"][0] if event["action"] == "alloc"]


def timeless(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the events without times, which become more exact with more readings of the clock."""
    return [{**event, "time_us": None} for event in snapshot["device_traces"][0]]


def job(tracer: Tracer, steps: int) -> None:
    for step in range(1, steps + 1):
        torch.empty(step, dtype=BYTE)
        tracer.step()


# --- windows --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_windows_never_mix(tmp_path: Path) -> None:
    # GIVEN threads that allocate all the time, and a tracer of the entire run
    count, entries = amount(20, 60), 1_000_000
    stop = threading.Event()

    def churn(seed: int) -> None:
        pool: list[torch.Tensor] = []
        for number in range(1 << 40):
            if stop.is_set():
                return
            if number > 50_000:
                time.sleep(0.01)  # on a slow machine the ring would overflow otherwise
            pool.append(torch.empty(64 * (number % 50) + seed, dtype=BYTE))
            if len(pool) > 20:
                del pool[number % 20]

    run_tracer = Tracer(device="cpu", trace_alloc_max_entries=entries)
    windows = Tracer(
        tmp_path,
        device="cpu",
        steps=range(1, count + 1),
        trace_alloc_max_entries=entries,
    )
    threads = [threading.Thread(target=churn, args=(seed,)) for seed in (1, 2, 3)]
    with run_tracer, windows:
        for thread in threads:
            thread.start()
        # WHEN steps end during this time
        for step in range(1, count + 1):
            assert windows.current_step == step
            torch.empty(64 * step, dtype=BYTE)
            windows.step()
        stop.set()
        for thread in threads:
            thread.join()
        everything = run_tracer.snapshot()
    # THEN each event is in exactly one window, in the right order
    parts = [only(tmp_path / f"step{step}") for step in range(1, count + 1)]
    events = [event for part in parts for event in timeless(part)]
    assert len(events) > 1000
    is_same = timeless(everything)[: len(events)] == events
    assert is_same  # without a message, because pytest would take minutes to compare the lists
    # AND each window has only its own step
    assert [part["pytracer"]["devices"][0]["steps"] for part in parts] == [
        [[step, 0]] for step in range(1, count + 1)
    ]


def early(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=BYTE)


def test_blocks_from_before_keep_their_stacks_and_waiting_has_no_events(tmp_path: Path) -> None:
    # GIVEN a tracer that waits for its third step
    with Tracer(tmp_path, device="cpu", steps=[3]) as tracer:
        kept = [early(1001)]
        dropped = [early(1002)]
        # WHEN blocks are allocated and freed in earlier steps
        (device,) = tracer.stats()["devices"]
        assert (device["recorded"], device["held"], device["live_blocks"]) == (0, 0, 2)
        tracer.step()
        dropped.clear()
        kept.append(early(1003))
        assert len(tracer.events()) == 0
        tracer.step()
        kept.append(early(1004))
        del kept[1]
        tracer.step()
        kept.append(early(1005))
        assert len(tracer.events()) == 0
    # THEN the file has only the events of the step
    assert names(tmp_path) == ["step3/P.pickle"]
    snapshot = only(tmp_path / "step3")
    freed = [e["size"] for e in snapshot["device_traces"][0] if e["action"] == "free_completed"]
    assert (allocated(snapshot), freed) == ([1004], [1003])
    # AND the blocks alive at its end, each with the stack of its allocation
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert sorted(block["size"] for block in blocks) == [1001, 1004]
    assert {block["frames"][0]["name"] for block in blocks} == {"early"}
    assert {block["frames"][1]["name"] for block in blocks} == {
        "test_blocks_from_before_keep_their_stacks_and_waiting_has_no_events"
    }


def test_the_metadata_of_a_window(tmp_path: Path) -> None:
    with Tracer(tmp_path, device="cpu", steps=[2, 4], memory_snapshot_num_steps=2) as tracer:
        # WHEN a file of a window of several steps is written, and one outside of windows
        job(tracer, 2)
        tracer.dump(tmp_path / "own")
        job(tracer, 2)
    # THEN the first names its steps and their first events; the other has the current step
    about = only(tmp_path / "steps2-4")["pytracer"]
    assert about["window"] == {
        "first": 2,
        "last": 4,
        "complete": True,
        "phase": None,
        "occurrence": None,
    }
    assert (about["current_step"], about["step_from"]) == (4, "step()")
    assert [step for step, _ in about["devices"][0]["steps"]] == [2, 3, 4]
    own = pickle.loads((tmp_path / "own").read_bytes())["pytracer"]
    assert (own["current_step"], own["window"]) == (3, None)


def test_events_carry_their_step(tmp_path: Path) -> None:
    # GIVEN a tracer that counts steps and selects none of them
    with Tracer(tmp_path, device="cpu") as tracer:
        job(tracer, 3)
    # THEN there is one file, at the end, in which each event has its step
    assert names(tmp_path) == ["exit/P.pickle"]
    events = tracer.events()
    assert events["step"].tolist() == [1, 1, 2, 2, 3, 3]
    assert events["size_bytes"].tolist() == [1, 1, 2, 2, 3, 3]
    assert tracer.current_step == 4


def test_no_step_has_a_file(tmp_path: Path) -> None:
    with Tracer(tmp_path, device="cpu", steps=[]) as tracer:
        job(tracer, 3)
    assert (names(tmp_path), len(tracer.events())) == ([], 6)


def test_a_schedule_from_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTRACER_SCHEDULE", "skip_first=1,wait=1,warmup=1,active=2,repeat=2")
    with Tracer(tmp_path, device="cpu") as tracer:
        job(tracer, 20)
    assert names(tmp_path) == ["steps4-5/P.pickle", "steps8-9/P.pickle"]
    assert allocated(only(tmp_path / "steps8-9")) == [8, 9]


def test_a_schedule_that_fails_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # GIVEN a user's schedule that fails from step 3 on
    torchs = CyclicSchedule(active=1)
    with Tracer(
        tmp_path, device="cpu", schedule=lambda step: torchs(step) if step < 2 else 1 / 0
    ) as tracer:
        # WHEN steps end, THEN the job continues, and the steps selected before have their files
        job(tracer, 4)
        assert tracer.current_step == 5
    assert names(tmp_path) == ["step1/P.pickle", "step2/P.pickle"]
    (message,) = caplog.messages
    assert message.startswith("the schedule failed for step 3, so no further step")


# --- ends of windows ------------------------------------------------------------------------------


def test_an_incomplete_window_is_written_at_the_end(tmp_path: Path) -> None:
    # GIVEN windows of two steps, WHEN an exception ends the job in the middle of a window
    def fail() -> None:
        steps = [1, 2, 5, 9]
        with Tracer(tmp_path, device="cpu", steps=steps, memory_snapshot_num_steps=2) as tracer:
            job(tracer, 6)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    # THEN the window has a file, which is marked as incomplete and named after its steps
    assert names(tmp_path) == ["steps1-2/P.pickle", "steps5-7/P.pickle"]
    snapshot = only(tmp_path / "steps5-7")
    assert allocated(snapshot) == [5, 6]
    window = snapshot["pytracer"]["window"]
    assert (window["first"], window["last"], window["complete"]) == (5, 7, False)
    assert only(tmp_path / "steps1-2")["pytracer"]["window"]["complete"]


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise KeyError", "stop()"])
def test_an_incomplete_window_at_exit(tmp_path: Path, end: str) -> None:
    program = f"""
import sys
import torch
import pytracer
tracer = pytracer.Tracer("x.pickle", device="cpu", steps=[2]).start()
stop = tracer.stop
tracer.step()
torch.empty(1001)
{end}
"""
    done = run(program, cwd=tmp_path)
    assert names(tmp_path) == ["x.step2.pickle"], done.stderr
    snapshot = load(tmp_path / "x.step2.pickle")
    assert allocated(snapshot) == [4004]
    assert snapshot["pytracer"]["window"]["complete"] is False


def test_a_window_cut_short_by_stop_is_written_once(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path, device="cpu", steps=[1])
    with tracer, tracer:
        torch.empty(10)
        tracer.stop()
        assert names(tmp_path) == []
    assert names(tmp_path) == ["step1/P.pickle"]


def test_a_window_without_events_is_not_written_at_the_end(tmp_path: Path) -> None:
    kept = []
    with Tracer(tmp_path, device="cpu", steps=[1, 2]) as tracer:
        kept.append(torch.empty(10))
        tracer.step()
    assert names(tmp_path) == ["step1/P.pickle"]


def test_a_restarted_tracer_counts_from_1_and_overwrites_nothing(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path, device="cpu", steps=[1, 2])
    for _ in range(2):
        tracer.start()
        assert tracer.current_step == 1
        job(tracer, 3)
        tracer.stop()
        # a stopped tracer does not count steps
        tracer.step()
        assert tracer.current_step == 4
    assert names(tmp_path) == [f"step{n}/P{again}.pickle" for n in (1, 2) for again in ("", "_2")]


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"", "0"}),
        ({"ranks": [1]}, {"", "1"}),
        ({"all_ranks": True}, {"", "0", "1"}),
    ],
)
def test_ranks_that_write_steps(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    expected: set[str],
) -> None:
    for rank in ("", "0", "1"):
        monkeypatch.setenv("RANK", rank)
        folder = tmp_path / f"of{rank}"
        with Tracer(folder, device="cpu", steps=[1, 2, 3], **options) as tracer:
            job(tracer, 2)
            # a rank that writes no file still records, for an out-of-memory or an on-demand
            # snapshot
            torch.empty(3, dtype=BYTE)
            assert tracer.events()["size_bytes"].tolist() == [3, 3]
            assert tracer.events()["step"].tolist() == [3, 3]
        assert len(names(folder)) == (3 if rank in expected else 0)


def test_names_next_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.pickle"
    with Tracer(path, device="cpu", steps=[1, 2, 4], memory_snapshot_num_steps=2) as tracer:
        job(tracer, 6)
    # The last window has the remaining steps
    assert names(tmp_path) == ["x.step4.pickle", "x.steps1-2.pickle"]


def test_a_file_that_cannot_be_written_does_not_fail_the_job(tmp_path: Path) -> None:
    # GIVEN a directory that is missing when the second step ends
    with Tracer(tmp_path / "out", device="cpu", steps=[1, 2, 3]) as tracer:
        job(tracer, 1)
        shutil.rmtree(tmp_path / "out")
        (tmp_path / "out").touch()
        # WHEN steps end, THEN the job continues, and the failure is counted
        job(tracer, 1)
        assert (tracer.current_step, tracer.stats()["failures"]) == (3, 1)
        # AND later windows are written
        (tmp_path / "out").unlink()
        job(tracer, 1)
    assert names(tmp_path) == ["out/step3/P.pickle"]


def test_an_output_that_writes_nothing() -> None:
    # GIVEN a program that reads its tracer's events
    with Tracer(device="cpu", steps=[1, 2, 4]) as tracer:
        # THEN each step has its own events
        for step in range(1, 5):
            torch.empty(step, dtype=BYTE)
            assert {*tracer.events()["size_bytes"]} == ({step} if step != 3 else set())
            tracer.step()


# --- sources of steps -----------------------------------------------------------------------------


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
        expected = {None: [1, 2], "framework": [0, 8], "optimizer": [1, 3]}[step_from]
        assert [begun, tracer.current_step] == expected
    assert (names(tmp_path), tracer.stats()["failures"]) == ([], 0)
    assert phases.listeners == verl.listeners == set()


@pytest.mark.parametrize(
    ("step_from", "remedy"),
    [
        (None, "call tracer.step() at the end of each step, or give step_from"),
        ("framework", "set PYTRACER_STEP_FROM=optimizer, or call tracer.step(). Under verl, "),
        ("optimizer:Adam", "optimizer Adam: none has stepped"),
    ],
)
def test_steps_that_are_never_reported_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, step_from: str | None, remedy: str
) -> None:
    # GIVEN selected steps, WHEN no step is reported, THEN that is logged at the end
    with Tracer(tmp_path, device="cpu", steps=[2], step_from=step_from):
        torch.empty(10)
    (message,) = caplog.messages
    assert message.startswith(
        f"no step was reported, so no snapshot of the selected steps was written: {remedy}"
    )
    assert names(tmp_path) == []


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


def test_stop_writes_as_a_with_statement_does(tmp_path: Path) -> None:
    path = tmp_path / "x.pickle"

    def stopped(**options: Any) -> list[str]:
        tracer = Tracer(**{"output": path, "device": "cpu", **options}).start()
        torch.empty(10)
        for _ in range(2):
            tracer.stop()
        found = names(tmp_path)
        for name in found:
            (tmp_path / name).unlink()
        return found

    # WHEN a tracer with an output stops, and once more, THEN there is one file
    assert stopped() == ["x.pickle"]
    assert stopped(steps=[1]) == ["x.step1.pickle"]
    # AND none if no file was due
    assert stopped(output=None) == stopped(steps=[]) == stopped(steps=[7]) == []


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


def test_a_window_that_lost_events_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"steps": [1, 2], "trace_alloc_max_entries": 10}
    with Tracer(tmp_path, device="cpu", **options) as tracer:  # type: ignore[arg-type]
        for _ in range(2):
            for _ in range(20):
                torch.empty(100, dtype=BYTE)
            tracer.step()
    assert caplog.text.count("has more events than trace_alloc_max_entries=10") == 1
    assert only(tmp_path / "step2")["pytracer"]["devices"][0]["overwritten"] == 30


def test_a_snapshot_between_windows_is_marked_as_not_recording(tmp_path: Path) -> None:
    with Tracer(tmp_path, device="cpu", steps=[2]) as tracer:
        assert tracer.stats()["waiting"]
        assert tracer.snapshot()["pytracer"]["waiting"]
        tracer.step()
        assert not tracer.stats()["waiting"]
        tracer.step()
    assert not only(tmp_path / "step2")["pytracer"]["waiting"]


def test_a_step_that_fails_does_not_fail_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a tracer without memory for a window
    def fail(*_: object) -> None:
        raise MemoryError(tracer.current_step)

    with Tracer(tmp_path, device="cpu", steps=[1, 2, 3, 4]) as tracer:
        monkeypatch.setattr(tracer._step_recording, "_end_window", fail)
        # WHEN its steps end, THEN the job continues, and the failure is counted and logged once
        tracer.step()
        tracer.step()
        assert (tracer.current_step, tracer.stats()["failures"]) == (3, 2)
        assert caplog.messages == ["step 2 is not recorded: MemoryError(2)"]
        # AND later windows are written
        monkeypatch.undo()
        job(tracer, 1)
    assert "step3/P.pickle" in names(tmp_path)


# --- verl -----------------------------------------------------------------------------------------

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
    with Tracer(device="cpu", step_from="framework") as tracer:
        counted = [tracer.current_step]

        def begin(profiler: Profiler, number: object) -> None:
            verl._safely(verl._begin, profiler, number)
            counted.append(tracer.current_step)

        def end(profiler: Profiler) -> None:
            verl._safely(verl._end, profiler)
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
    assert verl.listeners == set()


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
