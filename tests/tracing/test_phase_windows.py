"""Tests of discrete windows: a phase has its own file, next to the file of its step."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from contexts import with_context
from files_left import load
from processes import run

from pytracer import Tracer, _core, annotate
from pytracer.tracing import phase_windows, phases

Snapshot = dict[str, Any]
Events = list[dict[str, Any]]

BYTE = torch.uint8

pytestmark = pytest.mark.usefixtures("no_collector")


def read(folder: Path) -> dict[str, Snapshot]:
    """Return all files by their folders; each folder has one file."""
    paths = [*folder.rglob("*.pickle")]
    found = {path.parent.relative_to(folder).as_posix(): load(path) for path in paths}
    assert len(found) == len(paths)
    return found


def trace(snapshot: Snapshot) -> Events:
    (events,) = snapshot["device_traces"]
    return list(events)


def of_phase(events: Events, *names: str) -> Events:
    return [event for event in events if event["user_metadata"] in names]


def allocated(snapshot: Snapshot) -> list[int]:
    return [event["size"] for event in trace(snapshot) if event["action"] == "alloc"]


def window(snapshot: Snapshot) -> tuple[int, int, bool, str | None, int | None]:
    keys = ("first", "last", "complete", "phase", "occurrence")
    first, last, complete, phase, occurrence = (snapshot["pytracer"]["window"][key] for key in keys)
    return first, last, complete, phase, occurrence


def roll_out(size: int) -> torch.Tensor:
    torch.empty(size + 1, dtype=BYTE)
    return torch.empty(size, dtype=BYTE)


@annotate("actor_update")
def update(batch: list[torch.Tensor]) -> None:
    torch.empty(600, dtype=BYTE)
    with annotate("forward"):
        torch.empty(601, dtype=BYTE)
        batch.clear()
    torch.empty(602, dtype=BYTE)


def step_of_a_job(step: int) -> None:
    batch = []
    with annotate("rollout"):
        batch.append(roll_out(1000 * step))
    torch.empty(7, dtype=BYTE)
    update(batch)
    with annotate("rollout"):
        roll_out(1500 * step)


# --- a file for each occurrence ------------------------------------------------------------------


@pytest.mark.parametrize("selected", [True, ["rollout", "actor_update"]])
def test_each_occurrence_of_a_phase_has_a_file(tmp_path: Path, selected: bool | list[str]) -> None:
    # GIVEN a job with phases; one occurs twice in a step, and one is nested in another
    with (
        Tracer(device="cpu") as run_tracer,
        Tracer(tmp_path, device="cpu", steps=[2, 3], discrete=selected) as tracer,
    ):
        for step in (1, 2, 3, 4):
            step_of_a_job(step)
            tracer.step()
    # WHEN the job has ended
    files = read(tmp_path)
    # THEN each occurrence in each selected step has a file, next to the step's own file
    parts = ("", "/rollout", "/actor_update", "/rollout_2")
    assert {*files} == {f"step{step}{part}" for step in (2, 3) for part in parts}
    for step in (2, 3):
        own, first, update, second = (files[f"step{step}{part}"] for part in parts)
        # AND its events are those of the step's file in this phase and in nested phases, frame for
        # frame
        events = trace(own)
        assert trace(first) + trace(second) == of_phase(events, "rollout")
        assert trace(update) == of_phase(events, "actor_update", "forward")
        assert allocated(first) == [1000 * step + 1, 1000 * step]
        assert allocated(update) == [600, 601, 602]
        assert all(event["frames"] for event in events)
        # AND the events equal those of a tracer of the entire run
        everything = trace(run_tracer.snapshot())
        begin = everything.index(events[0])
        assert everything[begin : begin + len(events)] == events
        # AND the file has the metadata of its window
        assert window(own) == (step, step, True, None, None)
        assert window(first) == (step, step, True, "rollout", 1)
        assert window(second) == (step, step, True, "rollout", 2)
        assert update["pytracer"]["devices"][0]["steps"] == [[step, 0]]
    # AND a file has the blocks alive at the end of its phase
    assert {s["total_size"] for s in files["step2/rollout"]["segments"]} >= {2000}
    assert not {2000, 2001} & {s["total_size"] for s in files["step2/actor_update"]["segments"]}
    assert phases.listeners == set()
    assert tracer.stats()["failures"] == 0


def test_named_phases_within_others(tmp_path: Path) -> None:
    # GIVEN a selected phase, nested in others and in itself
    with Tracer(tmp_path, device="cpu", steps=[1], discrete=["inner"]) as tracer:
        for outer in ("a", "b"):
            with annotate(outer), annotate("inner"):
                torch.empty(100, dtype=BYTE)
                with annotate("inner"):
                    torch.empty(101, dtype=BYTE)
        tracer.step()
    # THEN each occurrence has a file, and the second has a number in its name
    files = read(tmp_path)
    assert {*files} == {"step1", "step1/inner", "step1/inner_2"}
    assert window(files["step1/inner"])[3:] == ("a/inner", 1)
    assert window(files["step1/inner_2"])[3:] == ("b/inner", 2)
    assert allocated(files["step1/inner"]) == allocated(files["step1/inner_2"]) == [100, 101]


def test_two_roles_in_two_threads(tmp_path: Path) -> None:
    # GIVEN two roles that run in two threads at the same time
    rounds, sizes = 200, {"actor": 64, "critic": 4096}
    begin = threading.Barrier(2)

    def role(name: str) -> Callable[[], None]:
        def body() -> None:
            begin.wait()
            with annotate(name):
                kept = [torch.empty(sizes[name], dtype=BYTE) for _ in range(rounds)]
                with annotate("forward"):
                    kept.clear()

        return body

    with Tracer(tmp_path, device="cpu", steps=[1], discrete=True) as tracer:
        threads = [threading.Thread(target=role(name)) for name in sizes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tracer.step()
    # THEN each file has all events of its role, and no others
    files = read(tmp_path)
    own = trace(files["step1"])
    for name, size in sizes.items():
        events = trace(files[f"step1/{name}"])
        assert {event["size"] for event in events} == {size}
        assert [event for event in own if event["size"] == size] == events
        assert len(allocated(files[f"step1/{name}"])) == rounds


def test_a_file_of_one_name(tmp_path: Path) -> None:
    with Tracer(tmp_path / "x.pickle", device="cpu", steps=[2], discrete=True) as tracer:
        for step in (1, 2):
            step_of_a_job(step)
            tracer.step()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "x.step2.actor_update.pickle",
        "x.step2.pickle",
        "x.step2.rollout.pickle",
        "x.step2.rollout_2.pickle",
    ]


# --- begins and ends of phases --------------------------------------------------------------------


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


def test_a_phase_from_before_the_step_has_no_file(tmp_path: Path) -> None:
    with Tracer(tmp_path, device="cpu", steps=[2], discrete=True) as tracer, annotate("early"):
        tracer.step()
        torch.empty(100, dtype=BYTE)
        tracer.step()
    assert {*read(tmp_path)} == {"step2"}


def test_phases_left_in_another_order_and_on_another_thread(tmp_path: Path) -> None:
    first, second = annotate("first"), annotate("second")
    with Tracer(tmp_path, device="cpu", steps=[1], discrete=["first", "second"]) as tracer:
        first.__enter__()
        torch.empty(100, dtype=BYTE)
        second.__enter__()
        torch.empty(200, dtype=BYTE)
        thread = threading.Thread(target=first.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
        torch.empty(300, dtype=BYTE)
        second.__exit__(None, None, None)
        tracer.step()
    files = read(tmp_path)
    assert {*files} == {"step1", "step1/first", "step1/second"}
    assert allocated(files["step1/first"]) == [100, 200]
    assert allocated(files["step1/second"])[0] == 200


def test_functions_whose_bodies_alternate_have_no_files(tmp_path: Path) -> None:
    # GIVEN coroutines and generators of one phase, several of them active on one thread
    @annotate("turns")
    async def work() -> None:
        for _ in range(3):
            torch.empty(100, dtype=BYTE)
            await asyncio.sleep(0)

    @annotate("turns")
    def generate() -> Generator[int, None, None]:
        for number in range(3):
            torch.empty(100, dtype=BYTE)
            yield number

    async def main() -> None:
        await asyncio.gather(work(), work())
        with annotate("all"):
            await asyncio.gather(work(), work())

    # WHEN they run, THEN their events have the phase, and a `with` statement around them has the
    # file
    with Tracer(tmp_path, device="cpu", steps=[1], discrete=["turns", "all"]) as tracer:
        asyncio.run(main())
        assert list(zip(generate(), generate(), strict=True)) == [(0, 0), (1, 1), (2, 2)]
        tracer.step()
    files = read(tmp_path)
    assert {*files} == {"step1", "step1/all"}
    assert len(of_phase(trace(files["step1"]), "turns")) == 5 * 18
    assert len(of_phase(trace(files["step1/all"]), "turns")) == 5 * 6


# --- sessions -------------------------------------------------------------------------------------


def run_job(steps: int, **tracers: Callable[[int], None]) -> None:
    for step in range(1, steps + 1):
        step_of_a_job(step)
        for end in tracers.values():
            end(step)


def comparable(events: Events) -> Events:
    return [{**event, "addr": None, "time_us": None} for event in events]


def test_overlapping_sessions_record_the_same_as_alone(tmp_path: Path) -> None:
    # GIVEN the events that each of three sessions records alone: a tracer of the entire run, one
    # that is cleared at each step, as verl clears torch's recorder, and one of discrete windows
    sessions: dict[str, list[Events]] = {"alone": [], "together": []}

    def clearing(tracer: Tracer, name: str) -> Callable[[int], None]:
        def end(step: int) -> None:
            sessions[name].append(comparable(trace(tracer.snapshot())))
            tracer.clear()

        return end

    steps, folders = 4, {"alone": tmp_path / "alone", "together": tmp_path / "together"}
    options: dict[str, Any] = {"device": "cpu", "steps": [2, 3], "discrete": True}
    with Tracer(device="cpu", stack_depth=3) as whole_alone:
        run_job(steps)
    with with_context(Tracer(device="cpu", trace_alloc_max_entries=50), "alloc") as session:
        run_job(steps, session=clearing(session, "alone"))
    with Tracer(folders["alone"], **options) as windows:
        run_job(steps, windows=lambda step: windows.step())
    # WHEN all three record the same job together
    with (
        Tracer(device="cpu", stack_depth=3) as run_tracer,
        with_context(Tracer(device="cpu", trace_alloc_max_entries=50), "alloc") as session,
        Tracer(folders["together"], **options) as windows,
    ):
        run_job(
            steps,
            session=clearing(session, "together"),
            windows=lambda step: windows.step(),
        )

    # THEN each has the same events
    def without_this_test(events: Events) -> Events:
        """Leave out the lines of this function, which differ."""
        here = "test_overlapping_sessions_record_the_same_as_alone"
        for event in events:
            names = [frame["name"] for frame in event["frames"]]
            event["frames"] = (
                event["frames"][: names.index(here)] if here in names else event["frames"]
            )
        return events

    assert without_this_test(comparable(trace(run_tracer.snapshot()))) == without_this_test(
        comparable(trace(whole_alone.snapshot()))
    )
    assert len(sessions["alone"]) == len(sessions["together"]) == steps
    for alone, together in zip(sessions["alone"], sessions["together"], strict=True):
        assert len(alone) > 0
        assert without_this_test(together) == without_this_test(alone)
    alone_files, files = read(folders["alone"]), read(folders["together"])
    assert {*files} == {*alone_files}
    for name, snapshot in files.items():
        events, events_alone = comparable(trace(snapshot)), comparable(trace(alone_files[name]))
        assert without_this_test(events) == without_this_test(events_alone)
        sizes = [
            sorted(s["total_size"] for s in content["segments"])
            for content in (snapshot, alone_files[name])
        ]
        assert sizes[0] == sizes[1]


# --- problems that must not harm the job ----------------------------------------------------------


def test_a_phase_that_cannot_be_recorded_has_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN no memory for another session
    with Tracer(tmp_path, device="cpu", steps=[1], discrete=True) as tracer:

        def no_room() -> _core.Session:
            raise MemoryError

        monkeypatch.setattr(tracer._recording, "new_session", no_room)
        # WHEN phases occur, THEN they run, and the failures are logged and counted
        for _ in range(2):
            with annotate("rollout"):
                torch.empty(10)
        tracer.step()
        assert tracer.stats()["failures"] == 2
    assert {*read(tmp_path)} == {"step1"}
    assert re.fullmatch(r"the phase rollout gets no file: .*", caplog.messages[0])
    assert len(caplog.messages) == 1


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


@pytest.mark.parametrize("rank", ["0", "1"])
def test_ranks_that_write_phases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    with Tracer(tmp_path, device="cpu", steps=[1], discrete=True) as tracer:
        step_of_a_job(1)
        tracer.step()
    assert bool(read(tmp_path)) == (rank == "0")


def test_an_upload_that_is_a_phase_has_no_file(tmp_path: Path) -> None:
    # GIVEN an on_snapshot function that enters a phase, in which it allocates
    uploaded: list[str] = []

    @annotate("upload")
    def upload(path: str) -> None:
        torch.empty(10, dtype=BYTE)
        uploaded.append(Path(path).parent.name)

    # WHEN a phase and a step end
    with Tracer(tmp_path, device="cpu", steps=[1], discrete=True, on_snapshot=upload) as tracer:
        with annotate("rollout"):
            torch.empty(100, dtype=BYTE)
        tracer.step()
    # THEN each of their files is uploaded, and the uploads have no files
    assert uploaded == ["rollout", "step1"]
    assert {*read(tmp_path)} == {"step1", "step1/rollout"}


def test_a_rank_that_is_known_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a process that learns during its first step that it is rank 1, which writes no files
    with Tracer(tmp_path, device="cpu", steps=[1], discrete=True) as tracer:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with annotate("rollout"):
            torch.empty(100, dtype=BYTE)
        tracer.step()
    # THEN it writes neither file
    assert read(tmp_path) == {}


def test_no_more_files_than_a_step_may_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phase_windows, "MAX_OCCURRENCES", 10)
    with Tracer(tmp_path, device="cpu", steps=[1, 2], discrete=["load"]) as tracer:
        for _ in range(13):
            with annotate("load"):
                torch.empty(100, dtype=BYTE)
        tracer.step()
        with annotate("load"):
            torch.empty(100, dtype=BYTE)
        tracer.step()
        assert tracer.stats()["failures"] == 3
    assert len(read(tmp_path / "step1")) == 10 + 1
    assert len(read(tmp_path / "step2")) == 1 + 1
    assert caplog.text.count("discrete: more than 10 phases occurred in a step") == 1


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


def test_a_phase_that_never_begins_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Tracer(tmp_path, device="cpu", steps=[1], discrete=["rolout"]) as tracer:
        with annotate("rollout"):
            torch.empty(100, dtype=BYTE)
        tracer.step()
    assert "discrete=('rolout',) wrote no file: no such phase began in" in caplog.text
