"""Which events are in the file of a phase, in steps and next to other tracers?"""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from phase_files import of_phase, read, step_of_a_job, trace, window
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
