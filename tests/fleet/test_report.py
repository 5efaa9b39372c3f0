"""What is planted in the files of a large job is named by the report, and nothing else is."""

import json
import re
from pathlib import Path

import planted_fleet
import pytest
from commands import invoke
from fleet_tables import InProcess, answer, make_run
from planted_fleet import MIB, Plan, planned

from pytracer.fleet.collection import collect
from pytracer.fleet.report import fleet_report
from pytracer.fleet.report_results import FleetReport

RANK = re.compile(r"\branks? (\d+(?:, \d+)*(?: and \d+)?)", re.IGNORECASE)


def collected(folder: Path, plan: Plan) -> Path:
    planted_fleet.make(folder / "files", plan)
    table = folder / "table"
    result = invoke("fleet", "collect", folder / "files", "--output", table)
    assert (table / "_pytracer_fleet.json").exists(), result.output
    return table


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned(ranks=48, steps=6, damaged=0.01)


@pytest.fixture(scope="module")
def table(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collected(tmp_path_factory.mktemp("planted"), plan)


@pytest.fixture(scope="module")
def report(table: Path) -> FleetReport:
    return fleet_report(table)


def check_planted(report: FleetReport, plan: Plan) -> None:
    """Check that the report has what is planted, and nothing else."""
    by_rank = {each.rank: each for each in report.outliers}
    growing = {rank for rank in by_rank if rank == plan.leaking}  # it grows beyond the threshold
    assert by_rank.keys() - growing == plan.outliers.keys()
    for rank, more in plan.outliers.items():
        (site, *_) = report.sites_of(by_rank[rank])
        assert site.site == "/job/moe.py:88 expert_buffer"
        assert site.delta_bytes == more
        assert by_rank[rank].slots == by_rank[rank].of_slots
    for rank in growing:
        assert report.sites_of(by_rank[rank])[0].site == "/job/log.py:7 append"
    growth = {each.site: each for each in report.growth}
    assert growth.keys() == {"/job/cache.py:21 remember", "/job/log.py:7 append"}
    everywhere, alone = growth["/job/cache.py:21 remember"], growth["/job/log.py:7 append"]
    assert (everywhere.extent, everywhere.ranks) == ("all", plan.ranks - 1)
    assert everywhere.bytes_per_step == planted_fleet.LEAK_OF_ALL_BYTES
    assert (alone.extent, alone.processes) == ("some", [f"rank {plan.leaking}"])
    assert alone.bytes_per_step == planted_fleet.LEAK_OF_ONE_BYTES
    assert {each.verdict for each in report.growth} == {"grows"}
    assert not everywhere.faster
    assert [oom.rank for oom in report.oom_order] == list(plan.cascade)
    assert {oom.verdict for oom in report.oom_order} == {"nearly exhausted"}
    differing = {name for each in report.setting_differences for name in each.processes}
    assert differing == {f"rank {plan.other_settings}"}
    assert {(each.rank, each.step) for each in report.damaged} == plan.damaged


def test_each_planted_fact_is_named_and_nothing_else(report: FleetReport, plan: Plan) -> None:
    check_planted(report, plan)
    texts = " ".join(each.text for each in report.answers)
    named = {int(n) for found in RANK.findall(texts) for n in re.findall(r"\d+", found)}
    assert named <= plan.special
    assert {*plan.outliers, plan.leaking, plan.cascade[0], plan.other_settings} <= named
    assert {each.verdict for each in report.answers} == {"found"}


def test_the_first_lines_are_the_answers(table: Path, plan: Plan) -> None:
    result = invoke("fleet", "report", table)
    assert result.exit_code == 0
    first, second, third, *_ = result.output.splitlines()
    assert f"5 ranks ran out of memory; rank {plan.cascade[0]} was the first in step 6." in first
    assert "requested 512 MiB at job/attention.py:55 scores: nearly exhausted, " in first
    assert f"! 3 of {plan.ranks - 1} ranks" in second
    assert "by job/moe.py:88 expert_buffer." in second
    assert "Memory grows on all 47 ranks, by 4 MiB a step at job/cache.py:21 remember." in third
    assert len(result.output.splitlines()) < 90


def test_the_commands_run(report: FleetReport) -> None:
    assert [command.command.split()[1] for command in report.commands] == [
        *("show", "diff", "diff", "diff", "view")
    ]
    for command in report.commands[:-1]:
        result = invoke(*command.command.split()[1:])
        assert result.exit_code == 0, result.output


def test_json_has_all_rows(table: Path, plan: Plan) -> None:
    result = invoke("fleet", "report", table, "--json")
    content = json.loads(result.output)
    assert content["run"] == "run7"
    assert content["schema_version"] >= 2
    assert len(content["outliers"]) >= len(plan.outliers)
    assert max(site["delta_bytes"] for site in content["outlier_sites"]) == 256 * MIB


def test_the_script_makes_the_same_tables(table: Path, report: FleetReport) -> None:
    import duckdb

    result = invoke("fleet", "report", table, "--sql")
    connection = duckdb.connect()
    connection.execute(result.output)
    found = connection.execute("SELECT rank FROM outliers").fetchall()
    assert [rank for (rank,) in found] == [outlier.rank for outlier in report.outliers]


def test_a_quiet_run_accuses_nobody(tmp_path: Path) -> None:
    report = fleet_report(collected(tmp_path, Plan(ranks=12, steps=2)))
    assert {each.verdict for each in report.answers} <= {"none", "unknown"}
    assert answer(report, "growth")[0] == "unknown"
    assert answer(report, "growth")[1].startswith("Can't tell whether memory grows, because")
    assert not report.outliers
    assert not report.setting_differences


def test_a_directory_needs_no_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN two runs, and a dataset of both
    run = make_run(tmp_path / "runs/monday")[0].parents[1]
    later = make_run(tmp_path / "runs/tuesday", ranks=3)[0].parents[1]
    dataset = tmp_path / "table"
    collect([str(run), str(later)], dataset, InProcess())
    monkeypatch.setattr("pytracer.fleet.collection.LocalEngine", InProcess)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    # WHEN the report is on a directory THEN it is that on the dataset, and nothing is left
    wanted = json.loads(invoke("fleet", "report", dataset, "--run", "tuesday", "--json").output)
    found = json.loads(invoke("fleet", "report", later, "--json").output)
    assert (found.pop("table"), wanted.pop("table")) == (str(later), str(dataset))
    assert (found.pop("other_runs"), wanted.pop("other_runs")) == ([], ["monday"])
    assert found == wanted
    assert not [*(tmp_path / "temporary").iterdir()]
    # AND a directory without snapshots, and the SQL of a directory, are refused
    for options, message in (
        ([tmp_path / "temporary"], "contains no snapshots"),
        ([run, "--sql"], "is not a complete dataset"),
    ):
        refused = invoke("fleet", "report", *options)
        assert refused.exit_code == 1
        assert message in refused.output


@pytest.mark.long
def test_each_planted_fact_is_named_in_2048_files(tmp_path: Path) -> None:
    plan = planned(ranks=256, steps=8, seed=1)
    check_planted(fleet_report(collected(tmp_path, plan)), plan)
