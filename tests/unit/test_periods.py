"""Steps and phases, against a made-up program of which every moment is kept."""

from collections import Counter
from dataclasses import replace
from typing import Any

import plain_reader
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_program import FIRST_TIME_US, Program, operations, run

from pytracer.reading.about import only_phase
from pytracer.reading.history import History, replay
from pytracer.reading.periods import (
    Phase,
    Step,
    is_certain,
    nothing_exact,
    phases,
    step_at,
    step_marks,
    steps,
)
from pytracer.reading.snapshot import Snapshot


def allocated(model: Program, lost: int) -> list[int]:
    """The level before the first event that is left, and after each."""
    return [
        sum(block.size for block in moment.values() if not block.pending)
        for moment in model.moments[lost:]
    ]


@given(operations, st.integers(0, 200))
def test_steps_equal_the_model(program: list[tuple[str, int, int]], lost: int) -> None:
    # GIVEN a program, and a ring that has lost some of its first events
    model = run(program)
    lost = min(lost, len(model.trace))
    snapshot, levels, trace = model.snapshot(lost), allocated(model, lost), model.trace[lost:]

    # WHEN its steps are asked for
    marks = step_marks(snapshot, 1)
    history = replay(snapshot, 1)
    found = steps(snapshot, 1, history, marks)

    reserved = history.levels.reserved_bytes.tolist()
    # THEN every event is in the step that had begun last, and the numbers are those of its events
    of_event = [
        max((step for step, first in model.marks if first <= lost + i), default=None)
        for i in range(len(trace))
    ]
    assert [step_at(marks, i) for i in range(len(trace))] == of_event
    expected = list(dict.fromkeys(of_event)) if any(of_event) else []
    assert [step.step for step in found] == expected
    for step in found:
        events = [i for i, number in enumerate(of_event) if number == step.step]
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
            allocations=count["alloc"],
            allocations_bytes=sum(
                event["size"] for event in trace[first:end] if event["action"] == "alloc"
            ),
            device_allocs=count["segment_alloc"],
            device_frees=count["segment_free"],
        )
    # AND without a history the counts are there all the same
    for one, other in zip(steps(snapshot, 1, None, marks), found, strict=True):
        assert one.peak_bytes is one.begin_bytes is one.end_bytes is one.peak_event is None
        assert one.peak_reserved_bytes is one.fragmentation_bytes is None
        assert (one.allocations, one.first_event) == (other.allocations, other.first_event)


@given(operations, st.integers(0, 200))
def test_phases_equal_the_model(program: list[tuple[str, int, int]], lost: int) -> None:
    # GIVEN a program, and a ring that has lost some of its first events
    model = run(program)
    lost = min(lost, len(model.trace))
    snapshot, levels, trace = model.snapshot(lost), allocated(model, lost), model.trace[lost:]
    peak = levels.index(max(levels))

    # WHEN its phases are asked for
    history = replay(snapshot, 1)
    found = phases(snapshot, 1, history, peak)
    reserved = history.levels.reserved_bytes.tolist()

    # THEN the blocks and events are those of each; of blocks before the trace it is not known
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
            allocations=len(allocs),
            allocations_bytes=sum(trace[i]["size"] for i in allocs),
        )
    held_bytes = [phase.at_peak_bytes for phase in found]
    assert held_bytes == sorted(held_bytes, key=lambda count: -(count or 0))


def test_a_phase_that_occurs_again() -> None:
    # GIVEN two phases that take turns, one of which is fullest the second time
    model = run(
        [("enter", 1, 0), ("alloc", 10, 0), ("enter", 2, 0), ("alloc", 5, 0)]
        + [("enter", 1, 0), ("alloc", 3, 0), ("free", 0, 0), ("complete", 0, 0)]
        + [("enter", 2, 0), ("alloc", 2, 0)]
    )
    snapshot = model.snapshot()
    # WHEN they are asked for, THEN each has its own highest level
    found = phases(snapshot, 1, replay(snapshot, 1), 6)
    peaks = {phase.phase: (phase.peak_bytes, phase.peak_event) for phase in found}
    assert peaks == {"rollout": (18, 5), "update": (15, 3)}


def test_phases_without_a_history() -> None:
    # GIVEN a trace whose levels are not known
    model = run([("enter", 1, 0), ("alloc", 10, 0), ("enter", 2, 0), ("alloc", 5, 0)])
    # WHEN its phases are asked for, THEN what they held is not told, and the rest is
    assert phases(model.snapshot(), 1, None, None) == [
        Phase("rollout", None, None, None, None, None, None, [], 1, 10),
        Phase("update", None, None, None, None, None, None, [], 1, 5),
    ]


def of_two_steps() -> tuple[Snapshot, History]:
    """10 bytes of a rollout come and go; a step begins at event 5; 30 of an update come."""
    snapshot = run(
        [("step", 0, 0), ("enter", 1, 0), ("alloc", 10, 0), ("free", 0, 0), ("complete", 0, 0)]
        + [("step", 0, 0), ("enter", 2, 0), ("alloc", 30, 0)]
    ).snapshot()
    return snapshot, replay(snapshot, 1)


