"""Tests of synthetic comparisons: the table, the conclusions, the JSON, the plot."""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import cells

from pytracer.commands.experiment import parts
from pytracer.commands.json_output import print_json
from pytracer.commands.plots import check_plot, plot_comparison
from pytracer.commands.table import echo
from pytracer.errors import PytracerError
from pytracer.experiments.comparison import Comparison, Outcome, Setting
from pytracer.experiments.conclusions import conclusions, report

GIB = 1 << 30
OFF, ON = "expandable_segments:False", "expandable_segments:True"


def outcome(reserved_gib: float, **others: Any) -> Outcome:
    defaults = {
        "peak_reserved_bytes": int(reserved_gib * GIB),
        "peak_allocated_bytes": 8 * GIB,
        "peak_unallocated_bytes": int((reserved_gib - 8) * GIB),
        "limit_bytes": 16 * GIB,
        "device_allocs": 1500,
        "retries": 0,
        "ooms": 0,
        "step_us": 12_000.0,
        "wall_s": 80.0,
    }
    return Outcome(**{**defaults, **others})


def ran_out(reserved_gib: float, **others: Any) -> Outcome:
    oom = {
        "ooms": 1,
        "oom_reserved_bytes": 14 * GIB,
        "oom_unallocated_bytes": 4 * GIB,
        "oom_requested_bytes": 3 * GIB,
    }
    return outcome(reserved_gib, ended_early=True, **{**oom, **others})


FAILED = Outcome(wall_s=1.0, failure="exit code 1, KeyError: 'x' (log.txt)")


def compared(*outcomes: Sequence[Outcome], names: Sequence[str] = (OFF, ON)) -> Comparison:
    return Comparison(
        [Setting(name, name, [*runs]) for name, runs in zip(names, outcomes, strict=True)]
    )


def rows(comparison: Comparison, capsys: pytest.CaptureFixture[str]) -> dict[str, list[list[str]]]:
    """Return the cells of each row by the row's name: [[first setting's, second's], ...]."""
    echo(parts(comparison))
    found: dict[str, list[list[str]]] = {}
    name = ""
    for first, *others in cells(capsys.readouterr().out):
        name = first or name
        found.setdefault(name, []).append(others)
    return found


REST = "1 of 1 runs ran out of memory; with expandable_segments:False, 0 of 1"


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (
            [outcome(10)],
            [outcome(8)],
            "peak reserved is 2 GiB (20 %) lower; no run ran out of memory",
        ),
        (
            [outcome(8)],
            [outcome(10)],
            "peak reserved is 2 GiB (25 %) higher; no run ran out of memory",
        ),
        ([outcome(8)], [outcome(8)], "peak reserved is the same; no run ran out of memory"),
        (  # the medians differ, but the ranges overlap
            [outcome(10), outcome(12)],
            [outcome(9), outcome(10.5)],
            "peak reserved differs no more than repeated runs do; no run ran out of memory",
        ),
        (
            [outcome(10), outcome(12)],
            [outcome(9), outcome(9.5)],
            "peak reserved is 1.75 GiB (15.9 %) lower; no run ran out of memory",
        ),
        (  # a run that ended early would have reached more
            [ran_out(10)],
            [outcome(8)],
            "peak reserved is at least 2 GiB (20 %) lower; "
            "0 of 1 runs ran out of memory; with expandable_segments:False, 1 of 1",
        ),
        ([outcome(8)], [ran_out(10)], f"peak reserved is at least 2 GiB (25 %) higher; {REST}"),
        # an equal peak of a run that ended early gives no conclusion
        (
            [ran_out(8)],
            [outcome(10)],
            "0 of 1 runs ran out of memory; with expandable_segments:False, 1 of 1",
        ),
        ([outcome(10)], [ran_out(8)], REST),
        ([outcome(10)], [ran_out(10)], REST),
        (
            [ran_out(10), outcome(12)],
            [ran_out(8), ran_out(8.5), FAILED],
            "2 of 2 runs ran out of memory; with expandable_segments:False, 1 of 2",
        ),
        (  # a program that continued after memory ran out
            [outcome(10, ooms=2)],
            [outcome(8)],
            "peak reserved is 2 GiB (20 %) lower; "
            "0 of 1 runs ran out of memory; with expandable_segments:False, 1 of 1",
        ),
        (  # unknown values are left out
            [outcome(10)],
            [outcome(8, ooms=None)],
            "peak reserved is 2 GiB (20 %) lower",
        ),
        (
            [Outcome(wall_s=1.0)],
            [outcome(8)],
            "unknown, because the numbers to compare are missing",
        ),
    ],
)
def test_conclusions(first: list[Outcome], second: list[Outcome], text: str) -> None:
    assert conclusions(compared(first, second)) == [f"{ON}: {text}."]


