"""A leak in one of several files is found, and files of different processes are not compared."""

from pathlib import Path

import pytest
import torch
from leaking_programs import LINE, MODEL, SIZE, keep, recorded
from synthetic_snapshots import Program, file_metadata

import pytracer
from pytracer.analysis import find_leaks
from pytracer.reading import load


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


@pytest.mark.parametrize("has_metadata", [False, True])
def test_files_of_ranks_are_not_compared(has_metadata: bool) -> None:
    # GIVEN nine ranks of one program, each of which holds one block more than the one before, in
    # containers of one host, which have the same process ids
    snapshots = []
    for rank in range(9):
        program = Program()
        for _ in range(rank + 1):
            program.alloc(SIZE, LINE)
        if has_metadata:
            program.metadata = file_metadata(rank=rank)
        name = "" if has_metadata else f"_rank_{rank}"
        snapshots.append(program.snapshot(f"out/snapshot{name}.pickle"))
    # THEN no rank leaks because another one holds more
    devices = find_leaks(*snapshots).devices
    assert [(device.verdict, device.files) for device in devices] == [("unknown", 1)] * 9


@pytest.mark.parametrize("is_complete", [True, False], ids=["complete", "ends early"])
def test_the_last_step_of_a_window_is_observed_if_it_is_complete(
    is_complete: bool, tmp_path: Path
) -> None:
    # GIVEN a file of the steps 2 to 11, the last of which the program may not finish
    kept = []
    with pytracer.Tracer(
        tmp_path, device="cpu", steps=range(2, 12), memory_snapshot_num_steps=10
    ) as tracer:
        for _ in range(10 + is_complete):
            kept.append(torch.empty(1000))
            tracer.step()
        kept.append(torch.empty(1000))
    # WHEN it is searched THEN all complete steps are observed
    (path,) = tmp_path.glob("steps2-11/*.pickle")
    (device,) = find_leaks(load(path)).devices
    assert (device.first, device.last) == (2, 11 if is_complete else 10)
    assert device.verdict == "leak"
