"""Which steps have files, and which share one: what is written against what was asked for."""

import pickle
import tempfile
import tracemalloc
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerAction, schedule

from pytracer import Tracer
from pytracer.windows import CyclicSchedule, Steps, Window

Expected = list[tuple[Window, list[int]]]  # of each file the steps whose events are in it

pytestmark = pytest.mark.usefixtures("no_collector")

cycles = st.fixed_dictionaries(
    {
        "skip_first": st.integers(0, 3),
        "wait": st.integers(0, 2),
        "warmup": st.integers(0, 2),
        "active": st.integers(1, 3),
        "repeat": st.integers(0, 3),
    }
)
counts = st.integers(1, 12)
runs = settings(max_examples=200, deadline=None)


def of_torch(numbers: dict[str, int]) -> Callable[[int], ProfilerAction]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it does without a warm-up
        made: Callable[[int], ProfilerAction] = schedule(**numbers)
        return made


def run(folder: Path, count: int, ends: bool, **options: Any) -> Expected:
    """Allocates a block of `step` bytes in each of so many steps; `ends`: the last one is over."""
    with Tracer(folder, device="cpu", **options) as tracer:
        for step in range(1, count + 1):
            if step > 1:
                tracer.step()
            assert tracer.current_step == step
            torch.empty(step, dtype=torch.uint8)
        if ends:
            tracer.step()
    assert tracer.stats()["failures"] == 0
    return sorted((read(path) for path in folder.rglob("*.pickle")), key=lambda file: file[0].first)


def read(path: Path) -> tuple[Window, list[int]]:
    snapshot = pickle.loads(path.read_bytes())
    about = snapshot["pytracer"]
    (trace,) = snapshot["device_traces"]
    found = []
    marks = [*about["devices"][0]["steps"], [None, len(trace)]]
    for (step, begin), (_, end) in pairwise(marks):
        sizes = {event["size"] for event in trace[begin:end]}
        assert sizes <= {step}
        found += sizes
    window = about["window"]
    assert path.parent.name == Window(window["first"], window["last"]).name
    assert (window["phase"], window["occurrence"]) == (None, None)
    return Window(window["first"], window["last"], window["complete"]), found


def cut_short(steps: list[int], now: int) -> tuple[Window, list[int]]:
    return Window(steps[0], now, complete=False), steps


@runs
@given(numbers=cycles, steps=counts, ends=st.booleans())
def test_the_files_are_of_the_steps_that_torchs_schedule_records(
    numbers: dict[str, int], steps: int, ends: bool
) -> None:
    # GIVEN a schedule of torch's, and the steps it records until now
    action = of_torch(numbers)
    expected: Expected = []
    window: list[int] = []
    for step in range(1, steps + 1):
        if action(step - 1) in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE):
            window.append(step)
        if action(step - 1) == ProfilerAction.RECORD_AND_SAVE and (step < steps or ends):
            expected.append((Window(window[0], step), window))
            window = []
    if window:
        expected.append(cut_short(window, steps + ends))
    # WHEN a job is recorded by it, THEN its files have these steps, whole, and nothing else
    with tempfile.TemporaryDirectory() as folder:
        assert run(Path(folder), steps, ends, schedule=action) == expected


def batches(items: list[int], size: int) -> list[list[int]]:
    """The last one may be smaller."""
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


@runs
@given(
    selected=st.lists(st.integers(1, 14), min_size=1, max_size=8),
    each=st.integers(1, 4),
    steps=counts,
    ends=st.booleans(),
)
def test_the_files_are_of_the_steps_that_were_named(
    selected: list[int], each: int, steps: int, ends: bool
) -> None:
    # GIVEN steps in any order, named once or twice, so many for a file
    named = sorted({*selected})
    expected: Expected = []
    for first, last in ((part[0], part[-1]) for part in batches(named, each)):
        if last < steps + ends:
            expected.append((Window(first, last), [*range(first, last + 1)]))
        elif first <= steps:
            expected.append(cut_short([*range(first, steps + 1)], steps + ends))
    # WHEN a job is recorded, THEN each file has what is from its first step to its last
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), steps, ends, steps=selected, memory_snapshot_num_steps=each)
        assert found == expected


@given(numbers=cycles)
def test_the_variables_schedule_is_torchs(numbers: dict[str, int]) -> None:
    ours, torchs = CyclicSchedule(**numbers), of_torch(numbers)
    assert [ours(step) for step in range(30)] == [torchs(step) for step in range(30)]


def actions(text: str) -> Callable[[int], ProfilerAction]:
    """Of steps from 0, by their letters; N from there on."""
    letters = {
        "N": ProfilerAction.NONE,
        "W": ProfilerAction.WARMUP,
        "R": ProfilerAction.RECORD,
        "S": ProfilerAction.RECORD_AND_SAVE,
    }
    return lambda step: letters[(text + "N" * 100)[step]]


@pytest.mark.parametrize(
    ("text", "windows"),
    [
        ("RRN", [Window(1, 2)]),  # torch's own schedules end with S
        ("NRWRS", [Window(2, 2), Window(4, 5)]),
        ("SSRSR", [Window(1, 1), Window(2, 2), Window(3, 4), Window(5, 5)]),
    ],
)
def test_schedules_of_the_users_own(text: str, windows: list[Window]) -> None:
    steps = Steps(schedule=actions(text))
    ended = [steps.enter(step) for step in range(1, 10)]
    assert [window for window in ended if window] == windows


def test_steps_that_a_framework_tells() -> None:
    # GIVEN some of a job's steps, two for a window
    steps = Steps([2, 3, 9], per_window=2)
    recorded = []
    # WHEN a framework tells some, with time between them that is of none, and repeats one
    windows = []
    for step in (1, 0, 3, 0, 5, 0, 9, 0, 2, 0):
        windows.append(steps.enter(step))
        recorded.append(steps.are_recorded)
    # THEN a window has all from its first step's begin to its last step's end
    assert recorded == [False] * 2 + [True] * 5 + [False] + [True] * 2
    assert [window for window in windows if window] == [Window(3, 9)]
    assert [steps.cut_short(), steps.cut_short()] == [Window(2, 2, complete=False), None]
    assert (steps.current, steps.entered) == (0, 5)


def test_without_selected_steps_all_is_recorded() -> None:
    for steps in (Steps(), Steps(())):
        assert [steps.enter(step) for step in (1, 2, 0, 3)] == [None] * 4
        assert steps.are_recorded
        assert (steps.are_selected, steps.cut_short()) == (False, None)


def test_a_range_of_steps_is_not_made_into_a_list() -> None:
    # GIVEN more steps than a job has
    tracemalloc.start()
    steps = Steps(range(1, 1_000_000))
    # WHEN some are entered, THEN each is a window, and they took no memory
    assert [steps.enter(step) for step in (1, 2, 3)] == [None, Window(1, 1), Window(2, 2)]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100_000
