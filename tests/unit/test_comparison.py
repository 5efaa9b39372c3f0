"""What comparisons say, made up: the table, the conclusions, the JSON, the plot."""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import cells

from pytracer.cli_comparison import tell
from pytracer.comparison import Comparison, Outcome, Setting
from pytracer.comparison_plot import MAX_POINTS, Curve, check_plot, plot, thinned
from pytracer.comparison_report import conclusions
from pytracer.errors import PytracerError

GIB = 1 << 30
OFF, ON = "expandable_segments:False", "expandable_segments:True"


def outcome(reserved_gib: float, **others: Any) -> Outcome:
    told = {
        "peak_reserved_bytes": int(reserved_gib * GIB),
        "peak_allocated_bytes": 8 * GIB,
        "fragmentation_bytes": int((reserved_gib - 8) * GIB),
        "device_allocs": 1500,
        "retries": 0,
        "ooms": 0,
        "step_us": 12_000.0,
        "wall_s": 80.0,
    }
    return Outcome(**{**told, **others})


def ran_out(reserved_gib: float, **others: Any) -> Outcome:
    return outcome(reserved_gib, ooms=1, ended_early=True, **others)


FAILED = Outcome(wall_s=1.0, failure="exit code 1, KeyError: 'x' (log.txt)")


def compared(*outcomes: Sequence[Outcome], names: Sequence[str] = (OFF, ON)) -> Comparison:
    return Comparison(
        [Setting(name, name, [*each]) for name, each in zip(names, outcomes, strict=True)]
    )


def rows(comparison: Comparison, capsys: pytest.CaptureFixture[str]) -> dict[str, list[list[str]]]:
    """The lines of each row's cells but the first, by its name: [[first's, second's], ...]."""
    tell(comparison)
    found: dict[str, list[list[str]]] = {}
    name = ""
    for first, *others in cells(capsys.readouterr().out):
        name = first or name
        found.setdefault(name, []).append(others)
    return found


REST = "out of memory in 1 of 1 run, where expandable_segments:False had none"


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (
            [outcome(10)],
            [outcome(8)],
            "peak reserved 2 GiB (20 %) less; no out-of-memory in either",
        ),
        (
            [outcome(8)],
            [outcome(10)],
            "peak reserved 2 GiB (25 %) more; no out-of-memory in either",
        ),
        ([outcome(8)], [outcome(8)], "peak reserved is the same; no out-of-memory in either"),
        (  # the medians differ, the ranges are not apart
            [outcome(10), outcome(12)],
            [outcome(9), outcome(10.5)],
            "no difference in peak reserved beyond that from run to run; "
            "no out-of-memory in either",
        ),
        (
            [outcome(10), outcome(12)],
            [outcome(9), outcome(9.5)],
            "peak reserved 1.75 GiB (15.9 %) less; no out-of-memory in either",
        ),
        (  # what ended early would have had more
            [ran_out(10)],
            [outcome(8)],
            "peak reserved at least 2 GiB (20 %) less; "
            "no out-of-memory, where expandable_segments:False had it in 1 of 1",
        ),
        ([outcome(8)], [ran_out(10)], f"peak reserved at least 2 GiB (25 %) more; {REST}"),
        # or as much, which says nothing
        (
            [ran_out(8)],
            [outcome(10)],
            "no out-of-memory, where expandable_segments:False had it in 1 of 1",
        ),
        ([outcome(10)], [ran_out(8)], REST),
        ([outcome(10)], [ran_out(10)], REST),
        (
            [ran_out(10), outcome(12)],
            [ran_out(8), ran_out(8.5), FAILED],
            "out of memory in 2 of 2 runs, where expandable_segments:False had it in 1 of 2",
        ),
        (  # a program that went on when memory had run out
            [outcome(10, ooms=2)],
            [outcome(8)],
            "peak reserved 2 GiB (20 %) less; "
            "no out-of-memory, where expandable_segments:False had it in 1 of 1",
        ),
        (  # of what is not known nothing is said
            [outcome(10)],
            [outcome(8, ooms=None)],
            "peak reserved 2 GiB (20 %) less",
        ),
        ([Outcome(wall_s=1.0)], [outcome(8)], "the numbers that would tell are not known"),
    ],
)
def test_conclusions(first: list[Outcome], second: list[Outcome], told: str) -> None:
    assert conclusions(compared(first, second)) == [f"{ON}: {told}."]


