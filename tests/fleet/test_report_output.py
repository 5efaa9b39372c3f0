"""The report is printed or is a page, also of a table that is empty, damaged or hostile."""

import json
from pathlib import Path

import pytest
from commands import invoke
from fleet_rows import Fleet

from pytracer.errors import PytracerError
from pytracer.fleet.report import fleet_report


def test_an_empty_dataset(tmp_path: Path) -> None:
    Fleet().write(tmp_path / "table")
    result = invoke("fleet", "report", tmp_path / "table")
    assert result.exit_code == 1
    assert "has no files: collect some with pytracer fleet collect" in result.output


def test_two_runs_of_one_table(tmp_path: Path) -> None:
    monday, tuesday = Fleet("monday"), Fleet("tuesday")
    for rank in range(8):
        monday.add(rank, 1, 1000)
        tuesday.add(rank, 2, 2000)
    path = monday.write(tmp_path / "table", tuesday)
    report = fleet_report(path)
    assert (report.run, report.other_runs, report.overview.files) == ("tuesday", ["monday"], 8)
    with pytest.raises(
        PytracerError, match="run 'friday' does not exist; the runs are 'tuesday', 'monday'"
    ):
        fleet_report(path, "friday")


def test_only_damaged_files(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(3):
        fleet.add(rank, 1, None)
    report = fleet_report(fleet.write(tmp_path / "table"))
    verdicts = {each.topic: each.verdict for each in report.answers}
    assert verdicts.pop("damaged") == "found"
    assert set(verdicts.values()) == {"unknown"}


def test_a_damaged_dataset(tmp_path: Path) -> None:
    fleet = Fleet()
    fleet.add(0, None, 1000)
    path = fleet.write(tmp_path / "table")
    (path / "devices/00000001.parquet").write_bytes(b"no parquet")
    result = invoke("fleet", "report", path)
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: cannot read {path}: ")


HOSTILE = "</script><script>alert(1)</script>\x1b[31m'); DROP TABLE files; --"


def test_hostile_names(tmp_path: Path) -> None:
    fleet = Fleet(run=f"run*[{HOSTILE.replace('/', '')}]")
    for rank in range(9):
        more = 500 if rank == 4 else 0
        site = f"/{HOSTILE}.py:1 {HOSTILE}"
        source = f"s3://bucket/{HOSTILE} {rank}"
        fleet.add(rank, None, 1000 + more, role=HOSTILE, source=source, sites={site: 500 + more})
    path = fleet.write(tmp_path / "it's a [table]*")
    result = invoke("fleet", "report", path)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert "rank 4 uses 500 MiB more than the median" in result.output
    content = json.loads(invoke("fleet", "report", path, "--json").output)
    assert content["outliers"][0]["rank"] == 4
    assert "Copy the file to this machine first." in content["commands"][0]["why"]
