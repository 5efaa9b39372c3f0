"""The report says what changed since another run."""

from pathlib import Path

import pytest
from fleet_rows import MIB, Fleet, add_oom
from fleet_tables import answer

from pytracer.errors import PytracerError
from pytracer.fleet.report import fleet_report


def two_runs(tmp_path: Path) -> tuple[Path, Path]:
    before, after = Fleet("monday"), Fleet("tuesday")
    for rank in range(10):
        for step in range(1, 7):
            more = 80 if rank == 2 else 0
            old = {"/m.py:10 forward": 700, "/o.py:5 adam": 300, "/k.py:1 keep": 10 * step}
            new = {"/m.py:14 forward": 900, "/o.py:5 adam": 300 + more}
            before.add(rank, step, 1000 + 10 * step, sites=old)
            after.add(rank, step, 1200 + more, sites=new)
    add_oom(after, 3, 1_000_000)
    return before.write(tmp_path / "monday"), after.write(tmp_path / "tuesday")


def test_what_changed_against_a_baseline(tmp_path: Path) -> None:
    before, after = two_runs(tmp_path)
    report = fleet_report(after, baseline=before)
    change = report.baseline
    assert change is not None
    assert (change.run, report.run) == ("monday", "tuesday")
    assert [(s.site, s.delta_bytes) for s in change.sites] == [
        ("/m.py:14 forward", 200 * MIB),
        ("/k.py:1 keep", -10 * MIB),
    ]
    assert (change.baseline_ooms, change.ooms) == (0, 1)
    assert (change.new_growth, change.gone_growth) == ([], ["/k.py:1 keep"])
    assert (change.new_outliers, change.gone_outliers) == (["rank 2"], [])
    assert report.answers[0].text.startswith(
        "The median peak changed by +190 MiB (+18.8%) in step 1, most at /m.py:14 forward"
    )


def test_a_run_does_not_differ_from_itself(tmp_path: Path) -> None:
    _, after = two_runs(tmp_path)
    report = fleet_report(after, baseline=after)
    assert answer(report, "baseline") == ("none", "The median peaks did not change.")


def test_a_growth_at_an_unknown_call_site_is_named(tmp_path: Path) -> None:
    before, after = Fleet("monday"), Fleet("tuesday")
    before.add(0, None, 1000)
    device = after.add(0, None, 1000, leak_verdict="leak", leak_unit="step", leak_observed=40)
    after.rows["leaks"].append(device | {"verdict": "leak", "bytes_per_step": 1.0, "held_bytes": 9})
    paths = before.write(tmp_path / "monday"), after.write(tmp_path / "tuesday")
    text = answer(fleet_report(paths[1], baseline=paths[0]), "baseline")[1]
    assert "Memory grows now at an unknown call site." in text


def test_two_runs_of_one_table(tmp_path: Path) -> None:
    path = tmp_path / "table"
    for name, step in (("monday", 1), ("tuesday", 2)):
        fleet = Fleet(name)
        for rank in range(8):
            fleet.add(rank, step, 1000 * step)
        fleet.write(path)
    report = fleet_report(path)
    assert (report.run, report.other_runs, report.overview.files) == ("tuesday", ["monday"], 8)
    older = fleet_report(path, "monday", baseline=path, baseline_run="tuesday")
    assert answer(older, "baseline")[0] == "unknown"
    assert "no step or end in common" in answer(older, "baseline")[1]
    with pytest.raises(
        PytracerError, match="there is no run 'friday'; the runs are 'tuesday', 'monday'"
    ):
        fleet_report(path, "friday")