def test_what_of_steps_and_phases_is_a_bound_is_said() -> None:
    # GIVEN a history whose first entries are not exact, when 20 were reserved
    snapshot, history = of_two_steps()
    history = replace(history, exact_from=2)
    history.levels.reserved_bytes[:2] = 20

    # WHEN steps are asked for, THEN that in which they are says so, and the other does not
    first, second = steps(snapshot, 1, history, step_marks(snapshot, 1))
    assert first.inexact == ["begin_bytes", "peak_bytes"]
    assert second.inexact == []
    # AND a peak of all that was reserved then cannot have been higher
    history.levels.reserved_bytes[:2] = 10
    assert steps(snapshot, 1, history, step_marks(snapshot, 1))[0].inexact == ["begin_bytes"]

    # AND so it is with phases: what was before the first event of one does not count
    history.levels.reserved_bytes[:2] = 1000
    inexact = {phase.phase: phase.inexact for phase in phases(snapshot, 1, history, 1)}
    assert inexact == {
        "rollout": ["peak_bytes", "at_peak_bytes"],
        "update": ["at_peak_bytes"],
    }


def test_an_end_and_a_fragmentation_that_are_not_exact() -> None:
    # GIVEN a history that is exact within the second step
    snapshot, history = of_two_steps()
    history = replace(history, exact_from=6)
    # WHEN steps are asked for, THEN all of the first is not, but for what was reserved, and the
    # peak, which had all of that; of the second the beginning
    first, second = steps(snapshot, 1, history, step_marks(snapshot, 1))
    assert first.inexact == ["begin_bytes", "end_bytes", "fragmentation_bytes"]
    assert second.inexact == ["begin_bytes"]
    # AND of phases the one that had its peak then
    rollout, update = phases(snapshot, 1, history, 7)[::-1]
    assert (rollout.phase, rollout.inexact) == ("rollout", ["fragmentation_bytes"])
    assert (update.phase, update.inexact) == ("update", [])


@pytest.mark.parametrize("window", [None, 3, {}, {"phase": None}, {"phase": ["rollout"]}])
def test_a_file_of_all_phases(window: object) -> None:
    content = run([("alloc", 10, 0)]).content()
    content["pytracer"]["window"] = window
    assert only_phase(plain_reader.convert(content)) is None


def test_a_file_of_one_phase() -> None:
    # GIVEN the file of a phase
    content = run([("alloc", 10, 0)]).content()
    content["pytracer"]["window"] = {"phase": "outer/rollout"}
    snapshot = plain_reader.convert(content)
    assert only_phase(snapshot) == "outer/rollout"
    # WHEN nothing is taken for exact, THEN no peak is certain, not even one of all that is reserved
    history = replay(snapshot, 1)
    assert is_certain(history, 2)
    history = nothing_exact(history)
    assert not is_certain(history, 2)
    # AND no level is exact, nor a bound
    (step,) = steps(snapshot, 1, history, [(1, 0)])
    assert step.inexact == [
        *("begin_bytes", "end_bytes"),
        *("peak_bytes", "fragmentation_bytes", "peak_reserved_bytes"),
    ]


def profiled(*names: str) -> dict[str, Any]:
    """Of torch's own recorder, with annotations at the second and the fourth event."""
    content = run([("alloc", 10, 0), ("alloc", 5, 0), ("alloc", 1, 0)]).content()
    del content["pytracer"]
    content["external_annotations"] = [
        {"name": name, "stage": stage, "device": 1, "time_us": FIRST_TIME_US + 2 * i + 1}
        for i, name in enumerate(names)
        for stage in ("START", "END")
    ]
    return content


def test_steps_of_torchs_profiler() -> None:
    # GIVEN a file of torch's recorder that noted the profiler's steps, and other things
    snapshot = plain_reader.convert(profiled("ProfilerStep#7", "ProfilerStep#8", "Optimizer.step"))
    # WHEN its steps are asked for, THEN they are those of the profiler
    marks = step_marks(snapshot, 1)
    assert marks == [(7, 1), (8, 3)]
    found = steps(snapshot, 1, None, marks)
    assert [(s.step, s.first_event, s.allocations) for s in found] == [
        (None, 0, 0),
        (7, 1, 1),
        (8, 3, 2),
    ]
    # AND whether the first is whole is not known
    assert [s.begins_in_trace for s in found] == [False, True, True]


@pytest.mark.parametrize("untimed", [slice(None), slice(1)])
def test_a_file_without_all_times_has_no_profilers_steps(untimed: slice) -> None:
    content = profiled("ProfilerStep#7")
    for event in content["device_traces"][1][untimed]:
        del event["time_us"]
    assert step_marks(plain_reader.convert(content), 1) == []


@pytest.mark.parametrize(
    "told",
    [None, 3, "steps", [3], [[1]], [["1", 0]], [[1, -1]], [[1, 99]], [[1, None]], [[True, 0]], {}],
)
def test_steps_that_make_no_sense_are_none(told: object) -> None:
    # GIVEN a file that says of steps what pytracer does not write
    content = run([("alloc", 10, 0)]).content()
    content["pytracer"]["devices"][0]["steps"] = told
    # WHEN they are asked for, THEN there are none
    snapshot = plain_reader.convert(content)
    assert step_marks(snapshot, 1) == []
    assert steps(snapshot, 1, None, []) == []


@pytest.mark.parametrize("devices", [None, 3, [3], [{}], {"index": 1}, [{"index": "1"}]])
def test_devices_that_make_no_sense_are_none(devices: object) -> None:
    content = run([("alloc", 10, 0)]).content()
    content["pytracer"]["devices"] = devices
    assert step_marks(plain_reader.convert(content), 1) == []
