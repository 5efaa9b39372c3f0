"""The report names the ranks whose peaks stand out, and says if it cannot tell."""

import statistics
from pathlib import Path

import pytest
from commands import invoke
from fleet_rows import MIB, Fleet
from fleet_tables import answer

from pytracer.fleet.report import fleet_report
from pytracer.text import size


def outliers(fleet: Fleet, path: Path) -> list[int | None]:
    return [each.rank for each in fleet_report(fleet.write(path / "table")).outliers]


def test_one_rank(tmp_path: Path) -> None:
    fleet = Fleet()
    fleet.add(0, None, 1000)
    report = fleet_report(fleet.write(tmp_path / "table"))
    verdicts = {each.topic: each.verdict for each in report.answers}
    assert verdicts == {
        **dict.fromkeys(("peaks", "growth", "settings"), "unknown"),
        **dict.fromkeys(("ooms", "damaged"), "none"),
    }
    assert invoke("fleet", "report", tmp_path / "table").exit_code == 0


def test_seven_ranks_are_too_few_for_a_usual_difference(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(7):
        fleet.add(rank, 1, 1090 if rank == 3 else 1000)
    report = fleet_report(fleet.write(tmp_path / "table"))
    assert report.outliers == []
    assert answer(report, "peaks") == (
        "unknown",
        "Can't tell which ranks stand out, because only 7 ranks can be compared in step 1: 8 are "
        "needed.",
    )


@pytest.mark.parametrize("ranks", [3, 4, 7])
def test_a_large_difference_of_few_ranks_is_said(tmp_path: Path, ranks: int) -> None:
    # GIVEN few ranks, of which one has 10 GiB more than the others, by one line
    fleet = Fleet()
    for rank in range(ranks):
        more = 10 * 1024 if rank == 2 else 0
        sites = {"/a.py:1 f": 900, "/b.py:2 g": 100 + more}
        fleet.add(rank, 1, 1000 + more + 4 * rank, sites=sites)
    # WHEN they are compared
    report = fleet_report(fleet.write(tmp_path / "table"))
    # THEN it is named with the line, and it is said that this is no statistics
    others = statistics.median(1000 + 4 * rank for rank in range(ranks) if rank != 2)
    more_bytes = int((1000 + 10 * 1024 + 4 * 2 - others) * MIB)
    (found,) = report.outliers
    assert (found.rank, found.delta_bytes) == (2, more_bytes)
    assert [(site.site, site.delta_bytes) for site in report.sites_of(found)] == [
        ("/b.py:2 g", 10 * 1024 * MIB)
    ]
    verdict, text = answer(report, "peaks")
    assert verdict == "found"
    assert text == (
        f"Rank 2 uses {size(more_bytes)} more than the median of the others, by /b.py:2 g. "
        f"{ranks} ranks are too few for a statistical test."
    )


@pytest.mark.parametrize("peaks", [(1000, 2000, 3000, 4000), (1000, 1000, 9000, 9000), (1, 9000)])
def test_few_ranks_that_all_differ_are_not_accused(tmp_path: Path, peaks: tuple[int, ...]) -> None:
    fleet = Fleet()
    for rank, peak in enumerate(peaks):
        fleet.add(rank, 1, peak)
    report = fleet_report(fleet.write(tmp_path / "table"))
    assert report.outliers == []
    assert answer(report, "peaks")[0] == "unknown"


def test_files_without_rank_and_pid_are_of_several_processes(tmp_path: Path) -> None:
    fleet = Fleet()
    for name in ("a", "b", "c"):
        fleet.add(None, None, 1000, source=f"/run7/{name}.pickle", leak_verdict="none")
    assert fleet_report(fleet.write(tmp_path / "table")).overview.traced_ranks == 3


def test_a_lower_peak_is_named_too(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(16):
        fleet.add(rank, 1, 700 if rank == 5 else 1000 + rank % 3)
    report = fleet_report(fleet.write(tmp_path / "table"))
    assert [(each.rank, each.delta_bytes < 0) for each in report.outliers] == [(5, True)]
    assert answer(report, "peaks")[1].startswith("Rank 5 uses 301 MiB less than the median")


def test_a_peak_that_may_be_higher_is_not_called_low(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(16):
        if rank == 5:
            fleet.add(rank, 1, 700, is_peak_certain=False)
        else:
            fleet.add(rank, 1, 1000)
    assert outliers(fleet, tmp_path) == []


def test_ranks_of_a_pipeline_are_compared_with_their_stage(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(32):
        more = 300 if rank == 9 else 0
        fleet.add(rank, 1, 1000 * (1 + rank // 8) + more + rank % 2)
    report = fleet_report(fleet.write(tmp_path / "table"))
    assert [each.rank for each in report.outliers] == [9]
    assert report.outliers[0].delta_bytes == 300 * MIB + MIB // 2
    assert report.spread[0].groups == 4
    assert "the ranks form 4 groups" in answer(report, "peaks")[1]


def test_ranks_that_differ_widely_are_not_accused(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(64):
        fleet.add(rank, 1, 1000 + 7 * (rank * rank % 61))
    assert outliers(fleet, tmp_path) == []


def test_too_many_that_differ_are_not_accused(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(40):
        fleet.add(rank, 1, 1000 if rank % 4 else 1100 + 50 * rank)
    report = fleet_report(fleet.write(tmp_path / "table"))
    assert report.outliers == []
    assert answer(report, "peaks")[1].startswith("Can't tell which ranks stand out, because 10 of")


def test_files_of_different_steps_and_roles_are_not_compared(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(10):
        fleet.add(rank, 1, 1000, role="actor")
        fleet.add(rank, 2, 1500, role="actor")
        fleet.add(rank, 2, 200, role="critic")
    report = fleet_report(fleet.write(tmp_path / "table"))
    assert report.outliers == []
    assert [each.slot for each in report.spread] == [
        "actor step 1",
        "actor step 2",
        "critic step 2",
    ]
    assert report.overview.processes == 20


def test_an_outlier_in_one_step_only(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(10):
        for step in (1, 2, 3):
            more = 500 if (rank, step) == (4, 2) else 0
            sites = {"/a.py:1 f": 900, "/b.py:2 g": 100 + more}
            fleet.add(rank, step, 1000 + more, sites=sites)
    report = fleet_report(fleet.write(tmp_path / "table"))
    (found,) = report.outliers
    assert (found.rank, found.slots, found.of_slots, found.slot) == (4, 1, 3, "step 2")
    assert [(site.site, site.delta_bytes, site.share) for site in report.sites_of(found)] == [
        ("/b.py:2 g", 500 * MIB, 1.0)
    ]
    assert answer(report, "peaks")[1] == (
        "Rank 4 uses 500 MiB more than the median in step 2, by /b.py:2 g."
    )


def test_peaks_that_vary_from_step_to_step_accuse_nobody(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(16):
        for step in range(1, 21):
            is_long = (rank * 5 + step * 3) % 16 == 0  # one rank in each step has a long batch
            fleet.add(rank, step, 1300 if is_long else 1000)
    report = fleet_report(fleet.write(tmp_path / "table"))
    assert {each.outliers for each in report.spread} == {1}
    assert report.outliers == []
    assert answer(report, "peaks")[0] == "none"
