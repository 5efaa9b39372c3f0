"""Memory leaks if it grows steadily, up to the last step, by a line that nothing else explains."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from leaking_programs import LINE, MODEL, OTHER, SIZE, keep, observed
from synthetic_snapshots import Program

from pytracer.analysis.leaks.growth import steadiness, theil_sen


def test_the_slope_is_robust() -> None:
    # GIVEN points on a line of slope 3, of which one is far off
    x = np.arange(20.0)
    y = 3 * x
    y[7] += 1e6
    # THEN the slope is that of the others, and so is the interval
    line = theil_sen(x, y)
    assert (line.least, line.slope, line.most) == (3, 3, 3)
    # AND for points that scatter, the interval has the true slope
    scattered = theil_sen(x, 3 * x + np.random.default_rng(1).normal(0, 2, 20))
    assert scattered.least < 3 < scattered.most
    assert scattered.most - scattered.least < 1


@pytest.mark.parametrize(
    ("growths", "reason", "is_open"),
    [
        (range(60), "", False),
        (range(6, 60, 7), "", False),
        (range(30, 60), "", False),
        (range(10), "it stopped growing", False),
        (range(52), "it stopped growing", False),
        ([0, 1, 2, 4, 7, 12, 20, 33, 54], "its growth slows down", False),
        ([19, 39, 59], "it grew in only 3 steps", True),
        ([3, 50], "it grew in fewer than three steps", False),
    ],
)
def test_steady_growth(growths: list[int], reason: str, is_open: bool) -> None:
    found = steadiness(np.array(growths), 60, 60)
    assert (found.reason.partition(",")[0], found.is_open) == (reason, is_open)


def test_what_is_loaded_once_does_not_grow() -> None:
    # GIVEN a large block of one step in the first half
    def step(program: Program, number: int) -> None:
        if number in (1, 20):
            program.alloc(2**20, ("/home/me/train.py", "load", number))

    assert observed(step).verdict == "none"


def test_growth_of_no_single_line() -> None:
    # GIVEN 60 lines, of which each keeps a block of one step
    def step(program: Program, number: int) -> None:
        program.alloc(SIZE, ("/home/me/train.py", "train_step", 100 + number))

    # THEN it is not said that nothing grew
    device = observed(step)
    assert device.verdict == "unknown"
    assert device.reason == (
        "memory grew from 1.25 MiB to 2.562 MiB, but no single line kept growing"
    )


def test_growth_in_the_last_steps_only() -> None:
    def step(program: Program, number: int) -> None:
        if number > 50:
            keep(program, number)

    device = observed(step)
    assert (device.verdict, device.reason) == (
        "unknown",
        "it has grown for only about 10 of 60 steps",
    )


def test_a_step_that_ran_out_of_memory_does_not_count() -> None:
    # GIVEN a program that frees the memory of each step, and runs out of memory in a step
    def step(program: Program, number: int) -> None:
        blocks = [program.alloc(SIZE, LINE) for _ in range(8)]
        for address in blocks:
            program.free(address)

    def end(program: Program) -> None:
        for _ in range(500):
            program.alloc(SIZE, LINE)
        program.out_of_memory(1 << 40, 0)

    device = observed(step, end=end)
    # THEN what the last step holds is no leak
    assert (device.verdict, device.first, device.last) == ("none", 1, 60)
    # AND neither does it hide one
    assert observed(keep, end=end).verdict == "leak"


@pytest.mark.parametrize("category", ["", "workspace"])
def test_memory_released_after_the_last_step(category: str) -> None:
    # GIVEN memory that grows, next to a model, and a larger block of cuBLAS or of the program
    kept: list[int] = []
    model: list[int] = []

    def begin(program: Program) -> None:
        model.append(program.alloc(1 << 20, MODEL))
        program.own(program.alloc(1 << 20, OTHER), category, "cublas", "cuBLAS workspace")
        program.own(program.alloc(1 << 20, OTHER), category, "cublas", "cuBLAS workspace")

    def step(program: Program, number: int) -> None:
        kept.append(program.alloc(SIZE, LINE))

    def end(program: Program) -> None:
        for address in kept:
            program.free(address)

    # WHEN it is released after the last step, and the model is not
    device = observed(step, begin=begin, end=end)
    # THEN it may be a buffer
    assert device.verdict == "unknown"
    assert device.reason.startswith("it was freed after the last step")
    # AND if the end of the program releases the model too, it is a leak: the workspace stays
    kept.clear()

    def end_of_program(program: Program) -> None:
        for address in (*kept, model[-1]):
            program.free(address)

    expected = "leak" if category else "unknown"
    assert observed(step, begin=begin, end=end_of_program).verdict == expected


def test_rare_growth_in_a_file_that_lost_its_beginning() -> None:
    def step(program: Program, number: int) -> None:
        if number % 7 == 0:
            keep(program, number)

    def begin(kept: int) -> Callable[[Program], None]:
        def allocate(program: Program) -> None:
            for _ in range(kept):
                program.alloc(SIZE, LINE, events=False)

        return allocate

    # GIVEN steps 171 to 200, with four growths: the blocks of earlier steps confirm their rate
    device = observed(step, first=171, steps=200, begin=begin(170 // 7))
    assert device.verdict == "leak"
    (growth,) = device.growths
    assert (growth.is_older, growth.blocks, growth.period_steps) == (True, 28, 7)
    # AND without these blocks, or with far more, four growths do not tell
    for kept in (0, 100):
        assert observed(step, first=171, steps=200, begin=begin(kept)).verdict == "unknown"


def test_a_buffer_in_a_file_that_lost_its_beginning() -> None:
    # GIVEN a buffer of the last 30 steps, in a file of 25: no block of the file was released
    older: list[int] = []

    def begin(program: Program) -> None:
        older.extend(program.alloc(SIZE, LINE, events=False) for _ in range(30))

    def step(program: Program, number: int) -> None:
        program.free(older.pop(0))
        keep(program, number)

    device = observed(step, first=76, steps=100, begin=begin)
    # THEN the older blocks that are released prevent an accusation
    assert device.verdict == "unknown"
    assert "allocated before the file's first event, were released" in device.reason


def test_growing_requests() -> None:
    # GIVEN a block that is replaced by a larger one in each step
    held: list[int] = []

    def step(program: Program, number: int, growth: int = 0) -> None:
        program.free(program.alloc(SIZE + growth * number, OTHER))
        held.append(program.alloc(4096 * number, LINE))
        if len(held) > 1:
            program.free(held.pop(0))

    device = observed(step)
    assert (device.verdict, device.growths[0].kind) == ("leak", "replaced")
    assert device.growths[0].bytes_per_step == 4096
    # AND if other requests grow as well, batches may grow
    held.clear()
    device = observed(partial(step, growth=4096))
    assert device.reason.startswith("the program's other allocations grow as well")


def test_many_callers_that_grow_rarely() -> None:
    # GIVEN a call site that grows in each step, each time with another caller
    def step(program: Program, number: int) -> None:
        program.alloc(SIZE, LINE, ("/home/me/train.py", "main", 100 + number))

    device = observed(step)
    assert (device.verdict, device.reason) == (
        "unknown",
        "memory grows at several of its callers, but at each too rarely to judge",
    )
    assert [frame.line for frame in device.growths[0].frames] == [41]


def test_the_set_up_is_not_part_of_a_leak() -> None:
    # GIVEN a first step in which the leaking line also made the model
    def step(program: Program, number: int) -> None:
        if number == 1:
            program.alloc(1 << 20, LINE)
        keep(program, number)

    (growth,) = observed(step).growths
    assert (growth.verdict, growth.first_step, growth.held_bytes) == ("leak", 1, 60 * SIZE)


@pytest.mark.parametrize("first", [5, 12, 20])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_memory_that_was_all_released_once(first: int, is_replaced: bool) -> None:
    # GIVEN memory that is released after some steps, and then grows for longer
    kept: list[int] = []

    def step(program: Program, number: int) -> None:
        count = number if number <= first else number - first
        if number == first + 1 or is_replaced:
            for address in kept:
                program.free(address)
            kept.clear()
        kept.append(program.alloc(4096 * (count if is_replaced else 1), LINE))

    # THEN it may be released again, however long it grows
    device = observed(step)
    assert (device.verdict, " once, " in device.reason) == ("unknown", True)


def test_memory_that_was_released_several_times() -> None:
    # GIVEN logs that each episode clears, the last of which is far longer, and a block of the line
    kept: list[int] = []

    def step(program: Program, number: int) -> None:
        if number == 1:
            program.alloc(16 * SIZE, LINE)
        for _ in range(len(kept) if number in (7, 12, 16) else 0):
            program.free(kept.pop())
        kept.append(program.alloc(SIZE, LINE))

    device = observed(step)
    assert (device.verdict, " 3 times, " in device.reason) == ("unknown", True)


def test_a_file_of_less_than_two_lives() -> None:
    # GIVEN a list that is cleared after 40 of 60 steps
    kept: list[int] = []

    def step(program: Program, number: int) -> None:
        if number == 40:
            while kept:
                program.free(kept.pop())
        kept.append(program.alloc(SIZE, LINE))

    device = observed(step)
    assert (device.verdict, device.reason.partition(";")[0]) == (
        "unknown",
        "some of its blocks were released after 39 steps",
    )
    # AND a file of 90 steps tells
    kept.clear()
    assert observed(step, steps=90).verdict != "leak"


def test_a_block_that_is_replaced_after_the_last_step() -> None:
    # GIVEN a block that each step replaces by a larger one, and that is replaced after the last one
    held: list[int] = []

    def step(program: Program, number: int) -> None:
        held.append(program.alloc(4096 * number, LINE))
        if len(held) > 1:
            program.free(held.pop(0))

    def end(program: Program, size: int = 61) -> None:
        step(program, size)
        program.own(held[-1], "parameter", "module", "tokens.weight")

    def model(program: Program) -> None:
        program.alloc(1 << 20, MODEL)

    device = observed(step, begin=model, end=end)
    # THEN it was not released, and what keeps the last one is named
    assert (device.verdict, device.bytes_per_step) == ("leak", 4096)
    assert device.growths[0].kept_by == "the model's tokens.weight"
    # AND it was, if the last one is smaller
    held.clear()
    device = observed(step, begin=model, end=partial(end, size=1))
    assert device.reason.startswith("it was freed after the last step")
