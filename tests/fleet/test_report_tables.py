"""The report of tables that a test writes: few ranks, groups, clocks, baselines, hostile names."""

import html
import json
import re
import statistics
from pathlib import Path

import pytest
from commands import invoke
from fleet_rows import MIB, Fleet
from fleet_tables import answer

from pytracer.errors import PytracerError
from pytracer.fleet.report import fleet_report
from pytracer.text import size


def outliers(fleet: Fleet, path: Path) -> list[int | None]:
    return [each.rank for each in fleet_report(fleet.write(path / "table")).outliers]


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
    assert [(site.site, site.delta_bytes) for site in found.sites] == [
        ("/b.py:2 g", 10 * 1024 * MIB)
    ]
    verdict, text = answer(report, "peaks")
    assert verdict == "found"
    assert text == (
        f"Rank 2 uses {size(more_bytes)} more than the median of the others, by /b.py:2 g. "
        f"This is said without statistics, of {ranks} ranks."
    )


@pytest.mark.parametrize("peaks", [(1000, 2000, 3000, 4000), (1000, 1000, 9000, 9000), (1, 9000)])
def test_few_ranks_that_all_differ_are_not_accused(tmp_path: Path, peaks: tuple[int, ...]) -> None:
    fleet = Fleet()
    for rank, peak in enumerate(peaks):
        fleet.add(rank, 1, peak)
    report = fleet_report(fleet.write(tmp_path / "table"))
    assert report.outliers == []
    assert answer(report, "peaks")[0] == "unknown"


def test_one_rank(tmp_path: Path) -> None:
    fleet = Fleet()
    fleet.add(0, None, 1000)
    report = fleet_report(fleet.write(tmp_path / "table"))
    verdicts = {each.topic: each.verdict for each in report.answers}
    assert verdicts == {
        **dict.fromkeys(("peaks", "growth", "phases", "settings"), "unknown"),
        **dict.fromkeys(("ooms", "missing", "damaged"), "none"),
    }
    assert invoke("fleet", "report", tmp_path / "table").exit_code == 0


def test_files_without_rank_and_pid_are_of_several_processes(tmp_path: Path) -> None:
    fleet = Fleet()
    for name in ("a", "b", "c"):
        fleet.add(None, None, 1000, source=f"/run7/{name}.pickle", leak_verdict="none")
    assert fleet_report(fleet.write(tmp_path / "table")).observed_ranks == 3


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
            fleet.add(rank, 1, 700, peak_most_bytes=1000 * MIB, is_peak_certain=False)
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
    assert "The peaks form 4 groups of ranks" in answer(report, "peaks")[1]


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
    assert [(site.site, site.delta_bytes, site.share) for site in found.sites] == [
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


def add_oom(fleet: Fleet, rank: int, time_us: int, **changes: object) -> None:
    device = fleet.add(rank, 3, 2000, kind="oom", is_oom=True, **changes)
    row = {"time_us": time_us, "event": 5, "oom_step": 3, "requested_bytes": MIB}
    row |= {"verdict": "too large", "explanation": "1 MiB are too much.", "site": "/a.py:1 f"}
    fleet.rows["ooms"].append(device | row)


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
    (oom,) = fleet_report(fleet.write(tmp_path / "table")).ooms
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


def test_only_rank_0_writes_files(tmp_path: Path) -> None:
    fleet = Fleet()
    fleet.add(0, None, 1000)
    add_oom(fleet, 5, 1_000_000)
    report = fleet_report(fleet.write(tmp_path / "table"))
    assert report.missing == []
    assert answer(report, "missing")[0] == "unknown"
    assert answer(report, "missing")[1].startswith("Can't tell which ranks have no file, because")


def test_missing_files_and_ranks(tmp_path: Path) -> None:
    fleet = Fleet()
    for rank in range(8):
        for step in (1, 2):
            if rank != 5 and (rank, step) != (6, 2):
                fleet.add(rank, step, 1000 if (rank, step) != (2, 1) else None)
    path = fleet.write(tmp_path / "table")
    report = fleet_report(path)
    assert [(each.rank, each.slots, each.has_none) for each in report.missing] == [
        (5, ["step 1", "step 2"], True),
        (6, ["step 2"], False),
    ]
    assert answer(report, "missing")[1] == "Rank 5 has no file. Rank 6 lacks files: step 2."
    assert [each.rank for each in report.damaged] == [2]
    declared = fleet_report(path, ranks=10)
    assert [each.rank for each in declared.missing if each.has_none] == [5, 8, 9]


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
    assert {each.key for each in report.settings} == {"torch", "python"}
    verdict, text = answer(report, "settings")
    assert verdict == "found"
    assert "Rank 4: torch=2.12.0 (others: 2.13.0)." in text


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


def test_an_empty_dataset(tmp_path: Path) -> None:
    Fleet().write(tmp_path / "table")
    result = invoke("fleet", "report", tmp_path / "table")
    assert result.exit_code == 1
    assert "has no files: collect some by pytracer fleet collect" in result.output


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
    (part,) = path.glob("peaks/run=run7/*/*.parquet")
    part.write_bytes(b"no parquet")
    result = invoke("fleet", "report", path)
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: cannot read {path}: ")


def test_an_unfinished_collection_is_reported(tmp_path: Path) -> None:
    fleet = Fleet()
    fleet.add(0, None, 1000)
    path = fleet.write(tmp_path / "table")
    (path / "_unfinished").write_bytes(b"")
    assert "was interrupted: files may be missing" in invoke("fleet", "report", path).output


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
    # GIVEN a run with outliers, a rank without a file, a file that cannot be read, settings that
    # differ, and a baseline
    old, new = Fleet("old"), Fleet("new")
    for rank in range(30):
        more = 500 + rank if rank < 2 else 0
        sites = {"/a.py:1 f": 900, "/b.py:2 g": 100 + more}
        old.add(rank, 1, 900, sites={"/a.py:1 f": 900})
        if rank != 17:
            new.add(rank, 1, None if rank == 20 else 1000 + more, sites=sites)
            new.add(rank, 2, 1000)
    table = new.write(old.write(tmp_path / "table"))
    page = tmp_path / "report.html"
    # WHEN the report is written as a page
    options = ("--run", "new", "--baseline", table, "--baseline-run", "old", "--html", page)
    result = invoke("fleet", "report", table, *options, "--top", 1)
    assert result.exit_code == 0, result.output
    # THEN it has the answers, the tables and the commands that the terminal shows
    text = html.unescape(re.sub("<[^>]*>", "", page.read_text().partition("<body>")[2]))
    shown = [line for line in result.output.splitlines() if not re.search("[│┃┏┡└]|more row", line)]
    assert len(shown) > 15
    for line in shown[:-1]:  # the last one names the page
        assert "".join(line.split()) in "".join(text.split())
    for title in ("Peaks against the baseline", "Ranks that differ", "Ranks without files"):
        assert title in text
    assert "Files that cannot be read" in text
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