@pytest.mark.parametrize(
    ("runs", "slower", "is_told"),
    [(4, 1000, True), (3, 1000, False), (4, 150, False)],
    ids=["apart", "apart by chance", "overlap"],
)
def test_times_are_told_where_runs_show_them(runs: int, slower: int, is_told: bool) -> None:
    first = [outcome(8, step_us=10_000.0 + 100 * i) for i in range(runs)]
    second = [outcome(8, step_us=10_000.0 + slower + 100 * i) for i in range(runs)]
    (told,) = conclusions(compared(first, second))
    assert ("; a step took 1 ms (9.85 %) more." in told) == is_told
    assert ("step" in told) == is_told
    # AND of a program that ended early nothing is
    second[0] = ran_out(8, step_us=20_000.0)
    assert "step" not in conclusions(compared(first, second))[0]


def test_nothing_to_conclude() -> None:
    # GIVEN settings of which one failed, and one was not run
    assert conclusions(compared([FAILED], [outcome(8)])) == [
        f"Nothing is compared: no run of {OFF} ended well."
    ]
    assert conclusions(compared([outcome(8)], [FAILED])) == [
        f"{ON} is not compared: no run of {ON} ended well."
    ]
    assert conclusions(compared([outcome(8)], [])) == [
        f"{ON} is not compared: no run of {ON} is over."
    ]
    # AND one alone
    assert conclusions(compared([outcome(8)], names=[OFF])) == []


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN two runs of each setting, of which one failed
    first = [outcome(10), outcome(12, device_allocs=2000, retries=3)]
    second = [outcome(9, step_us=13_200.0), FAILED]
    table = rows(compared(first, second), capsys)
    # THEN there are medians, ranges and differences to the first setting
    assert table == {
        "runs": [["2", "1 of 2"]],
        "out of memory": [["no", "no"]],
        "peak reserved": [["11 GiB", "9 GiB"], ["10 .. 12 GiB", "-2 GiB, -18.2 %"]],
        "peak allocated": [["8 GiB", "8 GiB"]],
        "fragmentation": [["3 GiB", "1 GiB"], ["2 .. 4 GiB", "-2 GiB, -66.7 %"]],
        "device allocs": [["1,750", "1,500"], ["1,500 .. 2,000", "-250, -14.3 %"]],
        "retries": [["1.5", "0"], ["0 .. 3", "-1.5, -100 %"]],
        "time per step": [["12 ms", "13.2 ms"], ["", "+1.2 ms, +10 %"]],
        "wall time": [["80 s", "80 s"]],
    }


def test_what_ended_early_is_compared_with_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a setting under which memory ran out, in one run or in one of several
    table = rows(compared([ran_out(10)], [outcome(8)]), capsys)
    # THEN that is said, and no difference is
    assert table["out of memory"] == [["yes", "no"]]
    assert table["peak reserved"] == [["10 GiB", "8 GiB"]]
    table = rows(compared([outcome(10)] * 2, [ran_out(8), outcome(8)]), capsys)
    assert table["out of memory"] == [["no", "in 1 of 2 runs"]]
    assert table["peak reserved"] == [["10 GiB", "8 GiB"]]
    # AND why
    tell(compared([ran_out(10)], [outcome(8)]))
    assert f"{OFF}: 1 run ended when memory ran out; the numbers" in capsys.readouterr().out
    # AND a program that went on can be compared
    table = rows(compared([outcome(10, ooms=3)], [outcome(8)]), capsys)
    assert table["out of memory"] == [["3 times", "no"]]
    assert table["peak reserved"][1] == ["", "-2 GiB, -20 %"]