@pytest.mark.parametrize(
    ("runs", "slower", "is_compared"),
    [(4, 1000, True), (3, 1000, False), (4, 150, False)],
    ids=["apart", "apart by chance", "overlap"],
)
def test_times_are_compared_where_runs_show_them(
    runs: int, slower: int, is_compared: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    first = [outcome(8, step_us=10_000.0 + 100 * i) for i in range(runs)]
    second = [outcome(8, step_us=10_000.0 + slower + 100 * i) for i in range(runs)]
    (text,) = conclusions(compared(first, second))
    assert ("; a step is 1 ms (9.85 %) longer." in text) == is_compared
    assert ("step" in text) == is_compared
    # AND the table has no difference that a few runs have by chance
    table = rows(compared(first, second), capsys)
    assert ("+" in str(table["time per step"])) == (runs >= 4)
    # AND no time is compared with that of a program that ended early
    second[0] = ran_out(8, step_us=20_000.0)
    assert "step" not in conclusions(compared(first, second))[0]


def test_nothing_to_conclude() -> None:
    # GIVEN two settings, one of which failed or was not run
    assert conclusions(compared([FAILED], [outcome(8)])) == [
        f"Nothing can be compared: every run of {OFF} failed."
    ]
    assert conclusions(compared([outcome(8)], [FAILED])) == [
        f"{ON} cannot be compared: every run of {ON} failed."
    ]
    assert conclusions(compared([outcome(8)], [])) == [
        f"{ON} cannot be compared: no run of {ON} has ended."
    ]
    # AND only one setting
    assert conclusions(compared([outcome(8)], names=[OFF])) == []


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN two runs of each setting, one of which failed
    first = [outcome(10), outcome(12, device_allocs=2000, retries=3)]
    second = [outcome(9, step_us=13_200.0), FAILED]
    table = rows(compared(first, second), capsys)
    # THEN the table has medians, ranges and differences to the first setting
    assert table == {
        "runs": [["2", "1 of 2"]],
        "out of memory": [["no", "no"]],
        "peak reserved": [["11 GiB", "9 GiB"], ["10 .. 12 GiB", "-2 GiB, -18.2 %"]],
        "peak allocated": [["8 GiB", "8 GiB"]],
        "peak unallocated": [["3 GiB", "1 GiB"], ["2 .. 4 GiB", "-2 GiB, -66.7 %"]],
        "device allocs": [["1,750", "1,500"], ["1,500 .. 2,000", "-250, -14.3 %"]],
        "retries": [["1.5", "0"], ["0 .. 3", "-1.5, -100 %"]],
        "time per step": [["12 ms", "13.2 ms"]],
        "wall time": [["80 s", "80 s"]],
    }


def test_the_conclusions_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    # WHEN a comparison is printed, THEN its first line is the conclusion
    comparison = compared([outcome(10)], [outcome(8)])
    echo(parts(comparison))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:1] == conclusions(comparison)
    assert lines[1].startswith("┏")


