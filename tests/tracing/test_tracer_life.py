"""What does a tracer record and keep when it starts, stops, starts again, and is dropped?"""

import pickle
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import viewers
from cpu_events import BYTE, block, blocks_of
from garbage import no_collection
from processes import run

from pytracer import Tracer, annotate
from pytracer.reading import load
from pytracer.tracing import process

pytestmark = pytest.mark.usefixtures("no_collector")


@pytest.mark.parametrize("error", [ValueError("7"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_in_the_body(tmp_path: Path, error: BaseException) -> None:
    # GIVEN a tracer with an output
    path = tmp_path / "snapshot.pickle"
    kept = []

    def body() -> None:
        with Tracer(path):
            kept.append(torch.empty(321))
            raise error

    # WHEN the body raises
    with pytest.raises(type(error)) as raised:
        body()
    # THEN the same exception is raised, and the snapshot is written
    assert raised.value is error
    assert blocks_of(pickle.loads(path.read_bytes())).keys() == {block(kept[0])}


@pytest.mark.parametrize("output", ["out", "x.pickle"])
def test_recordings_of_one_output_have_a_file_each(tmp_path: Path, output: str) -> None:
    # GIVEN a tracer that is used twice, and another tracer with the same output
    first, second = (Tracer(tmp_path / output, device="cpu") for _ in range(2))
    for number, tracer in enumerate((first, first, second)):
        with tracer, tracer:  # the end of the outer statement writes the same again
            kept = torch.empty(1000 + number, dtype=BYTE)
            del kept
    # THEN each recording has its own file
    paths = [path for path in sorted(tmp_path.rglob("*.pickle")) if path.is_file()]
    sizes = [pickle.loads(path.read_bytes())["device_traces"][0][0]["size"] for path in paths]
    assert sorted(sizes) == [1000, 1001, 1002]
    if output == "x.pickle":
        assert [path.name for path in paths] == ["x.pickle", "x_2.pickle", "x_3.pickle"]
        assert sizes == [1000, 1001, 1002]


def test_a_tracer_that_never_started(tmp_path: Path) -> None:
    tracer = Tracer()
    tracer.stop()
    tracer.clear()
    assert (len(tracer.events()), tracer.frames(0), tracer.stats()["devices"]) == (0, [], [])
    tracer.dump(tmp_path / "snapshot.pickle")
    viewers.check_snapshot(pickle.loads((tmp_path / "snapshot.pickle").read_bytes()))


STEPS: dict[str, Any] = {"steps": [1, 2], "discrete": True}


@pytest.mark.parametrize(
    ("uses", "options"),
    [
        (0, {}),
        (1, {}),
        (2, {"trigger_file": "trigger"}),
        (2, STEPS),
        (1, {**STEPS, "step_from": "optimizer"}),
        (1, {**STEPS, "step_from": "framework"}),
    ],
)
def test_a_dropped_tracer_is_freed_at_once(
    tmp_path: Path, uses: int, options: dict[str, Any]
) -> None:
    # GIVEN a program without the collection of reference cycles
    with no_collection():
        tracer = Tracer(tmp_path, device="cpu", **options)
        # WHEN a tracer was used, or never started, and the program drops its reference
        for _ in range(uses):
            with tracer, annotate("rollout"):
                torch.empty(10)
                tracer.step()
        assert (repr(tracer), tracer.stats(), tracer.snapshot(), tracer.events()) is not None
        tracer.dump(tmp_path / "x.pickle")
        parts = (tracer, tracer._recording, tracer._writer, tracer._step_recording)
        references = [*map(weakref.ref, parts)]
        del tracer, parts
        for thread in threading.enumerate():
            if thread.name == "pytracer steps":  # a timer, which was cancelled
                thread.join()
            del thread
        # THEN the tracer is freed with all its objects
        assert [reference() for reference in references] == [None] * 4


def test_a_dropped_tracer_waits_for_no_device() -> None:
    with no_collection():
        before = len(process.waiting)
        tracer = Tracer(device="npu" if torch.cuda.is_available() else "cuda").start()
        assert len(process.waiting) == before + 1
        del tracer
        assert len(process.waiting) == before


def test_a_tracer_keeps_no_object_of_the_caller() -> None:
    class Names(list[str]):
        """A list that supports weak references."""

    with no_collection():
        names = Names(["cpu"])
        reference = weakref.ref(names)
        tracer = Tracer(device=names)
        del names
        assert reference() is None
    assert tracer._options.given == {"device"}


def test_a_destructor_writes_when_python_ends(tmp_path: Path) -> None:
    # GIVEN an object that dies last, when builtins are gone and nothing can be imported
    program = """
import builtins, torch, pytracer
class Held:
    def __init__(self):
        self.tracer = pytracer.Tracer(None, device="cpu").start()
        self.kept = torch.ones(100)
    def __del__(self):
        self.tracer.dump("last.pickle")
builtins.held = Held()
"""
    # WHEN it writes THEN the file is there
    done = run(program, cwd=tmp_path, new=True)
    assert done.stderr == ""
    assert load(tmp_path / "last.pickle").traces
