"""Tests of reading a run's snapshots: synthetic files of several processes."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from synthetic_snapshots import Program, file_metadata

from pytracer.experiments.run_files import read_run

MIB = 1 << 20
STATISTICS = {
    "peak_reserved_bytes": 100 * MIB,
    "peak_allocated_bytes": 60 * MIB,
    "device_allocs": 40,
    "device_frees": 3,
    "retries": 2,
    "ooms": 1,
}


def write(path: Path, program: Program | None = None, **statistics: Any) -> Path:
    """Write a file of one device, with these `statistics`; `metadata` adds keys of `pytracer`."""
    program = program or Program()
    metadata = statistics.pop("metadata", {})
    device = {"index": 0, "is_cpu": False, "overwritten": 0, "total_bytes": 1 << 34}
    device["statistics"] = {**STATISTICS, **statistics}
    program.metadata = file_metadata(**{"devices": [device], **metadata})
    return program.write(path)


def test_each_number_is_of_the_device_with_the_largest(tmp_path: Path) -> None:
    # GIVEN two ranks, and an earlier file of one of them, whose program resets the peaks
    write(tmp_path / "exit" / "torch_memory_rank0_pid1.pickle", metadata={"pid": 1})
    write(
        tmp_path / "exit" / "torch_memory_rank1_pid2.pickle",
        **{
            "metadata": {"pid": 2},
            "peak_reserved_bytes": 10 * MIB,
            "peak_allocated_bytes": 9 * MIB,
        },
        retries=7,
    )
    write(
        tmp_path / "oom_1" / "torch_memory_oom_rank1_pid2.pickle",
        **{
            "metadata": {"pid": 2},
            "peak_reserved_bytes": 90 * MIB,
            "peak_allocated_bytes": 80 * MIB,
        },
    )
    run = read_run(tmp_path)
    # THEN a device's peaks are the maxima over all of its files
    assert run.numbers == {
        "peak_reserved_bytes": 100 * MIB,
        "peak_allocated_bytes": 80 * MIB,
        "peak_unallocated_bytes": 0,
        "device_allocs": 40,
        "retries": 7,
        "ooms": 1,
    }
    assert len(run.paths) == 3
    assert run.environment is not None
    assert (run.environment["torch"], run.environment["device_bytes"]) == ("2.13.0", [1 << 34])


def test_statistics_that_were_reset(tmp_path: Path) -> None:
    # GIVEN a trace with a higher peak than the statistics
    program = Program()
    blocks = [program.alloc(MIB) for _ in range(6)]
    for block in blocks:
        program.free(block)
    program.out_of_memory(1 << 40, 1 << 30)
    path = tmp_path / "a.pickle"
    write(path, program, **dict.fromkeys(STATISTICS, 0))
    # THEN the trace is used
    numbers = read_run(tmp_path).numbers
    assert numbers["peak_allocated_bytes"] == 6 * MIB
    assert numbers["peak_reserved_bytes"] == 6 * MIB
    assert (numbers["device_allocs"], numbers["ooms"], numbers["retries"]) == (3, 1, 0)
    # AND where the trace has a lower peak, the statistics are used
    write(path, program)
    assert read_run(tmp_path).numbers["peak_reserved_bytes"] == 100 * MIB


def fragmented() -> Program:
    """Return a program that runs out of memory with less unallocated than at an earlier moment."""
    program = Program()
    blocks = [program.alloc(MIB) for _ in range(8)]  # two in each segment of 2 MiB
    for block in blocks[1:]:
        program.free(block)  # 7 MiB are cached
    program.alloc(2 * MIB)  # in another segment
    program.release_free_segments()
    program.out_of_memory(5 * MIB, MIB)
    return program


def test_unallocated_bytes_are_those_of_one_moment(tmp_path: Path) -> None:
    # GIVEN a program that ran out of memory by fragmentation, and whose two peaks are equal
    peaks = {"peak_reserved_bytes": 10 * MIB, "peak_allocated_bytes": 10 * MIB}
    write(tmp_path / "a.pickle", fragmented(), **peaks)
    numbers = read_run(tmp_path).numbers
    # THEN the peak is that of the moment with the most cached memory: not the difference of the
    # peaks, and not the moment between a new segment and its block
    assert numbers["peak_unallocated_bytes"] == 7 * MIB
    # AND the fragmented bytes at the out-of-memory are known, and the requested bytes
    oom = {name: value for name, value in numbers.items() if name.startswith("oom_")}
    assert oom == {
        "oom_unallocated_bytes": MIB,
        "oom_reserved_bytes": 4 * MIB,
        "oom_requested_bytes": 5 * MIB,
    }
    assert "lower_bounds" not in numbers
    # AND the limit is known: 4 MiB were reserved, and 1 MiB was free
    assert numbers["limit_bytes"] == 5 * MIB


def test_an_out_of_memory_that_the_last_file_has_lost(tmp_path: Path) -> None:
    # GIVEN a file of an out-of-memory, and a later file without it
    write(tmp_path / "oom.pickle", fragmented(), metadata={"written_ns": 1})
    write(tmp_path / "exit.pickle", metadata={"written_ns": 2})
    # THEN the first file is used
    assert read_run(tmp_path).numbers["oom_unallocated_bytes"] == MIB


@pytest.mark.parametrize("lost", ["overwritten", "older", "phase"])
def test_a_file_without_the_complete_trace_gives_a_bound(lost: str, tmp_path: Path) -> None:
    # GIVEN a ring that overwrote events, a recording that began late, or a file of one phase
    program = fragmented()
    metadata: dict[str, Any] = {}
    if lost == "overwritten":
        metadata["devices"] = [
            {"index": 0, "is_cpu": False, "overwritten": 5, "statistics": STATISTICS}
        ]
    if lost == "older":
        program.events = program.events[4:]
    if lost == "phase":
        metadata["window"] = {"phase": "forward"}
    write(tmp_path / "a.pickle", program, metadata=metadata)
    numbers = read_run(tmp_path).numbers
    # THEN the peak is a lower bound, or unknown
    if lost == "phase":
        assert "peak_unallocated_bytes" not in numbers
        assert "oom_unallocated_bytes" not in numbers
    else:
        assert numbers["lower_bounds"] == ["peak_unallocated_bytes"]
        assert numbers["peak_unallocated_bytes"] == 7 * MIB
        assert numbers["oom_unallocated_bytes"] == MIB


@pytest.mark.parametrize("is_kept", [False, True])
def test_an_unknown_padding_gives_a_bound(is_kept: bool, tmp_path: Path) -> None:
    # GIVEN a file of an NPU with one block whose size would differ with padding, and is in the file
    # or not
    program = Program()
    block = program.alloc(1024)
    if not is_kept:
        program.free(block)
    write(tmp_path / "a.pickle", program, metadata={"backends": ["npu"]})
    # THEN the peak is a lower bound, unless the block in the file shows that there is no padding
    lower_bounds = read_run(tmp_path).numbers.get("lower_bounds", [])
    assert lower_bounds == ([] if is_kept else ["peak_unallocated_bytes"])


def steps(*durations_us: int) -> Program:
    """Return a program with steps of these durations; the last step has not ended."""
    program = Program()
    program.alloc(1000)
    for number, duration_us in enumerate(durations_us, 1):
        program.annotate(f"step {number}", "START")
        program.annotate("forward", "START")
        program.advance(duration_us)
        program.annotate("forward", "END")
        if number < len(durations_us):
            program.annotate(f"step {number}", "END")
    return program


@pytest.mark.parametrize(
    ("durations_us", "step_us"),
    [((900, 10, 30, 20, 5000), 20), ((900, 10, 5000), 10), ((900, 5000), None), ((), None)],
)
def test_the_median_of_complete_steps_without_the_first(
    durations_us: tuple[int, ...], step_us: int | None, tmp_path: Path
) -> None:
    write(tmp_path / "a.pickle", steps(*durations_us))
    assert read_run(tmp_path).numbers.get("step_us") == step_us


def test_steps_are_those_of_a_processs_last_file(tmp_path: Path) -> None:
    # GIVEN two files of one process, and one file of a faster process
    write(tmp_path / "a.pickle", steps(9, 50, 9), metadata={"written_ns": 2})
    write(tmp_path / "b.pickle", steps(9, 70, 9), metadata={"written_ns": 1})
    write(tmp_path / "c.pickle", steps(9, 30, 9), metadata={"pid": 8})
    # THEN the last file of the slowest process is used
    assert read_run(tmp_path).numbers["step_us"] == 50


def test_settings_in_force(tmp_path: Path) -> None:
    program = Program()
    program.alloc(1000)
    program.settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    write(tmp_path / "a.pickle", program)
    write(tmp_path / "npu.pickle", metadata={"pid": 9})
    assert read_run(tmp_path).settings == {"expandable_segments:True"}


def test_files_without_numbers(tmp_path: Path) -> None:
    # GIVEN no file, only the CPU, invalid statistics, files of other recorders, and damaged files
    assert read_run(tmp_path).numbers == {}
    cpu = Program()
    cpu.metadata = file_metadata(
        "cpu", devices=[{"index": 0, "is_cpu": True, "overwritten": 0}], untraced="cuda: no hook"
    )
    cpu.write(tmp_path / "cpu.pickle")
    write(tmp_path / "strange.pickle", metadata={"devices": [{"index": 0, "statistics": [1]}, 3]})
    Program().write(tmp_path / "torchs.pickle")
    (tmp_path / "damaged.pickle").write_bytes(pickle.dumps({"segments": 1}))
    run = read_run(tmp_path)
    # THEN there are no numbers, but the reasons are listed
    assert (run.numbers, run.environment) == ({}, None)
    assert [path.name for path in run.paths] == ["cpu.pickle", "strange.pickle", "torchs.pickle"]
    assert run.problems[0] == "cuda: no hook"
    assert "damaged.pickle" in run.problems[1]
