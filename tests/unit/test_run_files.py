"""What a run's snapshots tell: made-up files of several processes."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from made_snapshots import Program, about

from pytracer.run_files import read_run

MIB = 1 << 20
STATISTICS = {
    "peak_reserved_bytes": 100 * MIB,
    "peak_allocated_bytes": 60 * MIB,
    "device_allocs": 40,
    "device_frees": 3,
    "retries": 2,
    "ooms": 1,
}


def write(path: Path, program: Program | None = None, **told: Any) -> Path:
    """A file of one device, whose statistics `told` changes; `about` is what it tells beside."""
    program = program or Program()
    beside = told.pop("about", {})
    device = {"index": 0, "is_cpu": False, "overwritten": 0, "total_bytes": 1 << 34}
    device["statistics"] = {**STATISTICS, **told}
    program.about = about(**{"devices": [device], **beside})
    return program.write(path)


def test_each_number_is_of_the_device_that_has_most(tmp_path: Path) -> None:
    # GIVEN two ranks, and an earlier file of one, whose program resets the peaks
    write(tmp_path / "exit" / "torch_memory_rank0_pid1.pickle", about={"pid": 1})
    write(
        tmp_path / "exit" / "torch_memory_rank1_pid2.pickle",
        **{"about": {"pid": 2}, "peak_reserved_bytes": 10 * MIB, "peak_allocated_bytes": 9 * MIB},
        retries=7,
    )
    write(
        tmp_path / "oom_1" / "torch_memory_oom_rank1_pid2.pickle",
        **{"about": {"pid": 2}, "peak_reserved_bytes": 90 * MIB, "peak_allocated_bytes": 80 * MIB},
    )
    told = read_run(tmp_path)
    # THEN a device's peaks are those of all its files; fragmentation is of one device
    assert told.numbers == {
        "peak_reserved_bytes": 100 * MIB,
        "peak_allocated_bytes": 80 * MIB,
        "fragmentation_bytes": 40 * MIB,
        "device_allocs": 40,
        "retries": 7,
        "ooms": 1,
    }
    assert len(told.paths) == 3
    assert told.environment is not None
    assert (told.environment["torch"], told.environment["device_bytes"]) == ("2.13.0", [1 << 34])


def test_statistics_that_were_reset(tmp_path: Path) -> None:
    # GIVEN a trace that shows more than the statistics tell
    program = Program()
    blocks = [program.alloc(MIB) for _ in range(6)]
    for block in blocks:
        program.free(block)
    program.out_of_memory(1 << 40, 1 << 30)
    path = tmp_path / "a.pickle"
    write(path, program, **dict.fromkeys(STATISTICS, 0))
    # THEN it counts
    numbers = read_run(tmp_path).numbers
    assert numbers["peak_allocated_bytes"] == 6 * MIB
    assert numbers["peak_reserved_bytes"] == 6 * MIB
    assert (numbers["device_allocs"], numbers["ooms"], numbers["retries"]) == (3, 1, 0)
    # AND where it shows less, the statistics do
    write(path, program)
    assert read_run(tmp_path).numbers["peak_reserved_bytes"] == 100 * MIB


def steps(*durations_us: int) -> Program:
    """The last one is still open."""
    program = Program()
    program.alloc(1000)
    for number, duration_us in enumerate(durations_us, 1):
        program.annotate(f"step {number}", "START")
        program.annotate("forward", "START")
        program.at(duration_us)
        program.annotate("forward", "END")
        if number < len(durations_us):
            program.annotate(f"step {number}", "END")
    return program


@pytest.mark.parametrize(
    ("durations_us", "step_us"),
    [((900, 10, 30, 20, 5000), 20), ((900, 10, 5000), 10), ((900, 5000), None), ((), None)],
)
def test_the_median_of_whole_steps_but_the_first(
    durations_us: tuple[int, ...], step_us: int | None, tmp_path: Path
) -> None:
    write(tmp_path / "a.pickle", steps(*durations_us))
    assert read_run(tmp_path).numbers.get("step_us") == step_us


def test_steps_are_those_of_a_processs_last_file(tmp_path: Path) -> None:
    # GIVEN two files of one process, and one of another that is faster
    write(tmp_path / "a.pickle", steps(9, 50, 9), about={"written_ns": 2})
    write(tmp_path / "b.pickle", steps(9, 70, 9), about={"written_ns": 1})
    write(tmp_path / "c.pickle", steps(9, 30, 9), about={"pid": 8})
    # THEN the slowest process counts, by its last file
    assert read_run(tmp_path).numbers["step_us"] == 50


def test_settings_in_force(tmp_path: Path) -> None:
    program = Program()
    program.alloc(1000)
    program.settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    write(tmp_path / "a.pickle", program)
    write(tmp_path / "npu.pickle", about={"pid": 9})
    assert read_run(tmp_path).settings == {"expandable_segments:True"}


def test_files_that_tell_nothing(tmp_path: Path) -> None:
    # GIVEN nothing; the CPU alone; statistics that are none; others' files; damaged ones
    assert read_run(tmp_path).numbers == {}
    cpu = Program()
    cpu.about = about(
        "cpu", devices=[{"index": 0, "is_cpu": True, "overwritten": 0}], untraced="cuda: no hook"
    )
    cpu.write(tmp_path / "cpu.pickle")
    write(tmp_path / "strange.pickle", about={"devices": [{"index": 0, "statistics": [1]}, 3]})
    Program().write(tmp_path / "torchs.pickle")
    (tmp_path / "damaged.pickle").write_bytes(pickle.dumps({"segments": 1}))
    told = read_run(tmp_path)
    # THEN nothing is told, but why
    assert (told.numbers, told.environment) == ({}, None)
    assert [path.name for path in told.paths] == ["cpu.pickle", "strange.pickle", "torchs.pickle"]
    assert told.problems[0] == "cuda: no hook"
    assert "damaged.pickle" in told.problems[1]
