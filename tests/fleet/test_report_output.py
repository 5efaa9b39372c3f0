"""The report is printed or is a page, also of a table that is empty, damaged or hostile."""

import html
import json
import re
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
    assert "has no files: collect some by pytracer fleet collect" in result.output


def test_two_runs_of_one_table(tmp_path: Path) -> None:
    monday, tuesday = Fleet("monday"), Fleet("tuesday")
    for rank in range(8):
        monday.add(rank, 1, 1000)
        tuesday.add(rank, 2, 2000)
    path = monday.write(tmp_path / "table", tuesday)
    report = fleet_report(path)
    assert (report.run, report.other_runs, report.overview.files) == ("tuesday", ["monday"], 8)
    with pytest.raises(
        PytracerError, match="there is no run 'friday'; the runs are 'tuesday', 'monday'"
    ):
        fleet_report(path, "friday")


def test_only_damaged_files(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(3):
        fleet.add(rank, 1, None)
    report = fleet_report(fleet.write(tmp_path / "table"))
    verdicts = {each.topic: each.verdict for each in report.answers}
    assert verdicts.pop("damaged") == "found"
    assert verdicts.pop("missing") == "none"
    assert set(verdicts.values()) == {"unknown"}


def test_a_damaged_dataset(tmp_path: Path) -> None:
    fleet = Fleet()
    fleet.add(0, None, 1000)
    path = fleet.write(tmp_path / "table")
    (path / "peaks/00000001.parquet").write_bytes(b"no parquet")
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
    page = tmp_path / "report.html"
    result = invoke("fleet", "report", path, "--html", page)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert "rank 4 uses 500 MiB more than the median" in result.output
    text = page.read_text()
    assert "<script" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;alert(1)" in text
    content = json.loads(invoke("fleet", "report", path, "--json").output)
    assert content["outliers"][0]["rank"] == 4
    assert "Copy the file to this machine first." in content["commands"][0]["why"]


def test_the_page_has_what_the_terminal_shows_with_more_rows(tmp_path: Path) -> None:
    # GIVEN a run with outliers, a rank without a file, and a file that cannot be read
    fleet = Fleet()
    for rank in range(30):
        more = 500 + rank if rank < 2 else 0
        sites = {"/a.py:1 f": 900, "/b.py:2 g": 100 + more}
        if rank != 17:
            fleet.add(rank, 1, None if rank == 20 else 1000 + more, sites=sites)
            fleet.add(rank, 2, 1000)
    table = fleet.write(tmp_path / "table")
    page = tmp_path / "report.html"
    # WHEN the report is written as a page
    result = invoke("fleet", "report", table, "--html", page, "--top", 1)
    assert result.exit_code == 0, result.output
    # THEN it has the answers, the tables and the commands that the terminal shows
    text = html.unescape(re.sub("<[^>]*>", "", page.read_text().partition("<body>")[2]))
    shown = [line for line in result.output.splitlines() if not re.search("[│┃┏┡└]|more row", line)]
    assert len(shown) > 13
    for line in shown[:-1]:  # the last one names the page
        assert "".join(line.split()) in "".join(text.split())
    for title in ("Ranks that differ", "Ranks without files", "Files that cannot be read"):
        assert title in text
    # AND it has the rows that the terminal left out
    assert "more row" in result.output
    assert "more row" not in text
    assert {*re.findall("│ +(rank [0-9]+) │ +1 of", text)} == {"rank 0", "rank 1"}


def test_only_a_page_of_its_own_is_replaced(tmp_path: Path) -> None:
    fleet = Fleet()
    fleet.add(0, None, 1000)
    path, page = fleet.write(tmp_path / "table"), tmp_path / "report.html"
    for _ in range(2):
        assert invoke("fleet", "report", path, "--html", page).exit_code == 0
    assert "http" not in page.read_text().replace("http-equiv", "")
    page.write_text("mine")
    result = invoke("fleet", "report", path, "--html", page)
    assert result.exit_code == 1
    assert "exists and is not a page of pytracer fleet report" in result.output
    assert page.read_text() == "mine"