def test_what_is_not_known_is_not_made_up(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a run that tells nothing, and one that failed
    comparison = compared([Outcome(wall_s=1.0)], [FAILED])
    comparison.notes.append("There is no reason.")
    table = rows(comparison, capsys)
    assert table.pop("wall time") == [["1 s", "-"]]
    assert table.pop("out of memory") == [["-", "-"]]
    assert table.pop("peak reserved") == [["-", "-"]]
    # THEN why it did is said, with what its maker has to say
    tell(comparison)
    output = capsys.readouterr().out
    assert f"{ON} failed: exit code 1, KeyError: 'x' (log.txt)\nThere is no reason.\n" in output


def test_rows_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    tell(compared([outcome(8)], [outcome(8)]), without=["step_us", "wall_s"])
    output = capsys.readouterr().out
    assert "retries" in output
    assert "time" not in output


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_it_fits_into_80_columns(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN long names, long numbers, and more settings than stand beside each other
    names = [f"max_split_size_mb:{i},garbage_collection_threshold:0.8" for i in range(count)]
    runs = [
        [outcome(10.123 + i / 7, device_allocs=10**7 + i), outcome(11.117 + i / 7)]
        for i in range(count)
    ]
    tell(compared(*runs, names=names))
    output = capsys.readouterr().out
    lines = [line for line in output.splitlines() if line[:1] in set("┏┃┡│└")]
    # THEN no line of a table is too long, nothing is cut off
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    # AND each table has the first setting, and two others
    headers = []
    for table in output.split("┏")[1:]:
        rows = [line.split("┃")[2:-1] for line in table.splitlines() if line.startswith("┃")]
        headers.append(["".join(map(str.strip, column)) for column in zip(*rows, strict=True)])
    assert headers == [[names[0], *names[i : i + 2]] for i in range(1, count, 2)]


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a comparison that has it all
    comparison = compared([ran_out(10)], [outcome(8), FAILED])
    comparison.about = {"kind": "experiment", "command": ["python", "train.py"]}
    comparison.notes = ["A note."]
    # WHEN its JSON is written into a file, or to standard output
    tell(comparison, str(tmp_path / "report.json"))
    table = capsys.readouterr().out
    tell(comparison, "-")
    printed = capsys.readouterr().out
    # THEN both have everything; the table is beside the file alone
    assert "peak reserved" in table
    told = json.loads(printed)
    assert told == json.loads((tmp_path / "report.json").read_text())
    assert (told["schema_version"], told["kind"]) == (1, "experiment")
    assert (told["command"], told["notes"]) == (["python", "train.py"], ["A note."])
    assert told["conclusions"] == conclusions(comparison)
    assert [setting["name"] for setting in told["settings"]] == [OFF, ON]
    first = told["settings"][0]["outcomes"][0]
    assert (first["peak_reserved_bytes"], first["ended_early"]) == (10 * GIB, True)
    assert told["settings"][1]["outcomes"][1]["failure"] == FAILED.failure


def curve(*reserved: int) -> Curve:
    column = np.array(reserved, np.int64)
    return np.arange(len(column)), column, column // 2


BEGINS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", BEGINS)
def test_the_plot(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    # GIVEN a setting with a spread, one that ran out of memory, one that failed, one not run
    comparison = compared(
        *([outcome(10), outcome(12)], [ran_out(8)], [FAILED], []),
        names=[OFF, ON, "max_split_size_mb:100", "max_split_size_mb:200"],
    )
    path = tmp_path / f"plot.{suffix}"
    plot(comparison, path)
    assert path.read_bytes().startswith(BEGINS[suffix])
    # WHEN there are curves too
    alone = path.stat().st_size
    plot(comparison, path, {OFF: curve(GIB, 2 * GIB, GIB)})
    # THEN they are drawn beside
    assert path.stat().st_size > alone


def test_what_the_plot_says(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    # GIVEN a picture whose text is text
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        curves = {"recorded": curve(3 * GIB, GIB), "nothing": curve()}
        plot(compared([outcome(10)], [ran_out(12)]), tmp_path / "plot.svg", curves)
    text = (tmp_path / "plot.svg").read_text()
    # THEN it has the peaks, the unit, who ran out of memory, and what the curves are of
    for said in ("peak reserved", "peak allocated", ">10<", ">12<", "GiB", "False", "True"):
        assert said in text, said
    assert "out of memory in 1 of 1" in text
    assert "recorded, reserved" in text


def test_a_long_curve_is_drawn_by_its_highest_points() -> None:
    # GIVEN a curve of many points, of which one is high
    reserved = [*range(10_001)]
    reserved[3_333] = GIB
    x, thin, allocated = thinned(curve(*reserved))
    # THEN few are drawn, and that one is, where it is
    assert len(x) == len(thin) == len(allocated) == MAX_POINTS
    assert np.all(np.diff(x) > 0)
    assert abs(int(x[thin.argmax()]) - 3_333) < 3
    assert (int(thin.max()), int(thin[-1]), int(allocated.max())) == (GIB, 10_000, GIB // 2)
    # AND of a short one all are
    short = curve(1, 2)
    assert thinned(short) is short


def test_a_plot_that_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PytracerError, match=r"plot\.jpeg is no name of a plot: .*\.png"):
        check_plot(Path("plot.jpeg"))
    if importlib.util.find_spec("matplotlib") is not None:
        (tmp_path / "plot.png").mkdir()
        with pytest.raises(PytracerError, match=r"cannot write .*Is a directory"):
            plot(compared([outcome(8)], [outcome(9)]), tmp_path / "plot.png")
    with pytest.raises(PytracerError, match=r"there is no directory .*no to write"):
        check_plot(tmp_path / "no" / "plot.png")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PytracerError, match="pip install 'torch-pytracer\\[plot\\]'"):
        check_plot(Path("plot.png"))
