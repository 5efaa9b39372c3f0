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
            inexact=[],
            bounds={},
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
            inexact=[],
            bounds={},
            allocations=len(allocs),
            allocations_bytes=sum(trace[i]["size"] for i in allocs),
        )
    held_bytes = [phase.at_peak_bytes for phase in found]
    assert held_bytes == sorted(held_bytes, key=lambda count: -(count or 0))


def test_a_phase_that_occurs_twice() -> None:
    # GIVEN two phases that alternate, one of which has its peak the second time
    model = run(
        [("enter", 1, 0), ("alloc", 10, 0), ("enter", 2, 0), ("alloc", 5, 0)]
        + [("enter", 1, 0), ("alloc", 3, 0), ("free", 0, 0), ("complete", 0, 0)]
        + [("enter", 2, 0), ("alloc", 2, 0)]
    )
    snapshot = model.snapshot()
    # WHEN they are computed, THEN each has its own peak
    found = phases(data_of(snapshot, replay(snapshot, 1)), 6)
    peaks = {phase.phase: (phase.peak_bytes, phase.peak_event) for phase in found}
    assert peaks == {"rollout": (18, 5), "update": (15, 3)}


def test_phases_without_a_history() -> None:
    # GIVEN a trace whose levels are unknown
    model = run([("enter", 1, 0), ("alloc", 10, 0), ("enter", 2, 0), ("alloc", 5, 0)])
    # WHEN its phases are computed, THEN the bytes that they held are unknown, and the rest is known
    assert phases(data_of(model.snapshot(), unknown_history()), None) == [
        Phase("rollout", None, None, None, None, None, None, [], {}, 1, 10),
        Phase("update", None, None, None, None, None, None, [], {}, 1, 5),
    ]


def two_steps() -> tuple[Snapshot, History]:
    """Return a rollout that allocates and frees 10 bytes, and a step that allocates 30 bytes."""
    snapshot = run(
        [("step", 0, 0), ("enter", 1, 0), ("alloc", 10, 0), ("free", 0, 0), ("complete", 0, 0)]
        + [("step", 0, 0), ("enter", 2, 0), ("alloc", 30, 0)]
    ).snapshot()
    return snapshot, replay(snapshot, 1)


def inexact_phases(snapshot: Snapshot, history: History, peak: int) -> dict[str | None, Any]:
    found = phases(data_of(snapshot, history), peak)
    return {phase.phase: (phase.inexact, phase.bounds) for phase in found}


def test_inexact_values_of_steps_and_phases_are_listed() -> None:
    # GIVEN a history whose first levels may be 20 bytes higher
    snapshot, history = two_steps()
    history = replace(history, exact_from=2, uncertain_bytes=np.array([20, 20]))

    # WHEN steps are computed, THEN the step of these levels lists its inexact values
    first, second = steps(data_of(snapshot, history))
    assert first.inexact == ["begin_bytes", "peak_bytes"]
    assert first.bounds == {"begin_bytes": 20, "peak_bytes": 20}
    assert (second.inexact, second.bounds) == ([], {})
    # AND a peak is exact if no inexact level can exceed it
    history.uncertain_bytes[:] = 10
    assert steps(data_of(snapshot, history))[0].inexact == ["begin_bytes"]

    # AND phases list theirs; a level before the first event of a phase does not count
    history.uncertain_bytes[:] = 1000
    found = inexact_phases(snapshot, history, 1)
    assert found == {"rollout": (["peak_bytes"], {"peak_bytes": 1000}), "update": ([], {})}
    # AND the bytes held at the peak are inexact if the size of one of the blocks is
    history.blocks.is_sized[0] = False
    found = inexact_phases(snapshot, history, 2)
    assert found["rollout"][0] == ["peak_bytes"]  # the level at the peak is exact
    history.usage.active_bytes[1] = history.usage.allocated_bytes[1] = 10
    history.blocks.alloc_event[0] = 0
    found = inexact_phases(snapshot, history, 1)
    assert found["rollout"][0] == ["peak_bytes", "fragmentation_bytes", "at_peak_bytes"]
    assert found["rollout"][1]["at_peak_bytes"] == 1010


def test_an_inexact_end_and_fragmentation() -> None:
    # GIVEN a history that is exact from the middle of the second step
    snapshot, history = two_steps()
    history = replace(history, exact_from=6, uncertain_bytes=np.full(6, 3))
    # WHEN steps are computed, THEN the first has only its reserved bytes exact, and the second's
    # first level is inexact
    first, second = steps(data_of(snapshot, history))
    assert first.inexact == ["begin_bytes", "end_bytes", "peak_bytes", "fragmentation_bytes"]
    assert first.bounds == {
        **{"begin_bytes": 3, "end_bytes": 3},
        **{"peak_bytes": 13, "fragmentation_bytes": -3},
    }
    assert second.inexact == ["begin_bytes"]
    # AND the phase with its peak in the first step has an inexact peak
    rollout, update = phases(data_of(snapshot, history), 7)[::-1]
    assert rollout.phase == "rollout"
    assert rollout.inexact == ["peak_bytes", "fragmentation_bytes"]
    assert (update.phase, update.inexact) == ("update", [])


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
    # WHEN no level is taken as exact, THEN the uncertainty of a level is unknown
    history = replay(snapshot, 1)
    assert history.uncertain_at(2) == 0
    history = history.without_exact_entries()
    assert history.uncertain_at(2) is None
    # AND no level is exact, and none has a bound
    (step,) = steps(data_of(snapshot, history, [(1, 0)]))
    assert step.inexact == [
        *("begin_bytes", "end_bytes"),
        *("peak_bytes", "fragmentation_bytes", "peak_reserved_bytes"),
    ]
    assert step.bounds == {}


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
