"""The steps and phases of a snapshot as spans of time."""

import pytest
from synthetic_snapshots import Program

from pytracer.reading.steps import spans


def test_spans_nest_overlap_and_are_cut() -> None:
    # GIVEN phases that nest, overlap, and are cut by the ends of the file
    program = Program()
    for name, stage in (
        *[("step 1", "START"), ("lost", "END"), ("a%d", "START"), ("b", "START")],
        *[("b", "END"), ("a%d", "END"), ("c", "START"), ("d", "START"), ("c", "END")],
        *[("step 1", "END"), ("step 2", "START"), ("b", "START")],
    ):
        program.annotate(name, stage)
        program.alloc(512)
    # THEN each is a span: one without an end lasts to the last annotation, and one without a
    # beginning starts at the first
    times = [annotation["time_us"] for annotation in program.annotations]
    found = spans(program.snapshot())
    assert {(span.name, span.begin_us, span.end_us) for span in found} == {
        ("step 1", times[0], times[9]),
        ("step 2", times[10], times[11]),
        ("lost", times[0], times[1]),
        ("a%d", times[2], times[5]),
        ("b", times[3], times[4]),
        ("c", times[6], times[8]),
        ("d", times[7], times[11]),
        ("b", times[11], times[11]),
    }
    assert {span.name for span in found if span.is_step} == {"step 1", "step 2"}


@pytest.mark.parametrize("key", ["name", "stage", "time_us"])
def test_invalid_annotations(key: str) -> None:
    # GIVEN a file of another recorder, in which only some annotations have the known form
    program = Program()
    program.alloc(512)
    good = {"name": "x", "stage": "START", "time_us": 5}
    program.annotations = [
        *(good | {"device": device} for device in (0, None, [0])),
        *({**good, key: odd} for odd in (None, [], -1, True)),
        {name: value for name, value in good.items() if name != key},
        *(5, "x", None),
    ]
    # THEN only those are spans
    assert [(span.name, span.begin_us) for span in spans(program.snapshot())] == [("x", 5)] * 3
