"""Test steps and phases against a synthetic program whose state after each event is known."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import reference_reader
from hypothesis import given
from hypothesis import strategies as st
from synthetic_program import FIRST_TIME_US, Program, operations, run

from pytracer.analysis.device_data import DeviceData, device_data
from pytracer.analysis.history import History, replay, unknown_history
from pytracer.analysis.steps_and_phases import Phase, Step, phases, steps
from pytracer.reading.snapshot import Snapshot
from pytracer.reading.steps import step_at, step_boundaries


def data_of(snapshot: Snapshot, history: History, *boundaries: list[tuple[int, int]]) -> DeviceData:
    """Return device 1 with a history, and with other boundaries of steps, if they are given."""
    data = replace(device_data(snapshot, 1), history=history)
    return replace(data, boundaries=boundaries[0]) if boundaries else data


def allocated_levels(model: Program, lost: int) -> list[int]:
    """Return the allocated bytes before the first event that is left, and after each event."""
    return [
        sum(block.size for block in moment.values() if not block.pending)
        for moment in model.moments[lost:]
    ]


@given(operations, st.integers(0, 200))
def test_steps_equal_the_model(program: list[tuple[str, int, int]], lost: int) -> None:
    # GIVEN a program, and a ring that has lost some of its first events
    model = run(program)
    lost = min(lost, len(model.trace))
    snapshot, trace = model.snapshot(lost), model.trace[lost:]
    levels = allocated_levels(model, lost)

    # WHEN its steps are computed
    boundaries = step_boundaries(snapshot, 1)
    history = replay(snapshot, 1)
    found = steps(data_of(snapshot, history))

    reserved = history.usage.reserved_bytes.tolist()
    # THEN every event is in the step that began last before it, and each step has the right numbers
    event_steps = [
        max((step for step, first in model.boundaries if first <= lost + i), default=None)
        for i in range(len(trace))
    ]
    assert [step_at(boundaries, i) for i in range(len(trace))] == event_steps
    expected = list(dict.fromkeys(event_steps)) if any(event_steps) else []
    assert [step.step for step in found] == expected
    for step in found:
        events = [i for i, number in enumerate(event_steps) if number == step.step]
        first, end = events[0], events[-1] + 1
        inside = levels[first : end + 1]
        highest = first + inside.index(max(inside))
        count = Counter(event["action"] for event in trace[first:end])
        assert step == Step(
            step=step.step,
            first_event=first,
            end_event=end,
            begins_in_trace=lost == 0 or first > 0,
            begin_bytes=levels[first],
            end_bytes=levels[end],
            peak_bytes=max(inside),
            peak_event=None if highest == first else highest - 1,
            fragmentation_bytes=reserved[highest] - levels[highest],
            peak_reserved_bytes=max(reserved[first : end + 1]),
            is_exact=True,
            allocations=count["alloc"],
            allocations_bytes=sum(
                event["size"] for event in trace[first:end] if event["action"] == "alloc"
            ),
            device_allocs=count["segment_alloc"],
            device_frees=count["segment_free"],
        )
    # AND without a history, the counts are the same
    for bare, step in zip(steps(data_of(snapshot, unknown_history())), found, strict=True):
        assert bare.peak_bytes is bare.begin_bytes is bare.end_bytes is bare.peak_event is None
        assert bare.peak_reserved_bytes is bare.fragmentation_bytes is None
        assert (bare.allocations, bare.first_event) == (step.allocations, step.first_event)


@given(operations, st.integers(0, 200))
def test_phases_equal_the_model(program: list[tuple[str, int, int]], lost: int) -> None:
    # GIVEN a program, and a ring that has lost some of its first events
    model = run(program)
    lost = min(lost, len(model.trace))
    snapshot, trace = model.snapshot(lost), model.trace[lost:]
    levels = allocated_levels(model, lost)
    peak = levels.index(max(levels))

    # WHEN its phases are computed
    history = replay(snapshot, 1)
    found = phases(data_of(snapshot, history), peak)
    reserved = history.usage.reserved_bytes.tolist()

    # THEN each has its blocks and events; the phase of blocks older than the trace is unknown
    def held(level: int) -> Counter[str | None]:
        total: Counter[str | None] = Counter()
        for block in model.moments[lost + level].values():
            total[block.phase if block.event >= lost else None] += block.size
        return total

    at_peak, in_the_end = held(peak), held(len(trace))
    names = dict.fromkeys(event["user_metadata"] for event in trace)
    older = [None] if at_peak[None] or in_the_end[None] else []
    assert {phase.phase for phase in found} == {*names, *older}
    for phase in found:
        events = [i for i, event in enumerate(trace) if event["user_metadata"] == phase.phase]
        allocs = [i for i in events if trace[i]["action"] == "alloc"]
        highest = max(events, key=lambda i: (levels[i + 1], -i), default=None)
        assert phase == Phase(
            phase=phase.phase,
            at_peak_bytes=at_peak[phase.phase],
            peak_bytes=None if highest is None else levels[highest + 1],
            peak_event=highest,
            fragmentation_bytes=None
            if highest is None
            else reserved[highest + 1] - levels[highest + 1],
            peak_reserved_bytes=max((reserved[i + 1] for i in events), default=None),
            end_bytes=in_the_end[phase.phase],
            is_exact=True,
            allocations=len(allocs),
            allocations_bytes=sum(trace[i]["size"] for i in allocs),
        )
    held_bytes = [phase.at_peak_bytes for phase in found]
    assert held_bytes == sorted(held_bytes, key=lambda count: -(count or 0))


def test_phases_without_a_history() -> None:
    # GIVEN a trace whose levels are unknown
    model = run([("enter", 1, 0), ("alloc", 10, 0), ("enter", 2, 0), ("alloc", 5, 0)])
    # WHEN its phases are computed, THEN the bytes that they held are unknown, and the rest is known
    assert phases(data_of(model.snapshot(), unknown_history()), None) == [
        Phase("rollout", None, None, None, None, None, None, False, 1, 10),
        Phase("update", None, None, None, None, None, None, False, 1, 5),
    ]


def two_steps() -> tuple[Snapshot, History]:
    """Return a rollout that allocates and frees 10 bytes, and a step that allocates 30 bytes."""
    snapshot = run(
        [("step", 0, 0), ("enter", 1, 0), ("alloc", 10, 0), ("free", 0, 0), ("complete", 0, 0)]
        + [("step", 0, 0), ("enter", 2, 0), ("alloc", 30, 0)]
    ).snapshot()
    return snapshot, replay(snapshot, 1)


def exact_phases(snapshot: Snapshot, history: History) -> dict[str | None, bool]:
    return {phase.phase: phase.is_exact for phase in phases(data_of(snapshot, history), 7)}


def test_steps_and_phases_of_which_only_bounds_are_known() -> None:
    # GIVEN a history whose first levels may be higher
    snapshot, history = two_steps()
    history = replace(history, exact_from=2, uncertain_bytes=np.array([20, 20]))
    # WHEN steps and phases are computed, THEN those of these levels are not exact
    assert [step.is_exact for step in steps(data_of(snapshot, history))] == [False, True]
    assert exact_phases(snapshot, history) == {"rollout": False, "update": True}
    # AND a phase is exact if no such level can exceed its peak
    history.uncertain_bytes[:] = 10
    assert exact_phases(snapshot, history) == {"rollout": True, "update": True}


@pytest.mark.parametrize("window", [None, 3, {}, {"phase": None}, {"phase": ["rollout"]}])
def test_a_file_of_all_phases(window: object) -> None:
    content = run([("alloc", 10, 0)]).content()
    content["pytracer"]["window"] = window
    assert reference_reader.convert(content).metadata.only_phase is None


def test_a_file_of_one_phase() -> None:
    # GIVEN the file of a phase
    content = run([("alloc", 10, 0)]).content()
    content["pytracer"]["window"] = {"phase": "outer/rollout"}
    snapshot = reference_reader.convert(content)
    assert snapshot.metadata.only_phase == "outer/rollout"
    # WHEN no level is taken as exact, THEN no step and no phase is
    history = replay(snapshot, 1)
    assert history.has_bounds
    history = history.without_exact_entries()
    assert not history.has_bounds
    (step,) = steps(data_of(snapshot, history, [(1, 0)]))
    assert not step.is_exact
    assert not any(exact_phases(snapshot, history).values())


def profiler_content(*names: str) -> dict[str, Any]:
    """Return a file of torch's recorder with annotations at the second and the fourth event."""
    content = run([("alloc", 10, 0), ("alloc", 5, 0), ("alloc", 1, 0)]).content()
    del content["pytracer"]
    content["external_annotations"] = [
        {"name": name, "stage": stage, "device": 1, "time_us": FIRST_TIME_US + 2 * i + 1}
        for i, name in enumerate(names)
        for stage in ("START", "END")
    ]
    return content


