"""Which events are in the file of a step, and when is it written?"""

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run
from step_files import BYTE, allocated, job, load, names, only

from pytracer import Tracer
from pytracer.tracing.step_windows import CyclicSchedule

pytestmark = pytest.mark.usefixtures("empty_log", "no_collector")


# --- windows --------------------------------------------------------------------------------------


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
    [({}, {"", "0"}), ({"ranks": [1]}, {"", "1"}), ({"all_ranks": True}, {"", "0", "1"})],
)
def test_ranks_that_write_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: set[str]
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
