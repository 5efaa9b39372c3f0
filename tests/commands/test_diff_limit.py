"""Test `pytracer diff --fail-over`: one line, and an exit code for each of three results."""

import json
from pathlib import Path

import pytest
from commands import invoke
from synthetic_snapshots import Program, file_metadata

MIB = 1 << 20
SITE = ("/home/me/train.py", "train_step", 41)


def recording(path: Path, peak: int, end: int = 1, **device: object) -> Path:
    """Write a file whose peak and end have this many MiB."""
    program = Program()
    for _ in range(end):
        program.alloc(MIB, SITE)
    others = [program.alloc(MIB, SITE) for _ in range(peak - end)]
    for address in others:
        program.free(address)
    program.release_free_segments()
    program.metadata = file_metadata("cuda")
    program.metadata["devices"][0] |= device
    return program.write(path)


@pytest.mark.parametrize(
    ("limit", "peak", "end", "code"),
    [
        ("50%", 30, 1, 0),  # exactly the limit
        ("49.9%", 30, 1, 1),
        ("10MiB", 30, 1, 0),
        ("9.99MiB", 30, 1, 1),
        ("0%", 20, 1, 0),
        ("0%", 10, 1, 0),
        ("5%", 20, 2, 1),  # only the end grows
    ],
)
def test_the_limit_is_exact(limit: str, peak: int, end: int, code: int, tmp_path: Path) -> None:
    before = recording(tmp_path / "a.pickle", 20)
    after = recording(tmp_path / "b.pickle", peak, end)
    result = invoke("diff", before, after, "--fail-over", limit)
    assert (result.exit_code, len(result.output.splitlines())) == (code, 1)
    assert result.output.startswith(
        (f"Within the limit of {limit}: ", f"Over the limit of {limit}")
    )


def test_the_line_names_the_amount(tmp_path: Path) -> None:
    before = recording(tmp_path / "a.pickle", 20)
    after = recording(tmp_path / "b.pickle", 30)
    assert invoke("diff", before, after, "--fail-over", "5%").output == (
        "Over the limit of 5%: cuda:0: peak allocated 20 MiB → 30 MiB (+10 MiB, +50%).\n"
    )
    assert invoke("diff", after, before, "--fail-over", "5%").output == (
        "Within the limit of 5%: neither the peaks nor the end usage grew.\n"
    )
    document = json.loads(invoke("diff", before, after, "--fail-over", "5%", "--json").stdout)
    assert document["limit"] == {
        "verdict": "over",
        "reason": "Over the limit of 5%: cuda:0: peak allocated 20 MiB → 30 MiB (+10 MiB, +50%).",
        "limit": "5%",
        "amount": "peak allocated",
        "before_bytes": 20 * MIB,
        "after_bytes": 30 * MIB,
    }


def test_an_unknown_result_is_neither(tmp_path: Path) -> None:
    before = recording(tmp_path / "a.pickle", 20)
    # GIVEN a ring that overwrote events: an earlier peak may have been higher
    lossy = recording(tmp_path / "b.pickle", 20, overwritten=5)
    result = invoke("diff", before, lossy, "--fail-over", "5%")
    assert (result.exit_code, result.output) == (
        3,
        "Can't tell whether the limit of 5% holds, because cuda:0: the peak allocated is not known "
        "exactly: the ring of the new recording overwrote its first events (and 1 more).\n",
    )
    # AND what is certain is still reported
    higher = recording(tmp_path / "c.pickle", 30, overwritten=5)
    assert invoke("diff", before, higher, "--fail-over", "5%").exit_code == 1
    # AND a baseline that lost its peak allows any peak
    assert invoke("diff", lossy, higher, "--fail-over", "5%").exit_code == 3


def test_files_that_cannot_be_read_or_compared(tmp_path: Path) -> None:
    before = recording(tmp_path / "a.pickle", 20)
    result = invoke("diff", before, tmp_path / "no.pickle", "--fail-over", "5%")
    assert result.exit_code == 3
    assert "no.pickle" in result.stderr
    assert invoke("diff", before, before, "--fail-over", "much").exit_code == 2
    # AND of two directories, each file needs a counterpart
    for run, ranks in (("old", (0, 1)), ("new", (0,))):
        for rank in ranks:
            recording(tmp_path / run / "exit" / f"torch_memory_rank{rank}_pid7.pickle", 20)
    result = invoke("diff", tmp_path / "old", tmp_path / "new", "--fail-over", "5%")
    assert result.exit_code == 3
    assert "has no counterpart" in result.output
    recording(tmp_path / "new" / "exit" / "torch_memory_rank1_pid9.pickle", 30)
    result = invoke("diff", tmp_path / "old", tmp_path / "new", "--fail-over", "5%")
    assert result.exit_code == 1
    assert "exit, rank 1, cuda:0: peak allocated 20 MiB → 30 MiB" in result.output


def test_a_job_that_died_is_not_within_the_limit(tmp_path: Path) -> None:
    # GIVEN a baseline of three steps
    steps = [[1, 0], [2, 10], [3, 20]]
    before = recording(tmp_path / "a.pickle", 20, steps=steps)
    # WHEN the new recording has fewer steps, or is that of an out-of-memory
    shorter = recording(tmp_path / "b.pickle", 10, steps=steps[:2])
    program = Program()
    program.alloc(MIB, SITE)
    program.out_of_memory(40 * MIB, 10 * MIB)
    program.metadata = file_metadata("cuda", oom={"device": 0, "requested_bytes": 40 * MIB})
    program.metadata["devices"][0] |= {"steps": [[1, 0], [2, 1], [3, 2]]}
    deadly = program.write(tmp_path / "c.pickle")
    # THEN smaller peaks prove nothing
    for after, reason in (
        (shorter, "b.pickle has 2 steps, and the baseline 3"),
        (deadly, "c.pickle was written because memory ran out"),
    ):
        result = invoke("diff", before, after, "--fail-over", "5%")
        assert (result.exit_code, len(result.output.splitlines())) == (3, 1)
        assert reason in result.output


def test_devices_of_an_unknown_kind_are_compared(tmp_path: Path) -> None:
    # GIVEN files of torch's recorder, of the only device of two machines
    paths = []
    for index in (0, 1):
        program = Program(index)
        program.alloc(MIB, SITE)
        paths.append(program.write(tmp_path / f"{index}.pickle"))
    result = invoke("diff", *paths, "--fail-over", "5%")
    assert "the baseline comes from device 0" not in result.output


def test_a_number_without_a_unit_is_refused(tmp_path: Path) -> None:
    file = recording(tmp_path / "a.pickle", 20)
    result = invoke("diff", file, file, "--fail-over", "5")
    assert result.exit_code == 2
    assert "'5' is not a limit: give a percentage such as 5%" in result.output
