"""Which events are in the file of a phase, in steps and next to other tracers?"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from contexts import with_context
from phase_files import Events, of_phase, read, step_of_a_job, trace, window
from step_files import BYTE, allocated

from pytracer import Tracer, annotate
from pytracer.tracing import phases

pytestmark = pytest.mark.usefixtures("no_collector")


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
    assert sorted(path.name for path in tmp_path.glob("*.pickle")) == [
        "x.step2.actor_update.pickle",
        "x.step2.pickle",
        "x.step2.rollout.pickle",
        "x.step2.rollout_2.pickle",
    ]


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
        run_job(steps, session=clearing(session, "together"), windows=lambda step: windows.step())

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