def test_runs_that_ended_early_are_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a setting under which memory ran out, in one run or in one of several
    table = rows(compared([ran_out(10)], [outcome(8)]), capsys)
    # THEN the table says so, and shows no difference
    assert table["out of memory"] == [["yes", "no"]]
    assert table["peak reserved"] == [["10 GiB", "8 GiB"]]
    # AND it shows the fragmented and the requested bytes
    assert table["OOM unallocated"] == [["4 GiB", "-"]]
    assert table["OOM requested"] == [["3 GiB", "-"]]
    table = rows(compared([outcome(10)] * 2, [ran_out(8), outcome(8)]), capsys)
    assert table["out of memory"] == [["no", "in 1 of 2 runs"]]
    assert table["peak reserved"] == [["10 GiB", "8 GiB"]]
    # AND a note explains why
    echo(parts(compared([ran_out(10)], [outcome(8)])))
    assert f"{OFF}: 1 run ended because memory ran out." in capsys.readouterr().out
    # AND a program that continued can be compared
    table = rows(compared([outcome(10, ooms=3)], [outcome(8)]), capsys)
    assert table["out of memory"] == [["3 times", "no"]]
    assert table["peak reserved"][1] == ["", "-2 GiB, -20 %"]


def test_unknown_values_are_not_invented(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a run without numbers, and one that failed
    comparison = compared([Outcome(wall_s=1.0)], [FAILED])
    comparison.notes.append("There is no reason.")
    table = rows(comparison, capsys)
    assert table.pop("wall time") == [["1 s", "-"]]
    assert table.pop("out of memory") == [["-", "-"]]
    assert table.pop("peak reserved") == [["-", "-"]]
    # THEN the reason of the failure is printed, with the last lines of its log
    echo(parts(comparison))
    output = capsys.readouterr().out
    assert f"{ON} failed: exit code 1, KeyError: 'x' (log.txt)\nThere is no reason.\n" in output


def test_a_trace_that_lost_events_gives_a_lower_bound(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a setting whose snapshots lack events
    first = [outcome(10, lower_bounds=["peak_unallocated_bytes"])]
    table = rows(compared(first, [outcome(9)]), capsys)
    # THEN the value is marked as a lower bound, without a difference
    assert table["peak unallocated"] == [["≥ 2 GiB", "1 GiB"]]
    assert table["peak reserved"][1] == ["", "-1 GiB, -10 %"]
    # AND the reason and the remedy are printed
    echo(parts(compared(first, [outcome(9)])))
    output = capsys.readouterr().out
    assert f"{OFF}: unallocated memory may have peaked higher" in output
    assert "PYTRACER_TRACE_ALLOC_MAX_ENTRIES" in output
    assert f"{ON}: unallocated" not in output


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_it_fits_into_80_columns(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN long names, long numbers, and more settings than fit next to each other
    names = [f"max_split_size_mb:{i},garbage_collection_threshold:0.8" for i in range(count)]
    runs = [
        [outcome(10.123 + i / 7, device_allocs=10**7 + i), outcome(11.117 + i / 7)]
        for i in range(count)
    ]
    echo(parts(compared(*runs, names=names)))
    output = capsys.readouterr().out
    lines = [line for line in output.splitlines() if line[:1] in set("┏┃┡│└")]
    # THEN no line of a table is too long, and nothing is cut off
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    # AND each table has the first setting and two others
    headers = []
    for table in output.split("┏")[1:]:
        rows = [line.split("┃")[2:-1] for line in table.splitlines() if line.startswith("┃")]
        headers.append(["".join(map(str.strip, column)) for column in zip(*rows, strict=True)])
    assert headers == [[names[0], *names[i : i + 2]] for i in range(1, count, 2)]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a comparison with all kinds of results
    comparison = compared([ran_out(10)], [outcome(8), FAILED])
    comparison.metadata = {"kind": "experiment", "command": ["python", "train.py"]}
    comparison.notes = ["A note."]
    print_json(report(comparison))
    found = json.loads(capsys.readouterr().out)
    assert (found["schema_version"], found["kind"]) == (3, "experiment")
    assert (found["command"], found["notes"]) == (["python", "train.py"], ["A note."])
    assert found["conclusions"] == conclusions(comparison)
    assert [setting["name"] for setting in found["settings"]] == [OFF, ON]
    first = found["settings"][0]["outcomes"][0]
    assert (first["peak_reserved_bytes"], first["ended_early"]) == (10 * GIB, True)
    assert found["settings"][1]["outcomes"][1]["failure"] == FAILED.failure


BEGINS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", BEGINS)
def test_the_plot(suffix: str, tmp_path: Path) -> None:
    # GIVEN settings: one with a range, one that ran out of memory, one that failed, one not run
    comparison = compared(
        *([outcome(10), outcome(12)], [ran_out(8)], [FAILED], []),
        names=[OFF, ON, "max_split_size_mb:100", "max_split_size_mb:200"],
    )
    path = tmp_path / f"plot.{suffix}"
    plot_comparison(comparison, path)
    assert path.read_bytes().startswith(BEGINS[suffix])


def test_the_texts_of_the_plot(tmp_path: Path) -> None:
    import matplotlib

    # GIVEN a picture whose text is not converted to paths
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot_comparison(compared([outcome(10)], [ran_out(12)]), tmp_path / "plot.svg")
        small = outcome(2, peak_allocated_bytes=GIB)
        plot_comparison(compared([small], names=[OFF]), tmp_path / "far.svg")
        plot_comparison(compared([outcome(10)], [outcome(9)]), tmp_path / "peaks.svg")
    text = (tmp_path / "plot.svg").read_text()
    # THEN it has the peaks, the unit, the settings and the limit
    for words in ("peak reserved", "peak allocated", ">10<", "GiB", "False", "True"):
        assert words in text, words
    assert ">limit: 16 GiB<" in text
    # AND the settings that ran out of memory, whose peaks are bounds, and the failed request
    assert "out of memory in 1 of 1" in text
    for words in (">≥ 12<", ">out of memory<", ">ended out of memory:<"):
        assert words in text, words
    # AND none of that if memory was sufficient
    text = (tmp_path / "peaks.svg").read_text()
    for words in ("≥", "OOM", "out of memory"):
        assert words not in text, words
    # AND a limit far above the bars is only in the legend
    assert "(above the picture)" in (tmp_path / "far.svg").read_text()


def test_the_plot_shows_the_request_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a run that ended at a request of 3 GiB, with 14 of 16 GiB reserved
    from matplotlib import figure

    figures: list[Any] = []
    save = figure.Figure.savefig
    monkeypatch.setattr(
        figure.Figure,
        "savefig",
        lambda self, to, **options: (figures.append(self), save(self, to, **options)),
    )
    plot_comparison(compared([ran_out(15)], names=[OFF]), tmp_path / "plot.png")
    (axes,) = figures[0].axes
    # THEN the request is drawn on top of the reserved bytes, across the limit
    limit, requested = axes.collections
    assert limit.get_segments()[0][:, 1].tolist() == [16, 16]
    assert requested.get_segments()[0][:, 1].tolist() == [14, 17]
    # AND the bars are not filled, because the run ended early
    assert {bar.get_hatch() for bar in axes.patches} == {"///"}
    # AND the legend covers no data
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1


def test_a_plot_that_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PytracerError, match=r"plot\.jpeg is not a file name for a plot: .*\.png"):
        check_plot(Path("plot.jpeg"))
    if importlib.util.find_spec("matplotlib") is not None:
        (tmp_path / "plot.png").mkdir()
        with pytest.raises(PytracerError, match=r"cannot write .*Is a directory"):
            plot_comparison(compared([outcome(8)], [outcome(9)]), tmp_path / "plot.png")
    with pytest.raises(PytracerError, match=r"the directory .*no does not exist"):
        check_plot(tmp_path / "no" / "plot.png")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PytracerError, match="pip install matplotlib"):
        check_plot(Path("plot.png"))
