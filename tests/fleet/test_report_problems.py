"""The report names the ranks that ran out of memory, leak, lack files or have other settings."""

from pathlib import Path

from fleet_rows import MIB, Fleet, add_oom
from fleet_tables import answer

from pytracer.fleet.report import fleet_report


def test_the_first_of_several_hosts_is_not_told_by_their_clocks(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank, time_us in ((3, 1_000_000), (1, 1_400_000), (2, 9_000_000)):
        add_oom(fleet, rank, time_us, host=f"n{rank}")
    verdict, text = answer(fleet_report(fleet.write(tmp_path / "table")), "ooms")
    assert verdict == "found"
    assert text.startswith(
        "3 ranks ran out of memory. Can't tell which was the first, because rank 1 failed 0.4 s "
        "after rank 3, and the clocks of their hosts may differ."
    )


def test_the_first_on_one_host(tmp_path: Path) -> None:
    fleet = Fleet()
    add_oom(fleet, 3, 1_000_000)
    add_oom(fleet, 1, 1_400_000)
    _, text = answer(fleet_report(fleet.write(tmp_path / "table")), "ooms")
    assert text.startswith("2 ranks ran out of memory; rank 3 was the first in step 3.")


def test_an_error_in_two_files_is_one_error(tmp_path: Path) -> None:
    fleet = Fleet()
    add_oom(fleet, 3, 1_000_000)
    device = fleet.add(3, None, 2000)
    fleet.rows["ooms"].append(device | {"time_us": 1_000_000, "event": 5})
    (oom,) = fleet_report(fleet.write(tmp_path / "table")).oom_order
    assert (oom.verdict, oom.source) == ("too large", "/run7/oom3/rank3")


def test_a_leak_in_a_trace_is_counted_over_ranks(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(10):
        leaks = rank in (2, 7)
        verdict = {"leak_verdict": "leak" if leaks else "none", "leak_unit": "step"}
        device = fleet.add(rank, None, 1000, **verdict, leak_observed=40)
        older = fleet.add(rank, 1, 1000, leak_verdict="unknown", leak_unit="slice")
        row = {"verdict": "leak", "unit": "step", "bytes_per_step": 3.0 * MIB, "held_bytes": MIB}
        if leaks:
            fleet.rows["leaks"].append(
                device | row | {"site": "/job/src/c.py:3 keep", "first_step": 5}
            )
        fleet.rows["leaks"].append(older | row | {"site": "/d.py:3 no", "unit": "slice"})
    report = fleet_report(fleet.write(tmp_path / "table"))
    (growth,) = report.growth
    assert (growth.site, growth.verdict, growth.extent) == ("/job/src/c.py:3 keep", "leak", "some")
    assert (growth.processes, growth.of_ranks) == (["rank 2", "rank 7"], 10)
    assert answer(report, "growth")[1] == (
        "Memory grows on ranks 2 and 7 of 10 ranks, by 3 MiB a step at src/c.py:3 keep."
    )


def test_a_growth_at_an_unknown_call_site_is_named(tmp_path: Path) -> None:
    fleet = Fleet()
    device = fleet.add(0, None, 1000, leak_verdict="leak", leak_unit="step", leak_observed=40)
    fleet.rows["leaks"].append(device | {"verdict": "leak", "bytes_per_step": 1.0, "held_bytes": 9})
    _, text = answer(fleet_report(fleet.write(tmp_path / "table")), "growth")
    assert text == "Memory grows on rank 0 of 1 rank, by 1 B a step at an unknown call site."


def test_a_leak_in_a_later_trace_is_not_hidden_by_an_earlier_one(tmp_path: Path) -> None:
    # GIVEN a process with a leak in a long trace, and in a later trace the same and another leak
    fleet = Fleet()
    row = {"verdict": "leak", "unit": "step", "held_bytes": MIB, "first_step": 5}
    traces = ((40, 40, {"/a.py:1 f": 1}), (50, 10, {"/a.py:1 f": 2, "/b.py:2 g": 3}))
    for step, observed, sites in traces:
        leak = {"leak_verdict": "leak", "leak_unit": "step", "leak_observed": observed}
        device = fleet.add(0, step, 1000, **leak)
        for site, rate in sites.items():
            fleet.rows["leaks"].append(
                device | row | {"site": site, "bytes_per_step": float(rate * MIB)}
            )
    # THEN both are named, each with its rate in the last trace
    report = fleet_report(fleet.write(tmp_path / "table"))
    assert {each.site: each.bytes_per_step for each in report.growth} == {
        "/a.py:1 f": 2 * MIB,
        "/b.py:2 g": 3 * MIB,
    }


def test_memory_that_rises_and_falls_does_not_grow(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(10):
        for step in range(1, 8):
            wave = 100 + (rank * 17 + step * 29) % 41
            warm = min(step, 3) * 50
            fleet.add(rank, step, 1000, sites={"/w.py:1 wave": wave, "/h.py:2 heat": warm})
    report = fleet_report(fleet.write(tmp_path / "table"))
    assert report.growth == []
    assert answer(report, "growth") == ("none", "Memory does not grow on 10 ranks.")


def test_one_rank_in_four_steps_may_be_chance(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(10):
        for step in range(1, 5):
            size = 50 * step if rank == 3 else 100 + (rank * 17 + step * 29) % 41
            fleet.add(rank, step, 1000, sites={"/w.py:1 wave": size})
    report = fleet_report(fleet.write(tmp_path / "table"))
    assert [growth.verdict for growth in report.growth] == ["unknown"]
    assert answer(report, "growth")[0] == "unknown"


def test_a_rank_on_which_memory_grows_faster(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(10):
        for step in range(1, 7):
            size = step * (40 if rank == 3 else 10)
            fleet.add(rank, step, 9000, sites={"/w.py:1 keep": size})
    report = fleet_report(fleet.write(tmp_path / "table"))
    assert [growth.faster for growth in report.growth] == [["rank 3"]]
    assert "and much faster on rank 3." in answer(report, "growth")[1]


def test_values_of_settings(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(9):
        device = fleet.add(rank, None, 1000)
        values = {"torch": "2.12.0" if rank == 4 else "2.13.0", "python": f"3.{rank % 2 + 10}"}
        for key, value in values.items():
            fleet.rows["settings"].append(device | {"scope": "version", "key": key, "value": value})
        note = {"scope": "metadata", "key": "rank", "value": str(rank)}
        fleet.rows["settings"].append(device | note)
    report = fleet_report(fleet.write(tmp_path / "table"))
    assert {each.key for each in report.setting_differences} == {"torch", "python"}
    verdict, text = answer(report, "settings")
    assert verdict == "found"
    assert "Rank 4: torch=2.12.0 (others: 2.13.0)." in text