def test_steps_of_torchs_profiler() -> None:
    # GIVEN a file of torch's recorder with the steps of the profiler and another annotation
    snapshot = reference_reader.convert(
        profiler_content("ProfilerStep#7", "ProfilerStep#8", "Optimizer.step")
    )
    # WHEN its steps are computed, THEN they are the profiler's
    boundaries = step_boundaries(snapshot, 1)
    assert boundaries == [(7, 1), (8, 3)]
    found = steps(data_of(snapshot, unknown_history()))
    assert [(s.step, s.first_event, s.allocations) for s in found] == [
        (None, 0, 0),
        (7, 1, 1),
        (8, 3, 2),
    ]
    # AND whether the events before the first step are complete is unknown
    assert [s.begins_in_trace for s in found] == [False, True, True]


@pytest.mark.parametrize("untimed", [slice(None), slice(1)])
def test_a_file_without_all_times_has_no_profilers_steps(untimed: slice) -> None:
    content = profiler_content("ProfilerStep#7")
    for event in content["device_traces"][1][untimed]:
        del event["time_us"]
    assert step_boundaries(reference_reader.convert(content), 1) == []


@pytest.mark.parametrize(
    "malformed",
    [None, 3, "steps", [3], [[1]], [["1", 0]], [[1, -1]], [[1, 99]], [[1, None]], [[True, 0]], {}],
)
def test_malformed_steps_are_ignored(malformed: object) -> None:
    # GIVEN a file with steps that pytracer does not write
    content = run([("alloc", 10, 0)]).content()
    content["pytracer"]["devices"][0]["steps"] = malformed
    # WHEN they are read, THEN there are none
    snapshot = reference_reader.convert(content)
    assert step_boundaries(snapshot, 1) == []
    assert steps(data_of(snapshot, unknown_history(), [])) == []


@pytest.mark.parametrize("devices", [None, 3, [3], [{}], {"index": 1}, [{"index": "1"}]])
def test_malformed_devices_are_ignored(devices: object) -> None:
    content = run([("alloc", 10, 0)]).content()
    content["pytracer"]["devices"] = devices
    assert step_boundaries(reference_reader.convert(content), 1) == []
