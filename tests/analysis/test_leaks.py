"""Test the search for leaks: its statistics, and programs of random parts as their own oracle."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import generated_leaks
import numpy as np
import pytest
from generated_leaks import Part
from synthetic_snapshots import Program, file_metadata

from pytracer.analysis import explain, find_leaks
from pytracer.analysis.answer_words import answer_of
from pytracer.analysis.leaks.growth import steadiness, theil_sen
from pytracer.analysis.leaks.results import DeviceLeaks, Growth, answer, leaks_of
from pytracer.reading import load

SEEDS = 60


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
    ("growths", "is_steady", "is_open"),
    [
        (range(60), True, False),
        (range(6, 60, 7), True, False),
        (range(30, 60), True, False),
        (range(10), False, False),  # stopped
        (range(52), False, False),  # stopped lately
        ([0, 1, 2, 4, 7, 12, 20, 33, 54], False, False),  # slows down
        ([19, 39, 59], False, True),  # too rare
        ([3, 50], False, False),
    ],
)
def test_steady_growth(growths: list[int], is_steady: bool, is_open: bool) -> None:
    found = steadiness(np.array(growths), 60, 60)
    assert (found.is_steady, found.is_open) == (is_steady, is_open)


SIZE = 1 << 16
LINE = ("/home/me/train.py", "train_step", 41)
OTHER = ("/home/me/train.py", "evaluate", 55)
MODEL = ("/home/me/train.py", "make_model", 9)


def observed(step: Callable[[Program, int], object], **options: Any) -> DeviceLeaks:
    """Return the result for a program, recorded as `recorded` does."""
    (device,) = find_leaks(recorded(step, **options).snapshot()).devices
    return device


def recorded(
    step: Callable[[Program, int], object],
    *,
    first: int = 1,
    steps: int = 60,
    begin: Callable[[Program], object] = lambda program: None,
    end: Callable[[Program], object] = lambda program: None,
) -> Program:
    """Return a program whose file has the steps from `first` to `steps`.

    Args:
        step: Allocates and frees in each step.
        first: The first step in the file; if it is not 1, the ring overwrote those before.
        steps: The last step.
        begin, end: Called before the first step of the file, and after the last step.
    """
    program, boundaries = Program(), []
    begin(program)
    for number in range(first, steps + 1):
        boundaries.append([number, len(program.events)])
        program.free(program.alloc(512, OTHER))
        step(program, number)
    boundaries.append([steps + 1, len(program.events)])
    program.free(program.alloc(512, OTHER))
    end(program)
    program.metadata = file_metadata(current_step=steps + 1)
    lost = 0 if first == 1 else 1000
    program.metadata["devices"][0] |= {"steps": boundaries, "overwritten": lost}
    return program


def keep(program: Program, number: int) -> None:
    program.alloc(SIZE, LINE)


def test_memory_released_after_the_last_step() -> None:
    # GIVEN memory that grows, next to a model
    kept: list[int] = []
    model: list[int] = []

    def begin(program: Program) -> None:
        model.append(program.alloc(1 << 20, MODEL))

    def step(program: Program, number: int) -> None:
        kept.append(program.alloc(SIZE, LINE))

    def end(program: Program) -> None:
        for address in kept:
            program.free(address)

    # WHEN it is released after the last step, and the model is not
    device = observed(step, begin=begin, end=end)
    # THEN it may be a buffer
    assert device.verdict == "unknown"
    assert device.reason.startswith("it was released after the last step")
    # AND if the end of the program releases the model too, it is a leak
    kept.clear()

    def end_of_program(program: Program) -> None:
        for address in (*kept, model[-1]):
            program.free(address)

    assert observed(step, begin=begin, end=end_of_program).verdict == "leak"


@pytest.mark.parametrize(
    ("category", "rule", "name", "kept_by"),
    [
        ("optimizer_state", "optimizer", "exp_avg of layers.{}.weight", None),
        ("gradient", "grad", "grad of layers.{}.weight", None),
        ("workspace", "cublas", "cuBLAS workspace", ""),
        ("parameter", "module", "adapters.{}.weight", "the model's adapters.[…].weight"),
        ("buffer", "module", "memories.{}", "the model's memories.[…]"),
    ],
)
def test_growth_of_an_owner(category: str, rule: str, name: str, kept_by: str | None) -> None:
    # GIVEN memory that grows, and that has an owner at the end: gradients and states come late, but
    # a program that makes streams without end has ever more workspaces, and a model can grow
    def step(program: Program, number: int) -> None:
        program.own(program.alloc(SIZE, LINE), category, rule, name.format(number))

    device = observed(step)
    assert device.verdict == ("none" if kept_by is None else "leak")
    # AND the parameters are named
    assert (f"kept by {kept_by}." in answer(device)) == bool(kept_by)


class ReplacedParameters:
    """A model of 80 parameters, of which each step replaces another one, as weights are synced."""

    def __init__(self) -> None:
        self._parameters: list[int] = []

    def begin(self, program: Program) -> None:
        self._parameters = [program.alloc(SIZE, MODEL) for _ in range(80)]

    def replace(self, program: Program, number: int, line: Any) -> None:
        program.free(self._parameters[number])
        self._parameters[number] = program.alloc(SIZE, line)

    def end(self, program: Program) -> None:
        for number, address in enumerate(self._parameters):
            program.own(address, "parameter", "module", f"layers.{number}.weight")


def test_parameters_that_are_replaced_by_turns() -> None:
    model = ReplacedParameters()
    # WHEN each step replaces one THEN the model does not grow
    device = observed(lambda *now: model.replace(*now, LINE), begin=model.begin, end=model.end)
    assert device.verdict == "none"


@pytest.mark.parametrize("verdict", ["none", "leak"])
def test_a_collection_of_modules(verdict: str) -> None:
    # GIVEN modules that are made in each step, of which the last 20 are kept, or all
    kept: list[int] = []

    def step(program: Program, number: int) -> None:
        kept.append(program.alloc(SIZE, LINE))
        if verdict == "none" and len(kept) > 20:
            program.free(kept.pop(0))

    def end(program: Program) -> None:
        for number, address in enumerate(kept):
            program.own(address, "parameter", "module", f"Linear#{number}.weight")

    # THEN only the second is a leak
    assert observed(step, end=end).verdict == verdict


def test_a_buffer_that_is_replaced_by_larger_ones() -> None:
    kept: list[int] = []

    def step(program: Program, number: int) -> None:
        kept.append(program.alloc(number * 4096, LINE))
        if len(kept) > 1:
            program.free(kept[-2])

    def end(program: Program) -> None:
        program.own(kept[-1], "buffer", "module", "bank")

    device = observed(step, end=end)
    assert (device.verdict, device.growths[0].kind) == ("leak", "replaced")
    assert device.growths[0].kept_by == "the model's bank"


def test_a_leak_next_to_parameters_that_are_replaced() -> None:
    # GIVEN a list that grows, and a model of which each step replaces another parameter
    model = ReplacedParameters()

    def step(program: Program, number: int) -> None:
        model.replace(program, number, OTHER)
        program.alloc(SIZE, LINE)

    # THEN the list alone is the leak
    device = observed(step, begin=model.begin, end=model.end)
    assert device.bytes_per_step == SIZE
    (leak,) = leaks_of(device)
    assert leak.frames[0] == LINE


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
        "memory grew from 1.25 MiB to 2.562 MiB, but that of no single line kept growing"
    )


@pytest.mark.parametrize(
    ("every", "expected"), [(1, "losses[…] of main()"), (2, "losses[…] of main()"), (3, None)]
)
def test_what_keeps_a_leak(every: int, expected: str | None) -> None:
    # GIVEN memory that grows, of which a list keeps one block of a few
    def step(program: Program, number: int) -> None:
        address = program.alloc(SIZE, LINE)
        if number % every == 0:
            program.hold(address, f"losses[{number}] of main()")

    # THEN the answer names the list if it keeps at least half of the bytes
    device = observed(step)
    assert device.growths[0].kept_by == expected
    assert ("train_step, kept by losses[…] of main()." in answer(device)) == (expected is not None)

    # AND where lines leak, what keeps at least half of their memory
    def several(program: Program, number: int) -> None:
        step(program, number)
        program.alloc(SIZE, MODEL)
        program.hold(program.alloc(4 * SIZE, OTHER), "x of main()")

    assert "2 other lines, kept by x of main()." in answer(observed(several))


@pytest.mark.parametrize(("has_holders", "expected"), [(True, SIZE / 2), (False, SIZE)])
def test_the_rate_of_a_line_that_serves_a_bounded_cache_too(
    has_holders: bool, expected: float
) -> None:
    # GIVEN a line whose blocks are in a cache of 20 steps, and every second one in a list for ever
    blocks: list[int] = []

    def step(program: Program, number: int) -> None:
        blocks.append(program.alloc(SIZE, LINE))
        if len(blocks) > 20 and len(blocks) % 2:
            program.free(blocks[len(blocks) - 21])

    def end(program: Program) -> None:
        for number, address in enumerate(blocks):
            if has_holders and (number % 2 or number >= len(blocks) - 20):
                name = "kept" if number % 2 else "cache"
                program.hold(address, f"{name}[{number}] of main()")

    # THEN the growth is that of the list, if it is known
    device = observed(step, steps=30, end=end)
    assert device.verdict == "leak"
    assert device.bytes_per_step == expected


@pytest.mark.parametrize(
    ("free_bytes", "kept_bytes", "is_harmless"),
    [(10**9, 512, True), (4 * 10**8, 512, False), (None, 512, True), (None, 1024, False)],
)
def test_a_leak_that_will_never_matter(
    free_bytes: int | None, kept_bytes: int, is_harmless: bool
) -> None:
    # GIVEN a leak, and memory for more or fewer than a million further steps
    program = recorded(lambda program, number: program.alloc(kept_bytes, LINE))
    if free_bytes is not None:
        program.metadata["devices"][0] |= {"free_bytes": free_bytes, "reserved_bytes": 0}
    snapshot = program.snapshot()
    (device,) = find_leaks(snapshot).devices
    # THEN it is a leak all the same, but the file has no problem
    assert device.verdict == "leak"
    assert device.is_harmless == is_harmless
    assert answer(device).startswith("Harmless leak: " if is_harmless else "Leak: ")
    shown = answer_of(explain(snapshot)[0])
    assert shown.kind == ("none" if is_harmless else "leak")
    assert is_harmless == any("harmless: " in text for text in shown.texts("leak"))


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


def test_growth_in_the_last_steps_only() -> None:
    def step(program: Program, number: int) -> None:
        if number > 50:
            keep(program, number)

    device = observed(step)
    assert (device.verdict, device.reason) == (
        "unknown",
        "it has grown for only about 10 of 60 steps",
    )


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
    assert "older than the file, were released" in device.reason


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
        "several of its callers grow, and each of them too rarely",
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


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_leak_of_one_file_is_not_hidden_by_another(order: tuple[int, int]) -> None:
    # GIVEN a long file without a leak, and a shorter one with a leak, of a process that is unknown
    files = [
        recorded(lambda *_: None).snapshot("a.pickle"),
        recorded(keep, steps=30).snapshot("b.pickle"),
    ]
    # WHEN they are searched together
    report = find_leaks(*(files[i] for i in order))
    # THEN the leak is found
    (device,) = report.devices
    assert (report.verdict, device.verdict, device.observed) == ("leak", "leak", 30)


MIB = 1 << 20


def training(program: Program, number: int) -> None:
    """Keep 1 MiB of a step, whose peak is 9 MiB higher; in each fifth step 12 MiB."""
    program.alloc(MIB, LINE)
    for address in [program.alloc(MIB, OTHER) for _ in range(9 + 3 * (number % 5 == 0))]:
        program.free(address)


def step_that_runs_out(limit_bytes: int) -> int:
    """Run `training` without end, and return the first step whose peak is above the limit."""
    held = 0
    for number in range(1, 10_000):
        held += MIB
        if held + (9 + 3 * (number % 5 == 0)) * MIB > limit_bytes:
            return number
    raise AssertionError


@pytest.mark.parametrize(
    ("total", "others", "fraction"), [(100, 0, 1.0), (100, 39, 1.0), (100, 0, 0.5), (100, 60, 0.5)]
)
def test_the_step_in_which_memory_runs_out(total: int, others: int, fraction: float) -> None:
    # GIVEN a device, of which others hold a part and of which the process may use a fraction
    limit = min(total - others, int(total * fraction)) * MIB
    program = recorded(training, steps=20)
    reserved = sum(segment["total_size"] for segment in program.content()["segments"])
    program.metadata["devices"][0] |= {
        "total_bytes": total * MIB,
        "free_bytes": (total - others) * MIB - reserved,
        "reserved_bytes": reserved,
        "statistics": {"memory_fraction": fraction},
    }
    # WHEN the recording ends long before memory runs out
    (device,) = find_leaks(program.snapshot()).devices
    # THEN the answer names the step whose peak is above the limit, or one of the same five
    expected = step_that_runs_out(limit)
    assert device.exhausted_step is not None
    assert expected - 5 < device.exhausted_step <= expected
    assert f"Memory would run out at about step {device.exhausted_step}." in answer(device)


def test_the_step_in_which_memory_ran_out() -> None:
    # GIVEN a program that ran out of memory in step 61, and whose device has much free memory
    program = recorded(keep, end=lambda program: program.out_of_memory(1 << 40, 1 << 36))
    (device,) = find_leaks(program.snapshot()).devices
    # THEN no later step is named
    assert (device.verdict, device.oom_step, device.exhausted_step) == ("leak", 61, None)
    assert answer(device).endswith(" Memory ran out in step 61.")
    # AND an out-of-memory that the program survived is no end: here, in step 1
    program = recorded(keep, begin=lambda program: program.out_of_memory(1 << 40, 1 << 36))
    (device,) = find_leaks(program.snapshot()).devices
    assert (device.verdict, device.oom_step) == ("leak", None)
    assert device.exhausted_step is not None


def test_a_leak_of_later_steps_is_not_hidden_by_one_of_earlier_steps() -> None:
    # GIVEN a process with a leak in steps 1 to 60, and another one in steps 61 to 90
    early = recorded(keep)
    late = recorded(lambda program, _: program.alloc(2 * SIZE, MODEL), first=61, steps=90)
    for written_ns, program in enumerate((early, late)):
        program.metadata["written_ns"] = written_ns
    files = early.snapshot("a.pickle"), late.snapshot("b.pickle")
    # WHEN the files are searched in any order
    for order in (files, files[::-1]):
        (device,) = find_leaks(*order).devices
        # THEN both are found, and the answer is of the last file
        found = [(growth.frames[0].line, growth.bytes_per_step) for growth in device.growths]
        assert found == [(MODEL[2], 2 * SIZE), (LINE[2], SIZE)]
        assert (device.last, device.bytes_per_step) == (90, 3 * SIZE)


def test_files_of_other_programs_are_not_compared() -> None:
    # GIVEN ten files without a process, whose blocks have nothing in common
    snapshots = []
    for number in range(10):
        program = Program()
        for _ in range(number + 1):
            program.alloc(SIZE + 512 * number, LINE)
        snapshots.append(program.snapshot(f"{number}.pickle"))
    (device,) = find_leaks(*snapshots).devices
    assert (device.verdict, device.files) == ("unknown", 1)


def test_files_of_ranks_without_metadata_are_not_compared() -> None:
    # GIVEN nine ranks of one program, each of which holds one block more than the one before
    snapshots = []
    for rank in range(9):
        program = Program()
        for _ in range(rank + 1):
            program.alloc(SIZE, LINE)
        snapshots.append(program.snapshot(f"out/snapshot_rank_{rank}.pickle"))
    # THEN no rank leaks because another one holds more
    devices = find_leaks(*snapshots).devices
    assert [(device.verdict, device.files) for device in devices] == [("unknown", 1)] * 9


def part_of(growth: Growth, program: generated_leaks.Program) -> Part:
    """Return the part whose line is among the frames of a growth."""
    (part,) = (
        part
        for part in program.parts
        if any(
            Path(frame.filename).name == "generated_leaks.py" and frame.line in part.lines
            for frame in growth.frames
        )
    )
    return part


def search(program: generated_leaks.Program) -> tuple[DeviceLeaks, list[Part], list[Part]]:
    """Return the result, and the parts that are accused and in doubt."""
    (device,) = find_leaks(load(program.path)).devices
    accused = [part_of(growth, program) for growth in device.growths if growth.verdict == "leak"]
    doubted = [part_of(growth, program) for growth in device.growths if growth.verdict != "leak"]
    return device, accused, doubted


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_programs(seed: int, tmp_path: Path) -> None:
    # GIVEN a program of random parts
    program = generated_leaks.run(seed, tmp_path / "a.pickle", loses_beginning=False)
    # WHEN its recording is searched
    device, accused, doubted = search(program)
    assert (device.first, device.last) == (1, program.steps)
    # THEN no part is accused that does not leak
    assert [part for part in accused if not part.is_leak] == []
    # AND those that leak often are; growth by chance may look as if it slowed down
    for part in program.parts:
        if part.is_leak and len(part.kept_in) >= 6:
            by_chance = isinstance(part, generated_leaks.Sometimes)
            assert part in accused or (by_chance and part in doubted), part
    # AND the verdict follows
    assert (device.verdict == "leak") == bool(accused)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_programs_whose_beginning_is_lost(seed: int, tmp_path: Path) -> None:
    # GIVEN a recording whose ring overwrote the first steps
    program = generated_leaks.run(1000 + seed, tmp_path / "a.pickle", loses_beginning=True)
    # THEN no part is accused that does not leak
    device, accused, doubted = search(program)
    assert [part for part in accused if not part.is_leak] == []
    # AND a leak that was observed often is accused, or doubted
    for part in program.parts:
        seen = [step for step in part.kept_in if step >= (device.first or 0)]
        if part.is_leak and len(seen) >= 6 and device.observed >= 8:
            assert part in accused or part in doubted, part
