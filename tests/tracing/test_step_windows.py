"""Tests of step windows: the steps in each file, compared with the selected steps."""

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
from amount import amount
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerAction, schedule

from pytracer import Tracer
from pytracer.tracing.step_windows import CyclicSchedule, Steps, Window

Expected = list[tuple[Window, list[int]]]  # each file's window, and the steps whose events it has

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
runs = settings(max_examples=amount(50, 200), deadline=None)


def torch_schedule(numbers: dict[str, int]) -> Callable[[int], ProfilerAction]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about a schedule without a warm-up
        result: Callable[[int], ProfilerAction] = schedule(**numbers)
        return result


def run(folder: Path, count: int, ends: bool, **options: Any) -> Expected:
    """Allocate `step` bytes in each of `count` steps; `ends` says whether the last step ends."""
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
def test_files_have_the_steps_that_torchs_schedule_records(
    numbers: dict[str, int], steps: int, ends: bool
) -> None:
    # GIVEN a schedule of torch, and the steps that it has recorded so far
    action = torch_schedule(numbers)
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
    # WHEN a job is recorded with it, THEN its files have exactly these steps, completely
    with tempfile.TemporaryDirectory() as folder:
        assert run(Path(folder), steps, ends, schedule=action) == expected


def batches(items: list[int], size: int) -> list[list[int]]:
    """Split `items` into batches; the last one may be smaller."""
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


@runs
@given(
    selected=st.lists(st.integers(1, 14), min_size=1, max_size=8),
    per_window=st.integers(1, 4),
    steps=counts,
    ends=st.booleans(),
)
def test_files_have_the_named_steps(
    selected: list[int], per_window: int, steps: int, ends: bool
) -> None:
    # GIVEN steps in any order, possibly repeated, and a number of steps per file
    named = sorted({*selected})
    expected: Expected = []
    for first, last in ((part[0], part[-1]) for part in batches(named, per_window)):
        if last < steps + ends:
            expected.append((Window(first, last), [*range(first, last + 1)]))
        elif first <= steps:
            expected.append(cut_short([*range(first, steps + 1)], steps + ends))
    # WHEN a job is recorded, THEN each file has everything from its first to its last step
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), steps, ends, steps=selected, memory_snapshot_num_steps=per_window)
        assert found == expected


@given(numbers=cycles)
def test_the_variables_schedule_is_torchs(numbers: dict[str, int]) -> None:
    ours, torchs = CyclicSchedule(**numbers), torch_schedule(numbers)
    assert [ours(step) for step in range(30)] == [torchs(step) for step in range(30)]


def actions(text: str) -> Callable[[int], ProfilerAction]:
    """Return a schedule of the steps from 0 as letters; N follows the last letter."""
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
def test_schedules_of_users(text: str, windows: list[Window]) -> None:
    steps = Steps(schedule=actions(text))
    ended = [steps.enter(step) for step in range(1, 10)]
    assert [window for window in ended if window] == windows


def test_steps_that_a_framework_reports() -> None:
    # GIVEN selected steps, two per window
    steps = Steps([2, 3, 9], per_window=2)
    recorded = []
    # WHEN a framework reports some steps, with time outside any step between them, and one again
    windows = []
    for step in (1, 0, 3, 0, 5, 0, 9, 0, 2, 0):
        windows.append(steps.enter(step))
        recorded.append(steps.are_recorded)
    # THEN a window has everything from its first step's begin to its last step's end
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
    # GIVEN a range with more steps than a job has
    tracemalloc.start()
    steps = Steps(range(1, 1_000_000))
    # WHEN some are entered, THEN each is a window, and the range takes no memory
    assert [steps.enter(step) for step in (1, 2, 3)] == [None, Window(1, 1), Window(2, 2)]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100_000


def test_a_step_that_a_framework_reports_again_stays_in_its_window() -> None:
    steps = Steps([2, 3], per_window=2)
    assert [steps.enter(step) for step in (2, 0, 2, 0, 3, 0)] == [None] * 5 + [Window(2, 3)]
