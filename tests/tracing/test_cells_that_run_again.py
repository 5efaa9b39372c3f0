"""Does a cell that is run again and again keep the tracers of all its runs?"""

import pytest

import pytracer
from pytracer.tracing import cell_names


def test_the_tracer_of_the_run_before_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a line of a cell that starts a tracer
    runs = []
    monkeypatch.setattr(cell_names, "_line_and_run", lambda: (("cell", 1), len(runs)))
    tracers = []
    # WHEN the cell is run three times, and starts two tracers each time
    for run in range(3):
        runs.append(run)
        tracers += [pytracer.Tracer(device="cpu").start() for _ in range(2)]
    # THEN the last one of the run before has ended each time
    recording = [tracer.stats()["recording"] for tracer in tracers]
    assert recording == [True, False, True, False, True, True]
    for tracer in tracers:
        tracer.stop()


def test_outside_of_cells_nothing_ends() -> None:
    # GIVEN a line of a program that is no cell, WHEN it starts two tracers, THEN both record
    tracers = [pytracer.Tracer(device="cpu").start() for _ in range(2)]
    assert all(tracer.stats()["recording"] for tracer in tracers)
    for tracer in tracers:
        tracer.stop()
